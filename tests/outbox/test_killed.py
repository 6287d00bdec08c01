"""The outbox on SQLite and on PostgreSQL: killed at every point, many relays, order."""

import json
import os
import signal
import threading
from contextlib import contextmanager

import pytest
from django.db import connections as databases
from django.db import transaction

import django_emq as emq
from django_emq import connections, inspector, outbox, scripts
from django_emq.batches import Batch
from tests import postgres
from tests.helpers import QUEUE
from tests.outbox.boxes import drain, on_sqlite, rows, work
from tests.probe import tasks
from tests.test_on_commit import rolled_back, stored

# -- killed -----------------------------------------------------------------------------------


def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


def killed(work):
    """Do `work` in a copy of this process that ends by SIGKILL."""
    databases.close_all()  # a copy of a connection must not be used
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def after(owner, name):
    """Replace a function by one that does the same, and then kills the process."""
    real = getattr(owner, name)

    def last(*args, **kwargs):
        real(*args, **kwargs)
        die()

    setattr(owner, name, last)


# What is done to the process that stores the rows, and whether the jobs are on the server then.
POINTS = {
    "inside the transaction": (lambda: None, None),
    "after the commit": (lambda: setattr(outbox, "push", die), False),
    "before the push": (lambda: setattr(Batch, "send", die), False),
    "after the push": (lambda: after(Batch, "send"), True),
    "after the delete": (lambda: setattr(scripts, "forget", die), True),
}


@contextmanager
def spying(monkeypatch):
    """The ids of the first jobs of all rows, in the order in which they are sent."""
    sent, real = [], scripts.enqueue

    def enqueue(client, queue, jobs, **options):
        sent.append(options["request"])
        return real(client, queue, jobs, **options)

    with monkeypatch.context() as patch:
        patch.setattr(scripts, "enqueue", enqueue)
        yield sent


class Cases:
    """What holds on every database."""

    def test_stored_with_the_transaction_and_pushed_after_it(self, client, alias, task):
        """One row a call before the commit, none after it; the jobs in the order of the calls."""
        with transaction.atomic(alias):
            made = [task.enqueue(1), emq.enqueue_in(60, task, 2), *emq.enqueue_many([task.job(3)])]
            assert {job.status for job in made} == {"deferred"}
            assert [row.count for row in rows(alias)] == [1, 1, 1]
            assert len({row.batch for row in rows(alias)}) == 1
            assert stored(client) == []
        assert rows(alias) == []
        assert stored(client) == [job.id for job in made]

    def test_rolled_back_in_part(self, client, alias, task):
        """What an inner block stored is gone with it, though it was the first."""
        with transaction.atomic(alias):
            with rolled_back(alias):
                task.enqueue(1)
            kept = [task.enqueue(2)]
            with transaction.atomic(alias):
                kept.append(task.enqueue(3))
        assert (rows(alias), stored(client)) == ([], [job.id for job in kept])

    @pytest.mark.parametrize("point", POINTS)
    def test_killed_between_commit_and_push(self, client, alias, task, point):
        """Whatever the point: each committed job runs once, though it was run and gone before."""
        plant, pushed = POINTS[point]

        def produce():
            plant()
            with transaction.atomic(alias):
                task.enqueue(1)
                task.enqueue(2)
                if pushed is None:
                    die()

        killed(produce)
        left = rows(alias)
        ids = [json.loads(row.jobs)[0][0] for row in left]
        assert len(left) == (0 if pushed is None or point == "after the delete" else 2)
        ran = work(client)
        assert len(ran) == (2 if pushed else 0)
        drain(client, alias)
        ran += work(client)
        assert rows(alias) == []
        assert len(ran) == (0 if pushed is None else 2)
        assert ids in ([], ran)

    @pytest.mark.parametrize("point", ["before the push", "after the push"])
    def test_a_relay_is_killed(self, client, alias, task, monkeypatch, point):
        """What it held is free at once; the next one pushes it, and nothing runs twice."""
        monkeypatch.setattr(outbox, "_away_until", float("inf"))
        made = emq.enqueue_many(task.job(i) for i in range(3))

        def relay_and_die():
            POINTS[point][0]()
            drain(connections.client(), alias)

        killed(relay_and_die)
        assert len(rows(alias)) == 1
        ran = work(client)
        drain(client, alias)
        assert ran + work(client) == [job.id for job in made]
        assert rows(alias) == []

    def test_order_within_a_transaction(self, client, alias, task, left, monkeypatch):
        """Its calls are sent in their order, over several queues and several pushes."""
        with transaction.atomic(alias):
            made = [task.using(queue=f"q{i % 2}").enqueue(i) for i in range(7)]
        other = task.using(queue="q2").enqueue(7)
        with spying(monkeypatch) as sent:
            assert drain(client, alias, batch=2) == 8
        assert [job_id for job_id in sent if job_id != other.id] == [job.id for job in made]

    def test_two_relays_at_once(self, client, alias, task, left):
        """Each job is enqueued once, and nothing is left."""
        made = []
        for i in range(40):
            with transaction.atomic(alias):
                made += [task.enqueue(i), task.enqueue(i)]
        start = threading.Barrier(2)
        raised = []

        def one():
            try:
                start.wait()
                drain(client, alias, batch=3)
            except Exception as error:
                raised.append(error)
            finally:
                databases.close_all()

        threads = [threading.Thread(target=one) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert raised == []
        assert rows(alias) == []
        assert work(client) == [job.id for job in made]
        assert inspector.totals(client, QUEUE)["enqueued"] == 80


@on_sqlite
class TestOnSQLite(Cases):
    """Where a row cannot be locked: relays may push the same rows, which the server notices."""


@pytest.mark.postgresql
class TestOnPostgreSQL(Cases):
    """Where relays pass over what another one holds."""

    @pytest.fixture
    def alias(self, pg):
        """The alias of an empty outbox on PostgreSQL."""
        return pg

    def test_what_another_relay_holds_is_passed_over(self, client, cluster, pg, left):
        """Neither waited for nor overtaken: nobody else pushes of its transaction."""
        task = tasks.mark.using(outbox=pg)
        with transaction.atomic(pg):
            held = [task.enqueue(1), task.enqueue(2)]
        free = task.enqueue(3)
        first = rows(pg)[0]
        with postgres.connect(cluster) as other, other.transaction():
            query = "select 1 from django_emq_outbox where id = %s for update"
            assert other.execute(query, [first.id]).fetchone()
            assert drain(client, pg) == 1
            assert work(client) == [free.id]
        assert drain(client, pg) == 2
        assert work(client) == [job.id for job in held]
