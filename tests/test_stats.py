"""`emq_stats`: what it says of queues and workers, for people and for scripts."""

import json
import signal
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_emq import connections, scripts
from django_emq.management.commands.emq_stats import table
from tests.probe.tasks import mark
from tests.processes import Worker, manage, wait_until


def stats(*args):
    """What the command prints, called in this process."""
    out = StringIO()
    call_command("emq_stats", *args, stdout=out)
    return out.getvalue()


def test_an_empty_server_says_so(client):
    """No queue and no worker: the headings, and a sentence."""
    lines = stats().splitlines()
    assert lines[0].split()[:3] == ["queue", "pending", "active"]
    assert lines[-1] == "No worker is running."
    assert json.loads(stats("--json")) == {
        "queues": [],
        "running": [],
        "workers": [],
        "outboxes": [],
    }


def test_a_queue_in_figures(client):
    """Each set, the wait of the oldest, and the rates, in a row of the queue's own."""
    for _ in range(3):
        mark.using(queue="mail").enqueue("x")
    mark.using(queue="mail", run_in=60).enqueue("later")
    scripts.claim(client, "mail", worker="w", request=1, lease_ms=60_000)
    (row,) = [line.split() for line in stats("mail").splitlines() if line.startswith("mail")]
    assert row[:6] == ["mail", "2", "1", "1", "0", "0"]
    (queue,) = json.loads(stats("mail", "--json"))["queues"]
    assert queue["counts"] == {"pending": 2, "active": 1, "schedule": 1, "dead": 0, "done": 0}
    assert queue["totals"]["enqueued"] == 4
    assert 0 < queue["per_minute"]["enqueued"] <= 4
    assert 0 <= queue["oldest_s"] < 60


@pytest.mark.parametrize(
    ("by", "why", "end"),
    [("", "", " UTC"), ("anna", "", " UTC by anna"), ("anna", "deploy", " UTC by anna: deploy")],
)
def test_a_paused_queue(client, by, why, end):
    """Since when, by whom and why."""
    mark.using(queue="mail").enqueue("x")
    scripts.pause(client, "mail", by=by, why=why)
    (line,) = [line for line in stats().splitlines() if line.startswith("mail is paused since 20")]
    assert line.endswith(end)


def test_only_the_queues_that_are_named(client):
    """Names choose and order the rows."""
    for queue in ("a", "b", "c"):
        mark.using(queue=queue).enqueue("x")
    named = [line.split()[0] for line in stats("c", "a").splitlines()[1:3]]
    assert named == ["c", "a"]
    everything = [line.split()[0] for line in stats().splitlines()[1:4]]
    assert everything == ["a", "b", "c"]


def test_a_worker_is_shown_while_it_is_there(client):
    """Its name, queues and threads; gone after an orderly end."""
    with Worker("mail", "--threads", "2", "--name", "anna") as worker:
        worker.wait_ready()
        (shown,) = json.loads(stats("--json"))["workers"]
        assert shown["facts"]["queues"] == "mail"
        assert shown["facts"]["threads"] == "2"
        assert int(shown["facts"]["rss_mb"]) > 20
        assert (shown["asked"], shown["asked_by"]) == ("", "")
        (line,) = [line for line in stats().splitlines() if line.startswith("anna-")]
        assert line.split()[1:4] == ["mail", "1", "2"]
        assert line.split()[5:7] == [shown["facts"]["rss_mb"], "running"]
        worker.terminate()
        assert worker.wait() == 0
    assert stats().splitlines()[-1] == "No worker is running."


def test_watch_goes_on_until_it_is_stopped(client):
    """One JSON object a line."""
    with Worker("--watch", "--json", "--interval", "0.1", command="emq_stats") as watch:
        wait_until(lambda: watch.output.count("\n") >= 3)
        watch.signal(signal.SIGINT)
        assert watch.wait() == 0
    assert [json.loads(line)["queues"] for line in watch.output.splitlines()] == [[]] * len(
        watch.output.splitlines()
    )


def test_a_server_that_is_away(settings):
    """One sentence, no traceback."""
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "emq": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"},
    }
    connections.reset()
    with pytest.raises(CommandError, match="No answer from the server"):
        stats()


def test_a_name_that_is_none():
    """The rule is in the answer, and the exit status is that of an error."""
    ended = manage("emq_stats", "no good")
    assert ended.returncode == 1
    assert "Queue name 'no good' is not allowed" in ended.stderr


def test_columns_are_as_wide_as_their_widest_cell():
    """Names to the left, numbers to the right."""
    assert table([("a", "n"), ("long", "10")]) == "a      n\nlong  10"
