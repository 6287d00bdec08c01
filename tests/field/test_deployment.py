"""Field reports of settings and of containers, as far as they are not among faults."""

import os
import signal

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_emq import inspector
from tests.conformance.wire import books_balance
from tests.helpers import QUEUE, children
from tests.probe import tasks, verdicts
from tests.processes import Worker, manage, wait_until
from tests.variant import variant

UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def process_1(worker):
    """The pid, out here, of what is process 1 in there."""
    (pid,) = children(worker.pid)
    return pid


@pytest.mark.namespaces
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_B98_worker_as_process_1(probe, client, number):
    """TERM and INT stop warmly as outside, QUIT hands back at once; the reaper ends at all three.

    What a job leaves behind is reaped, so that a long run collects no zombies.
    """
    with (
        Worker("--grace", "30", before=UNSHARE) as worker,
        Worker(command="emq_reaper", before=UNSHARE) as reaper,
    ):
        worker.wait_ready()
        reaper.wait_for("reaper ready")
        inner = process_1(worker)
        (child,) = children(inner)
        for i in range(3):
            verdicts.leave_a_process_then_mark.enqueue(i)
        probe.wait_for(3)
        wait_until(lambda: children(inner) == [child], what="no zombie is left")
        job = tasks.mark_then_nap_then_mark_token.enqueue(
            "a", 1 if number != signal.SIGQUIT else 60
        )
        probe.wait_for(4)
        os.kill(inner, number)
        os.kill(process_1(reaper), number)
        assert worker.wait() == 0
        assert reaper.wait() == 0
    assert "reaped 0, dead 0" in reaper.output
    if number == signal.SIGQUIT:
        row = inspector.row(client, QUEUE, job.id)
        assert (row["state"], row["attempts"]) == ("pending", "1")
    else:
        assert probe.marks()[3:] == ["a", "a token 1"]
        assert inspector.state(client, QUEUE, job.id) == "absent"
    assert "Traceback" not in worker.output + reaper.output
    books_balance(client, QUEUE)


CONTRADICTIONS = [
    ({"HEARTBEAT": 10, "LEASE": 5}, ["E010", "W004"], ["EMQ['HEARTBEAT']"]),
    ({"JOB_LIMIT": 60, "HEARTBEAT": 0}, ["E010"], ["EMQ['JOB_LIMIT']"]),
    ({"LEASE": 5, "SOCKET_TIMEOUT": 10}, ["W004"], ["EMQ['SOCKET_TIMEOUT']", "EMQ['LEASE']"]),
    ({"PREFIX": "default"}, ["E012"], ["EMQ['PREFIX']", "EMQ['DEFAULT_QUEUE']"]),
    ({"MAX_ATTEMPTS": 0}, ["E011"], ["EMQ['MAX_ATTEMPTS'] is 0"]),
    ({"LEASE": -1}, ["E011"], ["EMQ['LEASE'] is -1"]),
    ({"MAX_STALLS": -3}, ["E011"], ["EMQ['MAX_STALLS'] is -3"]),
    ({"MAX_ATEMPTS": 3}, ["E010"], ["EMQ['MAX_ATEMPTS']", "'MAX_ATTEMPTS'"]),
]


def test_B102_settings_that_contradict_each_other(client):
    """Each has a fixed id and names the settings; an error stops the worker before it claims.

    There is no setting for a heartbeat or a time limit, so those names are unknown. Settings that
    are overridden take effect at once, in either direction.
    """
    for emq, ids, named in CONTRADICTIONS:
        with override_settings(EMQ=emq):
            found = run_checks(tags=["emq"])
        told = " ".join(message.msg for message in found)
        assert {message.id.removeprefix("django_emq.") for message in found} == set(ids), emq
        assert [words for words in named if words not in told] == []
    job = tasks.mark.enqueue("a")
    for settings in (CONTRADICTIONS[0][0], CONTRADICTIONS[5][0]):
        stopped = manage("emq_worker", "--burst", **variant(EMQ=settings))
        assert stopped.returncode == 1
        assert "django_emq.E01" in stopped.stderr
    with pytest.raises(CommandError, match="--interval is too short"):
        call_command("emq_reaper", "--interval", "0")
    assert inspector.row(client, QUEUE, job.id)["attempts"] == "0"

    with override_settings(EMQ={"LEASE": 0}):
        assert [message.id for message in run_checks(tags=["emq"])] == ["django_emq.E011"]
        with override_settings(EMQ={"LEASE": 20}):
            assert run_checks(tags=["emq"]) == []
        assert run_checks(tags=["emq"])
