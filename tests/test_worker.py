"""The worker in each of its shapes, with its options."""

import os
import signal
import time
from pathlib import Path

import pytest

import django_emq as emq
from django_emq import inspector, scripts
from tests.helpers import QUEUE, burst, children, is_running
from tests.probe import tasks, verdicts
from tests.processes import Worker, wait_until
from tests.variant import variant


@pytest.mark.parametrize("processes", ["0", "1", "2"])
def test_jobs_run_and_leave_nothing(probe, client, processes):
    """Each job runs once, sync or async, and its row is gone afterwards."""
    names = [f"x{i}" for i in range(20)]
    emq.enqueue_many(tasks.mark.job(name) for name in names[:10])
    with Worker("--processes", processes) as worker:
        worker.wait_ready()
        assert len(children(worker.pid)) == int(processes)
        emq.enqueue_many(tasks.aprobe.job(name) for name in names[10:])
        assert sorted(probe.wait_for(20)) == sorted(names)
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 20)
        worker.terminate()
        assert worker.wait() == 0
    assert set(inspector.counts(client, QUEUE).values()) == {0}
    assert probe.marks().count("x0") == 1
    assert "ERROR" not in worker.output
    assert "Traceback" not in worker.output


def test_threads_run_jobs_at_once(probe, client):
    """--threads 8: eight jobs that wait take the time of one."""
    emq.enqueue_many(tasks.mark_then_nap.job(i, 60) for i in range(9))
    with Worker("--threads", "8", "--grace", "0", "--lease", "2") as worker:
        probe.wait_for(8)
        wait_until(lambda: inspector.counts(client, QUEUE)["active"] == 8)
        assert inspector.counts(client, QUEUE)["pending"] == 1
        worker.terminate()
        assert worker.wait() == 0
    assert sorted(probe.marks()) == [str(i) for i in range(8)]
    assert inspector.counts(client, QUEUE)["pending"] == 9


def test_async_jobs_share_one_loop(probe, client):
    """Eighty waiting jobs run at once in one process with one thread."""
    emq.enqueue_many(tasks.anap_then_mark.job(2, i) for i in range(80))
    with Worker("--lease", "1") as worker:
        worker.wait_ready()
        wait_until(lambda: inspector.counts(client, QUEUE)["active"] == 80)
        assert sorted(map(int, probe.wait_for(80))) == list(range(80))
    totals = inspector.totals(client, QUEUE)
    assert (totals["claimed"], totals.get("reaped", 0)) == (80, 0)


def test_async_concurrency_bounds_the_loop(probe, client):
    """ASYNC_CONCURRENCY async jobs run at once, and the others wait in the queue."""
    emq.enqueue_many(tasks.anap_then_mark.job(60, i) for i in range(7))
    with Worker("--grace", "0", **variant(EMQ={"ASYNC_CONCURRENCY": 3})) as worker:
        wait_until(lambda: inspector.counts(client, QUEUE)["active"] >= 3)
        # One more may be in front of the loop for a moment, until it is handed back.
        wait_until(lambda: inspector.counts(client, QUEUE)["active"] <= 4)
        assert inspector.counts(client, QUEUE)["pending"] >= 3
        worker.terminate()
        assert worker.wait() == 0
    assert inspector.counts(client, QUEUE)["pending"] == 7


@pytest.mark.parametrize("processes", ["0", "1", "2"])
def test_burst_ends_when_nothing_is_ready(probe, client, processes):
    """--burst: what is ready is run, also a failed job's next attempt that is due; status 0."""
    emq.enqueue_many([tasks.mark.job("a"), tasks.boom_until.job(2, "b"), tasks.aprobe.job("c")])
    tasks.mark.using(run_in=600).enqueue("later")
    burst("--processes", processes)
    assert sorted(probe.marks()) == ["a", "b", "b", "c"]
    counts = inspector.counts(client, QUEUE)
    assert counts == {"pending": 0, "active": 0, "schedule": 1, "dead": 0, "done": 0}


def test_burst_on_an_empty_queue_ends_at_once():
    """Nothing to do is no error."""
    burst("empty-queue", seconds=15)


def test_max_jobs_replaces_the_process(probe):
    """--max-jobs: the process ends after its jobs and another one takes over, without an error."""
    with Worker("--max-jobs", "3") as worker:
        worker.wait_ready()
        (first,) = children(worker.pid)
        emq.enqueue_many(tasks.mark.job(i) for i in range(3))
        wait_until(lambda: not is_running(first))
        tasks.mark.enqueue("next")
        assert probe.wait_for(4)[-1] == "next"
        assert children(worker.pid) != [first]
        worker.wait_for("reached its limit")
    assert sorted(probe.marks()) == ["0", "1", "2", "next"]
    assert "ERROR" not in worker.output


