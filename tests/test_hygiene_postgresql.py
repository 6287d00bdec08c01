"""Connections to a real PostgreSQL: cut, broken, left open, counted."""

import time
from collections.abc import Iterator

import psycopg
import pytest

import django_emq as emq
from django_emq import inspector
from tests.helpers import QUEUE, burst
from tests.postgres import cluster, connect, databases_of, entry, migrate
from tests.probe import state, tasks
from tests.processes import Worker, wait_until
from tests.variant import variant

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
    sessions = "select pid, pg_terminate_backend(pid) from pg_stat_activity"
    pids = [pid for pid, _ in admin.execute(f"{sessions} where application_name = 'worker'")]
    left = "select count(*) from pg_stat_activity where pid = any(%s)"
    wait_until(lambda: admin.execute(left, [pids]).fetchone() == (0,))
    return len(pids)


POOL = {"min_size": 1, "max_size": 4}


def settings_of(folder: str, way: int | str | None) -> dict[str, str]:
    """Of a worker whose connections live so long, or are those of a pool; two aliases."""
    options = {"application_name": "worker", **({"pool": POOL} if way == "pool" else {})}
    made = entry(folder, CONN_MAX_AGE=0 if way == "pool" else way, OPTIONS=options)
    return variant(DATABASES={"default": made, "other": made})


@pytest.mark.parametrize("way", [0, 60, None, "pool"])
def test_B104_database_connection_died_while_the_worker_was_idle(
    probe, client, postgres, admin, way
):
    """The first job after the cut succeeds at its first attempt, on each alias.

    A cut in the middle of a job fails that job, which is retried as usual, and no other.
    """
    with Worker(**settings_of(postgres, way)) as worker:
        worker.wait_ready()
        state.count_groups.enqueue("before", ["default", "other"])
        probe.wait_for(2)
        time.sleep(1.2)  # a night, for a worker
        assert (cut(admin) > 0) is (way != 0)
        state.count_groups.enqueue("after", ["default", "other"])
        assert [mark[:8] for mark in probe.wait_for(4)[2:]] == ["after 0 "] * 2
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 2)
        assert inspector.totals(client, QUEUE).get("failed", 0) == 0
        emq.enqueue_many([state.cut_then_count.job("cut"), state.count_groups.job("next")])
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 4)
        worker.terminate()
        assert worker.wait() == 0
    assert sorted(mark.split()[0] for mark in probe.marks()[4:]) == ["cut", "next"]
    assert inspector.totals(client, QUEUE)["failed"] == 1
    wait_until(lambda: connected(admin) == 0)


def test_a_pool_is_not_shared_over_the_fork(probe, client, postgres, admin, monkeypatch):
    """The supervisor has used it before; each child makes its own, and one that dies takes none."""
    monkeypatch.setenv("PROBE_QUERY_AT_START", "1")
    with Worker("--processes", "2", **settings_of(postgres, "pool")) as worker:
        worker.wait_ready()
        assert connected(admin) == 0
        emq.enqueue_many(state.count_groups.job(i) for i in range(20))
        tasks.die.using(max_stalls=1).enqueue()
        emq.enqueue_many(state.count_groups.job(i) for i in range(20))
        probe.wait_for(40)
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 40)
        worker.terminate()
        assert worker.wait() == 0, worker.output
    assert all(mark.split()[1] == "0" for mark in probe.marks())
    assert inspector.totals(client, QUEUE).get("failed", 0) == 0


@pytest.mark.parametrize("processes", ["0", "1"])
def test_more_threads_than_a_pool_has(probe, client, postgres, admin, processes):
    """A thread gives its connection back after each job, broken or not, so all get their turn."""
    for kind in KINDS:
        emq.enqueue_many(state.break_transaction.job(kind) for _ in range(3))
        emq.enqueue_many(state.count_groups.job("good") for _ in range(20))
    options = ("--burst", "--threads", "6", "--processes", processes)
    with Worker(*options, **settings_of(postgres, "pool")) as worker:
        assert worker.wait() == 0, worker.output
    assert len([mark for mark in probe.marks() if mark.startswith("good 0 ")]) == 100
    totals = inspector.totals(client, QUEUE)
    assert (totals["completed"], totals["failed"]) == (112, 3)  # those of "failed query"
    assert admin.execute("select count(*) from auth_group").fetchone()[0] == 0


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
