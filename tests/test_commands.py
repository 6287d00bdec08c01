"""What emq_worker and emq_reaper say on the command line, and the sweep as one command."""

from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from django_emq import connections, inspector, scripts
from tests.probe import tasks
from tests.processes import manage


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bad queue"], "'bad queue' is not allowed. Use 1 to 128"),
        (["emq"], "Queue name 'emq' is reserved"),
        (["x" * 129], "Use 1 to 128"),
        (["--lease", "0"], "--lease is 0. Use at least 1 second"),
        (["--lease", "soon"], "'soon' is not a number of seconds"),
        (["--processes", "-1"], "'-1' is not a whole number from 0"),
        (["--processes", "many"], "'many' is not a whole number from 0"),
        (["--threads", "0"], "'0' is not a whole number from 1"),
        (["--grace", "-3"], "'-3' is not a number of seconds"),
        (["--max-jobs", "1.5"], "'1.5' is not a whole number"),
        (["--max-rss", "x"], "'x' is not a whole number"),
        (["--name", "with blank"], "--name is 'with blank'"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
    ],
)
def test_refused_options(arguments, message):
    """A bad option is named with the fact and the way out, and the status is not 0."""
    with pytest.raises(CommandError) as caught:
        call_command("emq_worker", *arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bad queue"], "'bad queue' is not allowed"),
        (["--interval", "0.01"], "Use at least 0.05 seconds"),
        (["--interval", "often"], "'often' is not a number of seconds"),
        (["--batch", "0"], "'0' is not a whole number from 1"),
    ],
)
def test_refused_options_of_the_reaper(arguments, message):
    """The same for emq_reaper."""
    with pytest.raises(CommandError) as caught:
        call_command("emq_reaper", *arguments)
    assert message in str(caught.value)


def test_a_refused_option_is_no_traceback():
    """On the command line it is a sentence and a status."""
    done = manage("emq_worker", "--lease", "0")
    assert done.returncode == 1
    assert done.stderr.strip() == "CommandError: --lease is 0. Use at least 1 second."


@pytest.mark.parametrize("command", ["emq_worker", "emq_reaper"])
def test_without_a_server_a_command_says_so(command, tmp_path: Path):
    """No server at the start: one sentence, status 1."""
    arguments = ["--once"] if command == "emq_reaper" else []
    done = manage(command, *arguments, EMQ_URL=f"unix://{tmp_path}/nothing")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert "No answer from the server" in done.stderr


def test_a_foreign_version_stops_the_worker(redis):
    """Keys of another version are not ours to touch: status 1 and both versions in the text."""
    redis.set("{emq}:version", "other:7")
    done = manage("emq_worker", "--burst")
    assert done.returncode == 1
    assert "other:7" in done.stderr
    assert "django_emq:1" in done.stderr


def test_reaper_with_nothing_to_do(capsys):
    """--once sweeps all queues once and ends."""
    call_command("emq_reaper", "--once")
    assert capsys.readouterr().out == "reaped 0, dead 0, promoted 0, ticked 0, trimmed 0\n"


def test_reaper_trims_the_morgue(queue, settings, capsys):
    """A DEAD_MAX that was lowered: the oldest of the morgue go."""
    client = connections.client()
    task = tasks.mark.using(queue=queue)
    jobs = [task.enqueue(i) for i in range(4)]
    claims = scripts.claim(client, queue, worker="w", request="1", lease_ms=60_000, count=4)
    for job in claims.jobs:
        scripts.bury(client, queue, [(job.id, job.token, "no use", "")])
    settings.EMQ = {"DEAD_MAX": 2}
    call_command("emq_reaper", "--once", queue)
    client = connections.client()
    assert "trimmed 2" in capsys.readouterr().out
    assert inspector.counts(client, queue)["dead"] == 2
    assert inspector.state(client, queue, jobs[0].id) == "absent"