def test_max_rss_replaces_the_process(probe):
    """--max-rss: a process that has grown beyond it is replaced, after its job."""
    with Worker("--max-rss", "200") as worker:
        worker.wait_ready()
        (first,) = children(worker.pid)
        tasks.mark.enqueue("small")
        probe.wait_for(1)
        assert is_running(first)
        tasks.grow.enqueue(250)
        wait_until(lambda: not is_running(first))
        tasks.mark.enqueue("next")
        probe.wait_for(2)
    assert "ERROR" not in worker.output


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_child_collects_no_project(probe, processes):
    """What was loaded before the fork is kept out of each collection, which would take as long."""
    with Worker("--processes", processes) as worker:
        worker.wait_ready()
        tasks.mark_collected.enqueue()
        (mark,) = probe.wait_for(1)
    looked_at, left_out = map(int, mark.split())
    assert left_out > 20_000  # Django alone
    assert looked_at < left_out / 2


def test_the_name_is_in_rows_and_registry(probe, client):
    """--name: rows say who holds them, and the list of workers who is there."""
    job = tasks.mark_then_nap.enqueue("a", 60)
    with Worker("--name", "bee", "--grace", "0", "--threads", "2") as worker:
        probe.wait_for(1)
        row = inspector.row(client, QUEUE, job.id)
        assert row["worker"].startswith("bee")
        wait_until(lambda: inspector.workers(client))
        (entry,) = inspector.workers(client)
        assert entry.id.startswith("bee")
        assert entry.facts["name"] == "bee"
        assert entry.facts["queues"] == QUEUE
        assert int(entry.facts["pid"]) == worker.pid
        assert (entry.facts["processes"], entry.facts["threads"]) == ("1", "2")
        worker.terminate()
        assert worker.wait() == 0
    assert inspector.workers(client) == []


def test_two_workers_of_one_name_are_two(probe, client):
    """A name given twice takes neither's jobs from the other."""
    with Worker("--name", "bee") as one, Worker("--name", "bee") as two:
        one.wait_ready()
        two.wait_ready()
        emq.enqueue_many(tasks.mark.job(i) for i in range(200))
        probe.wait_for(200)
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 200)
        assert len({entry.id for entry in inspector.workers(client)}) == 2
    assert sorted(map(int, probe.marks())) == list(range(200))


def test_queues_are_served_in_strict_order(probe):
    """The first queue is emptied before the second is looked at, whatever was enqueued first."""
    for queue, names in (("low", "fgh"), ("middle", "de"), ("high", "abc")):
        emq.enqueue_many(tasks.mark.using(queue=queue).job(name) for name in names)
    burst("high", "middle", "low", "--processes", "0")
    assert probe.marks() == list("abcdefgh")


def test_a_worker_leaves_other_queues_alone(probe, client):
    """Only the named queues are served."""
    tasks.mark.using(queue="other").enqueue("theirs")
    tasks.mark.using(queue="ours").enqueue("ours")
    burst("ours")
    assert probe.marks() == ["ours"]
    assert inspector.counts(client, "other")["pending"] == 1


def test_priorities_and_mint_order(probe):
    """Higher priority first; equal ones in the order of the enqueue calls."""
    for priority, name in ((0, "c"), (0, "d"), (-5, "e"), (7, "a"), (7, "b")):
        tasks.mark.using(priority=priority).enqueue(name)
    burst()
    assert probe.marks() == list("abcde")


@pytest.mark.parametrize("processes", ["0", "1"])
def test_delayed_jobs_run_when_due(probe, client, processes):
    """An idle worker wakes by itself for a job that falls due, and not before."""
    with Worker("--processes", processes) as worker:
        worker.wait_ready()
        start = time.monotonic()
        tasks.mark.using(run_in=0.7).enqueue("a")
        assert inspector.counts(client, QUEUE)["schedule"] == 1
        probe.wait_for(1, seconds=8)
        assert time.monotonic() - start >= 0.7


@pytest.mark.parametrize("processes", ["0", "1"])
def test_an_idle_worker_stops_at_once(probe, client, processes):
    """The end of a worker waits for nothing but its jobs."""
    with Worker("--processes", processes) as worker:
        worker.wait_ready()
        tasks.mark.enqueue("a")
        probe.wait_for(1)
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 1)
        start = time.monotonic()
        worker.terminate()
        assert worker.wait() == 0
        assert time.monotonic() - start < 10


def test_an_idle_worker_picks_up_at_once(probe):
    """A job does not wait for a poll."""
    with Worker() as worker:
        worker.wait_ready()
        tasks.mark.enqueue("warm")
        probe.wait_for(1)
        took = []
        for i in range(5):
            start = time.monotonic()
            tasks.mark.enqueue(i)
            probe.wait_for(2 + i)
            took.append(time.monotonic() - start)
    assert min(took) < 0.5, took


