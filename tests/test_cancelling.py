"""emq.cancel: a waiting job never starts, a running one cannot settle and is told."""

import asyncio

import pytest

import django_emq as emq
from django_emq import inspector, scripts
from tests.conformance import wire
from tests.conformance.wire import claims, members, row
from tests.helpers import QUEUE
from tests.probe import limits, tasks
from tests.processes import Worker, wait_until


def job_in(client, queue, state):
    """A job in a state, and the token that its run has."""
    options = {"run_in": 60} if state == "schedule" else {}
    job = tasks.mark.using(queue=queue, **options).enqueue(1)
    token = claims(client, queue).jobs[0].token if state in ENDED or state == "active" else 0
    settle = {
        "done": lambda: wire.complete(client, queue, job.id, token, keep_ms=60_000),
        "gone": lambda: wire.complete(client, queue, job.id, token),
        "dead": lambda: wire.bury(client, queue, job.id, token),
    }
    settle.get(state, lambda: None)()
    return job, token


WAITS = ("pending", "schedule")
ENDED = ("done", "dead", "gone")


@pytest.mark.parametrize("whole", [True, False], ids=["Job", "id"])
@pytest.mark.parametrize("state", [*WAITS, "active"])
def test_a_job_that_waits_or_runs_is_cancelled(client, queue, state, whole):
    """It is in the morgue at once, with who asked; a second time says the same."""
    job, token = job_in(client, queue, state)
    for _ in range(2):
        assert emq.cancel(job if whole else job.id, by="anna") is True
    assert job.id in members(client, queue, "dead")
    assert row(client, queue, job.id)["last_error"] == "cancelled by anna"
    assert inspector.totals(client, queue)["cancelled"] == 1
    if token:
        (verdict,) = scripts.complete(client, queue, [(job.id, token, "")])
        assert isinstance(verdict, emq.StaleToken)
    assert not claims(client, queue).jobs


@pytest.mark.parametrize("state", ENDED)
def test_a_job_that_has_ended_stays_as_it_is(client, queue, state):
    job, _ = job_in(client, queue, state)
    assert emq.cancel(job) is False
    assert scripts.state(client, queue, job.id) == {"gone": "absent"}.get(state, state)


def test_a_job_of_a_partition_is_found(client, queue, settings):
    settings.EMQ = {**settings.EMQ, "QUEUES": {queue: {"PARTITIONS": 4}}}
    jobs = [tasks.mark.using(queue=queue).enqueue(number) for number in range(6)]
    assert len({job.queue for job in jobs}) > 1
    assert all(emq.cancel(job.id) for job in jobs)


def test_a_number_of_partitions_that_changed_is_no_matter(client, queue):
    """A Job that is kept may name a queue in which the job is not."""
    job = tasks.mark.using(queue=queue).enqueue(1)
    assert emq.cancel(emq.Job(job.id, "elsewhere", job.task))


@pytest.mark.parametrize("value", ["", "JOB", "17", None, 17, b"JOB"])
def test_what_is_no_id_is_refused(client, value):
    with pytest.raises(emq.InvalidOption, match="no id of a job"):
        emq.cancel(value)


def test_awaited(client, queue):
    job = tasks.mark.using(queue=queue).enqueue(1)
    assert asyncio.run(emq.acancel(job.id)) is True


def test_extend_tells_that_the_job_was_cancelled(client, queue):
    """A requeued one is lost, and not cancelled."""
    jobs = [job_in(client, queue, "active")[0] for _ in range(2)]
    emq.cancel(jobs[0])
    scripts.requeue(client, queue, [jobs[1].id])
    verdicts = scripts.extend(client, queue, [(job.id, 1) for job in jobs], lease_ms=60_000)
    assert [type(verdict).__name__ for verdict in verdicts] == ["Cancelled", "StaleToken"]


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_running_job_is_told(probe, client, processes):
    """A plain task sees it, an async one is cancelled; neither settles, and the worker goes on."""
    with Worker("--processes", processes, "--lease", "1") as worker:
        worker.wait_ready()
        jobs = [limits.auntil_cancelled.enqueue("async"), limits.until_cancelled.enqueue("plain")]
        probe.wait_for(2)
        assert all(emq.cancel(job) for job in jobs)
        probe.wait_for(4)
        tasks.mark.enqueue("next")
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 1)
        worker.wait_for("cancelled: job")
    assert sorted(probe.marks()) == ["async", "async True", "next", "plain", "plain True True"]
    assert members(client, QUEUE, "dead").keys() == {job.id for job in jobs}
