"""Processes that die: what they held is run again, soon, and by somebody else."""

import os
import signal
import time
from contextlib import ExitStack

import pytest

import django_emq as emq
from django_emq import inspector, scripts
from django_emq.keys import queue_keys
from tests.conformance.wire import Clock, books_balance
from tests.helpers import QUEUE, children, is_running, lease_ends
from tests.probe import tasks, verdicts
from tests.processes import Worker, wait_until


def warm_up(probe, client, count=20):
    """Run quick jobs, so that a worker expects quick ones and claims several at once."""
    before = len(probe.marks())
    done = inspector.totals(client, QUEUE).get("completed", 0)
    emq.enqueue_many(tasks.mark.job("warm") for _ in range(count))
    probe.wait_for(before + count)
    wait_until(lambda: inspector.totals(client, QUEUE).get("completed", 0) == done + count)


def test_a_killed_childs_job_is_back_at_once(probe, client):
    """The supervisor gives it back, counted as a stall; nobody waits for the lease."""
    job = tasks.mark_then_nap.enqueue("a", 60)
    with Worker("--lease", "60", "--grace", "0") as worker:
        probe.wait_for(1)
        (child,) = children(worker.pid)
        os.kill(child, signal.SIGKILL)
        clock = Clock()
        probe.wait_for(2)
        assert clock.seconds < 10
        row = inspector.row(client, QUEUE, job.id)
        assert (row["attempts"], row["stalls"], row.get("failures", "0")) == ("2", "1", "0")
        assert children(worker.pid) != [child]
        assert f"child {child} ended by signal 9" in worker.output
        books_balance(client, QUEUE)


def test_unstarted_jobs_of_a_killed_child_come_back_unharmed(probe, client):
    """What it had claimed but not started is no suspect: no stall is counted."""
    with Worker("--lease", "60") as worker:
        worker.wait_ready()
        warm_up(probe, client)
        die = tasks.mark_then_die.using(max_stalls=1).job("die")
        die, *good = emq.enqueue_many([die, *(verdicts.aanswer.job(i) for i in range(10))])
        wait_until(lambda: inspector.counts(client, QUEUE)["done"] == 10)
        worker.terminate()
        assert worker.wait() == 0
    assert inspector.state(client, QUEUE, die.id) == "dead"
    rows = [inspector.row(client, QUEUE, job.id) for job in good]
    assert {row.get("stalls", "0") for row in rows} == {"0"}
    assert "2" in {row["attempts"] for row in rows}  # some had been claimed by the dead child


@pytest.mark.parametrize("sweeper", ["no reaper", "reaper"])
def test_B100_recovery_does_not_wait_for_a_start(probe, client, sweeper):
    """Nothing is started after the kill: who was up before, worker or reaper, brings the job back.

    They have been up for a moment, not for 10 s; the job is back within 4 s.
    """
    options = ("--lease", "2", *(["--no-sweep"] if sweeper == "reaper" else []))
    with ExitStack() as stack:
        if sweeper == "reaper":
            reaper = stack.enter_context(Worker("--interval", "0.5", command="emq_reaper"))
            reaper.wait_for("reaper ready")
        first = stack.enter_context(Worker(*options, "--name", "first"))
        job = verdicts.nap_once_then_mark.enqueue(60, "x")
        wait_until(lambda: inspector.state(client, QUEUE, job.id) == "active")
        second = stack.enter_context(Worker(*options, "--name", "second"))
        second.wait_ready()
        first.kill_all()
        clock = Clock()
        assert probe.wait_for(1) == ["x token 2"]
        assert clock.seconds < 4
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 1)
    assert books_balance(client, QUEUE) == {}