def test_an_idle_worker_sends_nothing(probe, redis):
    """Waiting costs no commands: less than three a second, all of them housekeeping."""
    with Worker("--lease", "15") as worker:
        worker.wait_ready()
        tasks.mark.enqueue("a")
        probe.wait_for(1)
        wait_until(lambda: redis.info("clients")["blocked_clients"] == 1)
        before = redis.info("stats")["total_commands_processed"]
        time.sleep(2)  # what is counted is what happens in this time
        assert redis.info("stats")["total_commands_processed"] - before <= 12


def test_no_sweep_leaves_lapsed_leases_to_the_reaper(probe, client):
    """--no-sweep: nobody takes a lapsed lease back until emq_reaper does."""
    job = tasks.mark.enqueue("a")
    scripts.claim(client, QUEUE, worker="lost", request="1", lease_ms=1)
    with Worker("--no-sweep", "--lease", "1") as worker:
        worker.wait_ready()
        other = tasks.mark.enqueue("b")
        probe.wait_for(1)
        time.sleep(1)  # three times as long as a worker takes that sweeps
        assert inspector.state(client, QUEUE, job.id) == "active"
        assert inspector.state(client, QUEUE, other.id) == "absent"
        with Worker("--interval", "0.2", command="emq_reaper") as reaper:
            reaper.wait_for("reaper ready: all queues")
            assert probe.wait_for(2) == ["b", "a"]
            reaper.terminate()
            assert reaper.wait() == 0
            assert "reaped 1, dead 0" in reaper.output


def test_health_file_is_touched(tmp_path: Path):
    """--health-file: a container's probe sees by the time of change that the worker is well."""
    file = tmp_path / "healthy"
    file.touch()
    os.utime(file, (0, 0))
    with Worker("--health-file", str(file)) as worker:
        worker.wait_ready()
        wait_until(lambda: file.stat().st_mtime > 0)


def test_reload_restarts_when_code_changes(probe, tmp_path: Path, monkeypatch):
    """--reload: a changed Python file gives a new worker, which runs the next job."""
    monkeypatch.chdir(tmp_path)
    with Worker("--reload", "--processes", "0") as worker:
        worker.wait_ready()
        tasks.mark.enqueue("before")
        probe.wait_for(1)

        # The watcher needs a moment of its own before it sees anything, and a change each moment
        # would make it start again each moment.
        changed_at = 0.0

        def change_until_it_restarts():
            nonlocal changed_at
            if time.monotonic() - changed_at > 4:
                changed_at = time.monotonic()
                (tmp_path / "code.py").write_text(f"# {changed_at}\n")
            return worker.output.count(worker.READY) >= 2

        wait_until(change_until_it_restarts)
        tasks.mark.enqueue("after")
        probe.wait_for(2)
        worker.signal(signal.SIGINT)
        worker.wait()
    assert probe.marks() == ["before", "after"]


def test_a_paused_queue_waits(probe, client):
    """A paused queue is not served, and is again once resumed, without a restart."""
    with Worker() as worker:
        worker.wait_ready()
        scripts.pause(client, QUEUE, by="ann")
        job = tasks.mark.enqueue("a")
        time.sleep(0.3)  # long enough for a worker that would take it
        assert inspector.state(client, QUEUE, job.id) == "pending"
        scripts.resume(client, QUEUE)
        probe.wait_for(1)


def test_current_job_tells_about_the_job(probe, client):
    """id, token, attempt and queue in the task are the row's."""
    job = tasks.mark_job.using(queue="special").enqueue()
    burst("special")
    assert probe.marks() == [f"{job.id} 1 1 special"]


def test_lease_deadline(probe):
    """The end of the lease lies one lease ahead, the task's own where it has one."""
    emq.enqueue_many([verdicts.mark_deadline.job("a"), verdicts.mark_own_deadline.job("b")])
    burst("--lease", "10")
    ahead = dict(mark.split() for mark in probe.marks())
    assert 8 < float(ahead["a"]) <= 10.1
    assert 58 < float(ahead["b"]) <= 60.1


@pytest.mark.parametrize("processes", ["0", "1"])
def test_lease_deadline_moves(probe, processes):
    """In a job longer than its lease the deadline lies ahead all the same."""
    verdicts.nap_then_mark_deadline.enqueue(1.5, "a")
    burst("--lease", "1", "--processes", processes)
    (mark,) = probe.marks()
    assert 0 < float(mark.split()[1]) <= 1.1


def test_no_current_job_outside():
    """Code that no worker runs has no job, and the error says so."""
    with pytest.raises(emq.NoCurrentJob, match="does not run inside a job"):
        emq.current_job()
