"""Connections to a real PostgreSQL: cut, broken, left open, counted."""

import time
from collections.abc import Iterator

import psycopg
import pytest

import django_emq as emq
from django_emq import inspector
from tests.helpers import QUEUE, burst
from tests.postgres import cluster, connect, databases_of, migrate
from tests.probe import state, tasks
from tests.processes import Worker, wait_until

pytestmark = pytest.mark.postgresql


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The folder of the socket of a cluster of our own, migrated; gone at the end."""
    with cluster() as folder:
        migrate(folder, "auth")
        yield folder


@pytest.fixture
def admin(postgres) -> Iterator[psycopg.Connection]:
    """A connection of our own, to look and to cut others."""
    with connect(postgres) as connection:
        yield connection
        connection.execute("delete from auth_group")


def connected(admin) -> int:
    """How many connections workers have."""
    query = "select count(*) from pg_stat_activity where application_name = 'worker'"
    return admin.execute(query).fetchone()[0]


def cut(admin) -> int:
    """Have the server end all connections of workers; how many."""
    query = (
        "select count(pg_terminate_backend(pid)) from pg_stat_activity "
        "where application_name = 'worker'"
    )
    count = admin.execute(query).fetchone()[0]
    wait_until(lambda: connected(admin) == 0)
    return count


@pytest.mark.parametrize("age", [0, 60, None])
def test_a_connection_cut_while_idle(probe, client, postgres, admin, age):
    """B104: the first job after the cut succeeds at its first attempt."""
    with Worker(**databases_of(postgres, age)) as worker:
        worker.wait_ready()
        state.count_groups.enqueue("before")
        probe.wait_for(1)
        time.sleep(1.2)  # a night, for a worker
        assert cut(admin) == (0 if age == 0 else 1)
        state.count_groups.enqueue("after")
        assert probe.wait_for(2)[1].startswith("after 0 ")
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 2)
    assert inspector.totals(client, QUEUE).get("failed", 0) == 0


@pytest.mark.parametrize("age", [0, 60, None])
def test_a_connection_cut_in_the_middle_of_a_job(probe, client, postgres, age):
    """B104: that job fails and is retried as usual, the next one does not notice."""
    emq.enqueue_many([state.cut_then_count.job("cut"), state.count_groups.job("next")])
    burst(**databases_of(postgres, age))
    assert sorted(mark.split()[0] for mark in probe.marks()) == ["cut", "next"]
    totals = inspector.totals(client, QUEUE)
    assert (totals["completed"], totals["failed"]) == (2, 1)


KINDS = ["failed query", "autocommit", "aborted", "cursor", "closed"]


@pytest.mark.parametrize(("age", "threads"), [(0, "3"), (60, "1"), (60, "3")])
def test_B105_broken_transaction_passes_to_the_next_job(
    probe, client, postgres, admin, age, threads
):
    """Good jobs after it succeed at their first attempt, and its rows are rolled back."""
    for kind in KINDS:
        emq.enqueue_many(state.break_transaction.job(kind) for _ in range(3))
        emq.enqueue_many(state.count_groups.job("good") for _ in range(6))
    burst("--threads", threads, **databases_of(postgres, age))
    marks = probe.marks()
    assert [marks.count(kind) for kind in KINDS] == [3] * 5
    assert len([mark for mark in marks if mark.startswith("good 0 ")]) == 30
    totals = inspector.totals(client, QUEUE)
    assert (totals["completed"], totals["failed"]) == (42, 3)  # those of "failed query"
    assert admin.execute("select count(*) from auth_group").fetchone()[0] == 0


def test_a_search_path_is_gone_with_its_connection(probe, client, postgres):
    """B105: with CONN_MAX_AGE 0, Django's default, nothing of a session reaches the next job."""
    jobs = [state.break_transaction.job("search path"), state.count_groups.job("good")]
    emq.enqueue_many(jobs)
    burst(**databases_of(postgres, 0))
    assert probe.marks()[1].startswith("good 0 ")


@pytest.mark.parametrize("age", [0, 60])
def test_B67_database_connections_of_worker_threads(probe, client, postgres, admin, age):
    """Never more than one for each thread, none when they idle at age 0, none afterwards."""
    most = 0
    with Worker("--threads", "4", **databases_of(postgres, age)) as worker:
        worker.wait_ready()
        emq.enqueue_many(state.count_groups.job(i) for i in range(200))
        while len(probe.marks()) < 200:
            most = max(most, connected(admin))
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 200)
        if age == 0:
            wait_until(lambda: connected(admin) == 0)
        else:
            assert 1 <= connected(admin) <= 4
        worker.terminate()
        assert worker.wait() == 0
    assert most <= 5
    wait_until(lambda: connected(admin) == 0)
    if age:
        assert len({mark.split()[2] for mark in probe.marks()}) <= 4


def test_connections_of_async_jobs(probe, client, postgres, admin):
    """Queries of async jobs use one thread; its connection is closed again."""
    with Worker(**databases_of(postgres, 0)) as worker:
        worker.wait_ready()
        emq.enqueue_many(state.acount_groups.job(i) for i in range(20))
        probe.wait_for(20)
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 20)
        wait_until(lambda: connected(admin) == 0)


def test_nothing_is_shared_over_the_fork(probe, postgres, admin, monkeypatch):
    """Supervisor and child never speak over one session; a dead child takes none with it."""
    monkeypatch.setenv("PROBE_QUERY_AT_START", "1")
    with Worker("--processes", "2", **databases_of(postgres, None)) as worker:
        worker.wait_ready()
        emq.enqueue_many(state.count_groups.job(i) for i in range(20))
        tasks.die.using(max_stalls=1).enqueue()
        emq.enqueue_many(state.count_groups.job(i) for i in range(20))
        probe.wait_for(40)
    assert all(mark.split()[1] == "0" for mark in probe.marks())