def test_B01_worker_killed_in_mid_run(probe, client):
    """Killed with all its children: back within 4 s, run by the other one with token 2, once."""
    with Worker("--lease", "2", "--name", "first") as first:
        job = verdicts.nap_once_then_mark.using(max_attempts=3).enqueue(30, "x")
        wait_until(lambda: inspector.state(client, QUEUE, job.id) == "active")
        with Worker("--lease", "2", "--name", "second") as second:
            second.wait_ready()
            first.kill_all()
            clock = Clock()
            assert probe.wait_for(1) == ["x token 2"]
            assert clock.seconds < 4
            wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 1)
    assert probe.marks() == ["x token 2"]
    assert inspector.counts(client, QUEUE)["dead"] == 0
    assert books_balance(client, QUEUE) == {}


def test_a_child_survives_its_supervisor(probe, client):
    """It keeps its own lease, finishes, and exits; nothing is run twice or claimed anew."""
    with Worker("--lease", "1") as first:
        tasks.mark_then_nap_then_mark_token.enqueue("a", 3.5)
        probe.wait_for(1)
        (child,) = children(first.pid)
        first.kill()
        with Worker("--lease", "1") as second:
            second.wait_ready()
            assert probe.wait_for(2) == ["a", "a token 1"]
            wait_until(lambda: not is_running(child))
            tasks.mark.enqueue("next")
            wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 2)
    assert probe.marks() == ["a", "a token 1", "next"]
    totals = inspector.totals(client, QUEUE)
    assert (totals["completed"], totals.get("reaped", 0)) == (2, 0)
    assert "the supervisor is gone" in first.output


@pytest.mark.parametrize("processes", ["0", "1"])
def test_B14_job_runs_longer_than_the_lease(probe, client, processes):
    """It runs once, though two workers sweep all the time. All times are halved.

    Lease 1 s, a job of 3.5 s: 1 mark, token 1 at the end, nothing reaped, the lease rises.
    """
    options = ("--lease", "1", "--processes", processes)
    with Worker(*options) as one, Worker(*options) as two:
        one.wait_ready()
        two.wait_ready()
        job = tasks.mark_then_nap_then_mark_token.enqueue("a", 3.5)
        probe.wait_for(1)
        ends = set()
        while len(probe.marks()) < 2:
            ends.add(lease_ends(client, job.id))
            time.sleep(0.02)
        assert probe.marks() == ["a", "a token 1"]
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 1)
    ends.discard(None)
    assert len(ends) >= 4, "the lease was not prolonged again and again"
    assert inspector.totals(client, QUEUE).get("reaped", 0) == 0


def test_a_job_that_holds_the_interpreter_is_not_swept(probe, client):
    """The heartbeat is outside: three leases without one Python instruction in the child."""
    with Worker("--lease", "1") as one, Worker("--lease", "1", "--no-sweep") as two:
        one.wait_ready()
        two.wait_ready()
        job = tasks.hold_gil.enqueue(3.5)
        wait_until(lambda: inspector.state(client, QUEUE, job.id) == "absent")
    totals = inspector.totals(client, QUEUE)
    assert (totals["claimed"], totals["completed"], totals.get("reaped", 0)) == (1, 1, 0)


def test_B28_poison_job_kills_three_workers_and_no_fourth(probe, client):
    """Then it is in the morgue, with a reason that counts; the jobs behind it run once each.

    The supervisor that starts new workers is the product's own. Not 30 s: until all has run.
    """
    poison = tasks.die.enqueue()
    emq.enqueue_many(tasks.mark.job(i) for i in range(20))
    with Worker("--lease", "1") as worker:
        assert sorted(map(int, probe.wait_for(20))) == list(range(20))
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 20)
        (fourth,) = children(worker.pid)
        assert is_running(fourth)
        tasks.mark.enqueue("more")
        probe.wait_for(21)
        assert children(worker.pid) == [fourth]
    assert worker.output.count("ended by signal 9") == 3
    row = inspector.row(client, QUEUE, poison.id)
    assert (row["state"], row["attempts"], row["stalls"]) == ("dead", "3", "3")
    assert "the worker was lost or its lease lapsed 3 times" in row["last_error"]
    assert len(probe.marks()) == 21
    books_balance(client, QUEUE)


