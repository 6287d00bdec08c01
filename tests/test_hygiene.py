"""What a job leaves behind does not reach the next one: state of the process, SQLite."""

import os

import pytest

import django_emq as emq
from django_emq import inspector
from tests.helpers import QUEUE, burst, children, is_running
from tests.probe import state, tasks
from tests.processes import Worker, wait_until
from tests.variant import variant


def databases(**options):
    """SQLite settings of a worker, on the file of the tests."""
    base = {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["EMQ_DB"]}
    return variant(DATABASES={"default": {**base, **options}})


# -- language, zone, context ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [("--processes", "0"), ("--processes", "1"), ("--threads", "4")]
)
def test_B110_language_and_zone_leak_into_the_next_job(probe, options):
    """Language, time zone, context variables and decimal context are as before, also on errors."""
    emq.enqueue_many(state.look.job("seen") for _ in range(4))
    for fail in (False, True):
        emq.enqueue_many(state.paint.job("painted", fail=fail) for _ in range(4))
        emq.enqueue_many(state.look.job("seen") for _ in range(8))
    burst(*options)
    marks = probe.marks()
    assert marks.count("painted") == 8
    assert {mark for mark in marks if mark != "painted"} == {"seen en UTC none 30"}


def test_an_async_job_leaves_no_colour(probe):
    """Each async job has a context of its own."""
    emq.enqueue_many([state.apaint.job("painted"), state.alook.job("seen")])
    emq.enqueue_many([state.apaint.job("painted"), state.alook.job("seen")])
    burst()
    seen = {mark for mark in probe.marks() if mark != "painted"}
    assert len(seen) == 1
    assert seen.pop().startswith("seen en UTC none ")


# -- threads and forks ---------------------------------------------------------------------------


def test_B115_fork_while_a_thread_holds_a_lock(probe, client):
    """A thread of the supervisor logs without end while it forks; children are replaced often.

    500 jobs that log run, and no process is left over.
    """
    emq.enqueue_many(state.log_and_mark.job(i) for i in range(500))
    options = ("--processes", "2", "--max-jobs", "50")
    # Newer Pythons warn of such a fork, which is what is tried here.
    calm = {"PYTHONWARNINGS": "ignore", "LOG_LEVEL": "ERROR"}
    with Worker(*options, PROBE_CALL="log_without_end", **calm) as worker:
        probe.wait_for(500)
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 500)
        left = children(worker.pid)
        worker.terminate()
        assert worker.wait() == 0, worker.output
    assert sorted(map(int, probe.marks())) == list(range(500))
    assert inspector.totals(client, QUEUE).get("reaped", 0) == 0
    assert not any(is_running(pid) for pid in left)


# -- connections to a database -------------------------------------------------------------------


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Lines 'pid thread', one for each database connection that a worker process opens."""
    path = tmp_path / "opened"
    path.touch()
    monkeypatch.setenv("PROBE_CONNECTIONS", str(path))
    return lambda: [tuple(map(int, line.split())) for line in path.read_text().splitlines()]


def test_a_job_without_a_database_touches_none(probe, opened, transactional_db):
    """No connection is opened for jobs that need none, sync or async, in threads or not."""
    with Worker("--threads", "2") as worker:
        worker.wait_ready()
        emq.enqueue_many(tasks.mark.job(i) for i in range(50))
        emq.enqueue_many(tasks.aprobe.job(i) for i in range(50))
        probe.wait_for(100)
        worker.terminate()
        assert worker.wait() == 0
    assert opened() == []


@pytest.mark.parametrize(("age", "count"), [(0, 3), (600, 1), (None, 1)])
def test_connections_live_as_long_as_django_says(probe, opened, transactional_db, age, count):
    """CONN_MAX_AGE holds for jobs as for requests."""
    with Worker(**databases(CONN_MAX_AGE=age)) as worker:
        worker.wait_ready()
        for i in range(3):
            state.count_groups.enqueue(i)
            probe.wait_for(2 * i + 1)
            state.mark_open_connections.enqueue()
            probe.wait_for(2 * i + 2)
    assert len(opened()) == count
    assert probe.marks()[1::2] == [f"open {0 if age == 0 else 1}"] * 3


def test_no_connection_is_shared_over_the_fork(probe, opened, transactional_db, monkeypatch):
    """A connection of the supervisor stays with it; the child opens its own."""
    monkeypatch.setenv("PROBE_QUERY_AT_START", "1")
    with Worker(**databases(CONN_MAX_AGE=None)) as worker:
        worker.wait_ready()
        assert {pid for pid, _ in opened()} == {worker.pid}
        state.count_groups.enqueue("a")
        probe.wait_for(1)
        (child,) = children(worker.pid)
        assert [pid for pid, _ in opened()].count(child) == 1


@pytest.mark.parametrize("age", [0, 600, None])
def test_a_broken_connection_does_not_reach_the_next_job(probe, client, transactional_db, age):
    """B105 on SQLite: the good jobs succeed at their first attempt."""
    from django.contrib.auth.models import Group

    kinds = ["failed query", "autocommit", "aborted", "cursor"]
    if age == 0:
        kinds.append("closed")  # Django itself would keep a dead SQLite connection at other ages
    for kind in kinds:
        emq.enqueue_many([state.break_transaction.job(kind), state.count_groups.job("good")])
    burst(**databases(CONN_MAX_AGE=age))
    assert [" ".join(mark.split()[:2]) for mark in probe.marks()[1::2]] == ["good 0"] * len(kinds)
    assert probe.marks()[::2] == kinds
    assert inspector.totals(client, QUEUE)["completed"] == 2 * len(kinds) - 1
    assert Group.objects.count() == 0


def test_async_jobs_may_use_the_database(probe, client, transactional_db):
    """Queries of async jobs run in Django's thread for them, whose connection is looked after."""
    emq.enqueue_many(state.acount_groups.job(i) for i in range(5))
    burst(**databases(CONN_MAX_AGE=0))
    assert sorted(probe.marks()) == [f"{i} 0" for i in range(5)]
    wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 5)
