"""One effect, whatever kills a run at whichever point, and whoever runs beside it."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import pytest
from django.db import connection

import django_emq as emq
from django_emq import inspector, scripts
from tests.conformance.wire import books_balance
from tests.helpers import QUEUE, lease_ends
from tests.postgres import cluster, connect, databases_of, migrate
from tests.probe.effects import charge
from tests.processes import Worker, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


class Database(NamedTuple):
    """Where the effects of a test are."""

    kind: str
    env: dict[str, str]  # of a worker that uses it
    query: Callable[[str], list[Any]]

    def charges(self, number: str) -> list[str]:
        """Tokens of the runs whose charge was committed."""
        rows = self.query(f"select text from probe_invoice where number = '{number}'")
        return [text for (text,) in rows]


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with cluster() as folder:
        migrate(folder, "--run-syncdb")
        yield folder


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def database(request) -> Iterator[Database]:
    if request.param == "sqlite":

        def query(sql: str) -> list[Any]:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return cursor.fetchall()

        yield Database("sqlite", {}, query)
        return
    folder = request.getfixturevalue("postgres")
    with closing(connect(folder)) as admin:
        yield Database(
            "postgresql", databases_of(folder, 0), lambda sql: admin.execute(sql).fetchall()
        )
        admin.execute("truncate probe_invoice, django_emq_effect")


def completed(client, count: int) -> None:
    wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == count)


# Where the first run is killed, and the token of the run whose charge is then found: inside of its
# own transaction, and where all of the task is in one, which is committed at its end.
PLACES = {"before": 2, "entered": 2, "inside": 2, "after": 1, "settling": 1}
OUTER = {"inside": 2, "after": 2, "settling": 1}


@pytest.mark.parametrize("outer", [False, True])
def test_a_run_killed_at_any_point(probe, client, database, outer):
    """Before the COMMIT the next run makes the charge; after it, the next run finds it made."""
    places = OUTER if outer else PLACES
    emq.enqueue_many(charge.job(place, f"die {place}", outer) for place in places)
    with Worker("--processes", "3", **database.env) as worker:
        completed(client, len(places))
        worker.terminate()
        assert worker.wait() == 0
    assert worker.output.count("ended by signal 9") == len(places)
    found = {place: database.charges(place) for place in places}
    assert found == {place: [str(by)] for place, by in places.items()}
    seen = {mark for mark in probe.marks() if mark.endswith(" in 2")}
    assert seen == {f"{place} by {by} in 2" for place, by in places.items()}
    books_balance(client, QUEUE)


def test_a_worker_killed_between_two_heartbeats(probe, client, database):
    """All its processes at once, in the middle of a transaction that outlives several leases."""
    with Worker("--lease", "1", **database.env) as worker:
        job = charge.enqueue("a", "hold inside")
        wait_until(lambda: any("reached" in mark for mark in probe.marks()))
        ends = set()
        while len(ends) < 3:
            ends.add(lease_ends(client, job.id))
            time.sleep(0.01)
        worker.kill_all()
    with Worker("--lease", "1", **database.env):
        completed(client, 1)
    assert database.charges("a") == ["2"]
    assert probe.marks()[-1] == "a by 2 in 2"


def blocked(database) -> bool:
    """Whether PostgreSQL has a session that waits for another one's transaction."""
    sql = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
    return database.kind == "sqlite" or database.query(sql) == [(1,)]


# What becomes of a run that was taken away in the middle of its transaction, and which run charges.
ENDINGS = {"hold inside": "first", "fail inside": "next", "killed inside": "next"}


def test_a_late_run_beside_the_next_one(probe, client, database):
    """The next run waits for the transaction of the late one; one of the two makes the charge.

    A late run that comes to its effect when all is over finds it recorded, with its value.
    """

    def take_away(number: str, point: str) -> str:
        job = charge.enqueue(number, point)
        reached = f"{number} reached {point.split()[1]} in "
        wait_until(lambda: any(reached in mark for mark in probe.marks()))
        assert scripts.requeue(client, QUEUE, [job.id]) == [1]
        return re.findall(rf"{reached}(\d+)", "\n".join(probe.marks()))[0]

    def let_go(number: str) -> None:
        probe.path.with_name(f"{probe.path.name}.{number}").touch()

    def next_run(number: str) -> str | None:
        """Token of the run after the first: 3, or more where a busy child handed the job back."""
        entered = re.findall(rf"{number} enters (\d+)", "\n".join(probe.marks()))
        return next((token for token in entered if token != "1"), None)

    with Worker("--processes", "2", "--lease", "60", **database.env) as worker:
        worker.wait_ready()
        for count, (point, who) in enumerate(ENDINGS.items(), 1):
            number = point.split()[0]
            pid = take_away(number, point)
            wait_until(lambda number=number: next_run(number))
            later = next_run(number)
            by = "1" if who == "first" else later
            wait_until(lambda: blocked(database), what="a session that waits")
            assert not any(mark.startswith(f"{number} by") for mark in probe.marks())
            os.kill(int(pid), signal.SIGKILL) if number == "killed" else let_go(number)
            completed(client, count)
            assert database.charges(number) == [by]
            assert f"{number} by {by} in {later}" in probe.marks()
        take_away("late", "hold before")
        completed(client, len(ENDINGS) + 1)
        let_go("late")
        by = next_run("late")
        wait_until(lambda: probe.marks()[-1] == f"late by {by} in 1")
        assert database.charges("late") == [by]
    assert "hold by 1 in 1" in probe.marks()
    books_balance(client, QUEUE)
