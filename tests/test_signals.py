"""Signals of jobs and workers: who is told what, once."""

import re
from collections import Counter

import pytest
from django.db import transaction

import django_emq as emq
from django_emq import inspector, outbox, scripts, signals
from django_emq.keys import queue_keys
from django_emq.relay import Relay
from tests.helpers import QUEUE, children
from tests.probe import state, tasks, verdicts
from tests.processes import Worker, wait_until


@pytest.fixture
def heard():
    """What `job_enqueued` told: task and status, in order."""
    found = []

    def receiver(sender, job, **kwargs):
        found.append((sender and sender.name.rpartition(".")[2], job.status))

    signals.job_enqueued.connect(receiver)
    yield found
    signals.job_enqueued.disconnect(receiver)


def test_who_is_told_of_a_job(probe, client):
    """Each step of a job once, in its order; a failure with a retry, and the last one."""
    with Worker("--lease", "60", PROBE_SIGNALS="1") as worker:
        worker.wait_ready()
        tasks.boom_until.using(max_attempts=2).enqueue(9, "a")
        wait_until(lambda: any(line.startswith("job_dead") for line in probe.marks()))
        tasks.mark.enqueue("b")
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 1)
        worker.terminate()
        worker.wait()
    told = [line for line in probe.marks() if line.startswith(("job", "worker"))]
    failed = "job_failed boom_until [9, 'a'] call {} of 9".format
    assert sorted(told) == sorted(
        [
            "worker_started -  ('default',)",
            "job_started boom_until [9, 'a']",
            failed(1),
            "job_retried boom_until [9, 'a'] 0.0 ValueError: call 1 of 9",
            "job_started boom_until [9, 'a']",
            failed(2),
            "job_dead boom_until [9, 'a'] ValueError: call 2 of 9",
            "job_started mark ['b']",
            "job_succeeded mark ['b'] None",
            "worker_stopping -  ('default',)",
        ]
    )
    assert [line for line in told if "mark" in line] == told[-3:-1]


def test_verdicts_of_a_task_and_async_jobs(probe, client):
    """Bury is a failure and a death, Snooze and Discard are neither; async jobs are told alike."""
    with Worker("--burst", PROBE_SIGNALS="1") as worker:
        tasks.aprobe.enqueue("a")
        verdicts.ask_bury.enqueue()
        verdicts.ask_discard.enqueue()
        worker.wait()
    told = [line.split(" ", 2)[:2] for line in probe.marks() if line.startswith("job")]
    assert sorted(map(tuple, told)) == [
        ("job_dead", "ask_bury"),
        ("job_failed", "ask_bury"),
        ("job_started", "aprobe"),
        ("job_started", "ask_bury"),
        ("job_started", "ask_discard"),
        ("job_succeeded", "aprobe"),
    ]
    assert "is in the morgue after" in worker.output


def test_a_stale_run_is_told(probe, client):
    """Its settlement is refused: somebody has taken the job away meanwhile."""
    with Worker("--lease", "60", PROBE_SIGNALS="1") as worker:
        worker.wait_ready()
        job = tasks.mark_then_nap.enqueue("a", 1)
        wait_until(lambda: "a" in probe.marks())
        scripts.requeue(client, QUEUE, [job.id], by="anna")
        wait_until(lambda: any(line.startswith("job_stale") for line in probe.marks()))
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 1)
    stale = [line for line in probe.marks() if line.startswith("job_stale")]
    assert stale == ["job_stale mark_then_nap ['a', 1] complete"]


@pytest.mark.django_db(transaction=True)
def test_enqueued_is_told_once_it_is(client, heard):
    """By each way in; after the commit for what waits for one; and not for what was refused."""
    tasks.mark.enqueue(1)
    emq.enqueue_in(60, "tests.probe.tasks.mark", 2)
    emq.enqueue_many([tasks.mark.job(3), state.look.job(4)])
    assert heard == [("mark", "enqueued")] * 3 + [("look", "enqueued")]
    heard.clear()
    with transaction.atomic():
        tasks.mark.using(on_commit=True).enqueue(5)
        emq.enqueue_many([tasks.mark.using(on_commit=True).job(6), state.look.job(7)])
        assert heard == [("look", "enqueued")]
    assert heard == [("look", "enqueued"), ("mark", "enqueued"), ("mark", "enqueued")]
    heard.clear()
    with transaction.atomic():
        tasks.mark.using(on_commit=True).enqueue(8)
        transaction.set_rollback(True)
    with pytest.raises(emq.InvalidArguments):
        tasks.mark.enqueue(object())
    assert heard == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("option", ["on_commit", "outbox"])
def test_one_that_is_refused_after_a_commit_silences_no_other(client, heard, option):
    """The others are there, and told: whether the block that commits raises, or the log does."""
    task = tasks.mark.using(**{option: True})

    def commit():
        with transaction.atomic():
            jobs = emq.enqueue_many(task.using(queue=name).job(1) for name in ("a", "a", "b"))
            client.raw.set(queue_keys("a").job(jobs[0].id), "no row")

    if option == "on_commit":
        with pytest.raises(emq.EmqError):
            commit()
    else:
        commit()
    assert heard == [("mark", "enqueued")] * 2


@pytest.mark.django_db(transaction=True)
def test_what_a_relay_pushes_is_told_there(client, heard, monkeypatch):
    """Once for each push that the server took."""
    monkeypatch.setattr(outbox, "_away_until", float("inf"))
    tasks.mark.using(outbox=True).enqueue(1)
    assert heard == []
    Relay(client, ("default",)).drain("default")
    Relay(client, ("default",)).drain("default")
    assert heard == [("mark", "enqueued")]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_receiver_that_fails_costs_nothing(client, heard, caplog, error):
    """It is logged, and the job is enqueued."""

    def receiver(**kwargs):
        raise error("a receiver")

    signals.job_enqueued.connect(receiver)
    try:
        assert tasks.mark.enqueue(1).status == "enqueued"
    finally:
        signals.job_enqueued.disconnect(receiver)
    assert heard == [("mark", "enqueued")]
    assert "of job_enqueued" in caplog.text
    assert "a receiver" in caplog.text


def test_B113_error_in_the_workers_own_book_keeping(probe, client):
    """Receivers of all signals raise, and a log handler does: ten jobs end as without them."""
    emq.enqueue_many(tasks.mark.job(i) for i in range(5))
    boom = tasks.boom.using(max_attempts=1)
    emq.enqueue_many(boom.job() for _ in range(5))
    with Worker(PROBE_CALL="refuse") as worker:
        worker.wait_ready()
        (child,) = children(worker.pid)
        wait_until(lambda: inspector.totals(client, QUEUE).get("dead") == 5)
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 5)
        assert children(worker.pid) == [child]
        worker.terminate()
        assert worker.wait() == 0, worker.output
    assert probe.marks() == ["0", "1", "2", "3", "4"]
    counts = inspector.counts(client, QUEUE)
    assert (counts["active"], counts["dead"]) == (0, 5)
    told = Counter(re.findall(r"of (\w+) raised: ZeroDivisionError", worker.output))
    assert told == {
        "worker_started": 1,
        "job_started": 10,
        "job_succeeded": 5,
        "job_failed": 5,
        "job_dead": 5,
        "worker_stopping": 1,
    }
    assert worker.output.count("OSError: no space left") == 5