def test_a_long_job_takes_no_hostages(probe, client):
    """Quick jobs claimed together with a slow one are back for others within a moment."""
    with Worker("--lease", "60", "--grace", "0") as worker:
        worker.wait_ready()
        warm_up(probe, client)
        jobs = [tasks.mark_then_nap.job("slow", 60), *(tasks.mark.job(i) for i in range(10))]
        slow, *quick = emq.enqueue_many(jobs)
        probe.wait_for(21)
        clock = Clock()
        wait_until(lambda: inspector.counts(client, QUEUE)["pending"] == 10)
        assert clock.seconds < 10
        # An idle worker is woken for them.
        assert client.raw.blpop(queue_keys(QUEUE).wake, 1) is not None
        rows = [inspector.row(client, QUEUE, job.id) for job in quick]
        assert "1" in {row["attempts"] for row in rows}  # so some had been claimed, if not all
        assert not any("failures" in row or "stalls" in row for row in rows)
        with Worker("--lease", "60") as other:
            other.wait_ready()
            probe.wait_for(31)
            assert inspector.state(client, QUEUE, slow.id) == "active"
    assert sorted(probe.marks()[21:]) == [str(i) for i in range(10)]


def test_a_child_that_dies_at_once_is_not_replaced_in_a_frenzy(probe, client):
    """Children that die young are replaced with growing pauses."""
    emq.enqueue_many(tasks.die.using(max_stalls=1).job() for _ in range(4))
    tasks.mark.enqueue("after")
    with Worker("--lease", "5") as worker:
        probe.wait_for(1)
        wait_until(lambda: inspector.counts(client, QUEUE)["dead"] == 4)
    pauses = [
        float(line.rpartition(" in ")[2].split()[0])
        for line in worker.output.splitlines()
        if "starting another one" in line
    ]
    assert pauses == [0, 0, 0, 1.6]


def test_sys_exit_by_the_system_is_replaced_too(probe):
    """os._exit in a job is the death of the child like any other."""
    with Worker("--lease", "5") as worker:
        worker.wait_ready()
        tasks.quit_hard.using(max_stalls=1).enqueue(7)
        worker.wait_for("with status 7")
        tasks.mark.enqueue("next")
        probe.wait_for(1)


def test_a_child_stopped_alone_ends_alone(probe, client):
    """SIGTERM to one child from outside: it finishes and leaves its jobs to the others."""
    with Worker("--processes", "2") as worker:
        worker.wait_ready()
        first, second = children(worker.pid)
        os.kill(first, signal.SIGTERM)
        wait_until(lambda: not is_running(first))
        emq.enqueue_many(tasks.mark.job(i) for i in range(5))
        probe.wait_for(5)
        assert second in children(worker.pid)
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 5)
        worker.terminate()
        assert worker.wait() == 0


def test_leases_lost_by_a_frozen_worker(probe, client):
    """A worker that was stopped longer than its lease comes back late and harms nobody."""
    with Worker("--lease", "1", "--name", "frozen") as frozen:
        job = verdicts.nap_once_then_mark.enqueue(1.5, "x")
        wait_until(lambda: inspector.state(client, QUEUE, job.id) == "active")
        pids = [frozen.pid, *children(frozen.pid)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        with Worker("--lease", "1", "--name", "other") as other:
            other.wait_ready()
            assert probe.wait_for(1) == ["x token 2"]
            wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 1)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            assert probe.wait_for(2) == ["x token 2", "x token 1"]
            wait_until(lambda: "token 1) " in frozen.output or "gone" in frozen.output)
            other.terminate()
            assert other.wait() == 0
        tasks.mark.enqueue("next")
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 2)
    assert "ERROR" not in frozen.output
    assert len(probe.marks()) == 3
    assert books_balance(client, QUEUE) == {}
    assert scripts.state(client, QUEUE, job.id) == "absent"
