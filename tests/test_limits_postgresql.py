"""A time limit in the middle of a query: the connection is never used again half-way."""

from collections.abc import Iterator

import pytest

import django_emq as emq
from django_emq import inspector
from tests.helpers import QUEUE
from tests.postgres import cluster, connect, databases_of, migrate
from tests.probe import limits
from tests.processes import Worker, wait_until

pytestmark = pytest.mark.postgresql


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The folder of the socket of a cluster of our own; gone at the end."""
    with cluster() as folder:
        migrate(folder, "auth")
        yield folder


@pytest.mark.parametrize("threads", ["1", "2"], ids=["main thread", "thread"])
def test_a_limit_in_the_middle_of_a_query(probe, client, postgres, threads):
    """The query is cancelled on the server, what it was part of is rolled back.

    Jobs that come after it, on the same threads, get the answers to their own questions, from the
    database and from Redis.
    """
    with Worker("--threads", threads, **databases_of(postgres, None)) as worker:
        worker.wait_ready()
        emq.enqueue_many([limits.ask.job(n) for n in range(2)])
        emq.enqueue_many([limits.wait_for_database.job("x") for n in range(2)])
        wait_until(lambda: inspector.totals(client, QUEUE).get("dead") == 2)
        emq.enqueue_many([limits.ask.job(n) for n in range(2, 6)])
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 6)
        with connect(postgres) as admin:
            query = "select count(*) from pg_stat_activity where query like '%pg_sleep(3600%'"
            query += " and pid <> pg_backend_pid() and state = 'active'"
            wait_until(lambda: admin.execute(query).fetchone()[0] == 0)
            assert admin.execute("select to_regclass('half_done')").fetchone()[0] is None
    assert sorted(probe.marks()) == ["0", "1", "2", "3", "4", "5", "x", "x"]
    for row in inspector.page(client, QUEUE, "dead").rows:
        assert row.error.startswith("django_emq.exceptions.TimeLimitExceeded: "), row.error
