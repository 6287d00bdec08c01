"""Field reports of performance cliffs: very many jobs due, or to be deleted, at once."""

import signal

import pytest
from django.core.management import CommandError, call_command

import django_emq as emq
from django_emq import connections, inspector
from django_emq.keys import queue_keys
from django_emq.reaper import Reaper
from tests.admin.test_actions import fields_of
from tests.admin.yard import url
from tests.conformance.wire import Clock, books_balance, claim_one, enqueue_one, now_ms, retry
from tests.field.pings import no_slow_call, pings
from tests.helpers import QUEUE, seed
from tests.probe import tasks
from tests.processes import Worker, manage, wait_until

DUE, CLEARED, DEAD, CAP = 100_000, 300_000, 51_000, 1000

MOVE = """
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], -1000, -1)) do
  redis.call('ZADD', KEYS[1], ARGV[1], id)
end
"""


def test_B117_very_many_jobs_due_at_once(probe, client, lone, tmp_path):
    """100,000 jobs of one due time: no call of 50 ms, no PING of 100, all promoted within 20 s.

    Four worker processes get jobs from the first second, in the order in which they were enqueued.
    """
    client.raw.config_set("appendonly", "no")  # no disk between us and the server
    later = tasks.mark_where.using(run_in=3600)
    emq.enqueue_many(later.job(i) for i in range(DUE))
    with pings(lone, tmp_path / "pings") as longest, Worker("--processes", "4") as worker:
        worker.wait_ready()
        schedule = queue_keys(QUEUE).schedule
        due = f"{now_ms(client) + 2000:.0f}"
        for _ in range(0, DUE, 1000):  # the last thousand each time; they come to the front
            client.raw.eval(MOVE, 1, schedule, due)
        with no_slow_call(lone):
            wait_until(lambda: client.raw.zcard(schedule) < DUE)
            clock = Clock()
            probe.wait_for(1)
            assert clock.seconds < 5
            wait_until(lambda: client.raw.zcard(schedule) == 0)
            assert clock.seconds < 20
        assert longest() < 0.1
        marks = [mark.split() for mark in probe.marks()]
    # Each claim took the first of those that were there. What a process that did not get on has
    # handed back (its next token is 2) comes later.
    firsts: dict[str, list[int]] = {}
    for number, process, token in marks:
        if token == "1":
            firsts.setdefault(process, []).append(int(number))
    assert len(firsts) == 4
    assert sum(map(len, firsts.values())) > 0.9 * len(marks)
    assert all(numbers == sorted(numbers) for numbers in firsts.values())
    assert "ERROR" not in worker.output


def test_B118_clearing_a_million_jobs(client, lone, settings, admin_client, tmp_path):
    """300,000 jobs: the command is stopped and goes on, the page answers and works in steps.

    And 50,000 dead jobs above a cap that was lowered: one more death takes a bounded step.
    """
    client.raw.config_set("appendonly", "no")  # no disk between us and the server
    seed(client, QUEUE, "pending", CLEARED, score=0)
    seed(client, "morgue", "dead", DEAD, score=now_ms(client))
    emq.enqueue_many([tasks.mark.job("known"), tasks.mark.using(queue="morgue").job("known")])
    pending = queue_keys(QUEUE).pending
    with pings(lone, tmp_path / "pings") as longest, no_slow_call(lone):
        with Worker(QUEUE, "pending", "--no-input", command="emq_drain") as drain:
            wait_until(lambda: client.raw.zcard(pending) < CLEARED - 1000)
            drain.signal(signal.SIGINT)
            assert drain.wait() == 1
        assert "Stopped after" in drain.output
        left = client.raw.zcard(pending)
        assert 0 < left < CLEARED - 1000

        target = url("queue_act", queue=QUEUE)
        clock = Clock()
        page = admin_client.post(target, {"action": "remove", "set": "pending", "scope": "all"})
        page = admin_client.post(target, fields_of(page) | {"confirm": "yes"})
        assert clock.seconds < 5
        assert page.status_code in (200, 302)  # a step, or all that was left
        assert client.raw.zcard(pending) < left

        done = manage("emq_drain", QUEUE, "pending", "--no-input")
        assert done.returncode == 0
        assert "jobs deleted." in done.stdout
        assert client.raw.zcard(pending) == 0

        settings.EMQ = {"DEAD_MAX": CAP}
        ours = connections.client()
        job_id = enqueue_one(ours, "morgue")
        while (job := claim_one(ours, "morgue")) and job.id.decode() != job_id:
            pass
        assert retry(ours, "morgue", job_id, 1, maximum=1) == "dead"
        assert client.raw.zcard(queue_keys("morgue").dead) >= DEAD - 500
        reaper = Reaper(ours, ("morgue",), interval=1)
        wait_until(lambda: reaper.run_once() and ours.raw.zcard(queue_keys("morgue").dead) <= CAP)
    assert longest() < 0.1
    books_balance(ours, QUEUE)
    assert inspector.counts(ours, "morgue")["dead"] == CAP


def test_a_drain_asks_first(client, monkeypatch, capsys):
    """Who does not type yes deletes nothing."""
    tasks.mark.enqueue("a")
    monkeypatch.setattr("builtins.input", lambda question: "no")
    with pytest.raises(CommandError, match=r"Nothing was deleted."):
        call_command("emq_drain", QUEUE, "pending")
    assert inspector.counts(client, QUEUE)["pending"] == 1
    monkeypatch.setattr("builtins.input", lambda question: "yes")
    call_command("emq_drain", QUEUE, "pending")
    assert "1 jobs deleted." in capsys.readouterr().out
    with pytest.raises(CommandError, match="invalid choice"):
        call_command("emq_drain", QUEUE, "active")
