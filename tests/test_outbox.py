"""The outbox on SQLite and on PostgreSQL: killed at every point, many relays, order, no server."""

import json
import os
import signal
import threading
from contextlib import contextmanager

import pytest
from django.core.management import call_command
from django.db import connections as databases
from django.db import transaction
from django.db.migrations.executor import MigrationExecutor

import django_emq as emq
from django_emq import connections, inspector, outbox, relay, scripts
from django_emq.connections import Batch
from django_emq.keys import queue_keys
from django_emq.models import Outbox
from django_emq.relay import Relay
from tests import postgres
from tests.helpers import QUEUE
from tests.probe import tasks
from tests.test_on_commit import stored


pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def cluster():
    """The folder of a PostgreSQL of our own."""
    with postgres.cluster() as folder:
        yield folder


@pytest.fixture
def pg(cluster):
    """The alias of an empty outbox on PostgreSQL, for this test alone."""
    databases.settings["pg"] = databases.configure_settings({"default": postgres.entry(cluster)})[
        "default"
    ]
    MigrationExecutor(databases["pg"]).migrate([("django_emq", "0002_outbox")])
    yield "pg"
    Outbox.objects.using("pg").delete()
    databases["pg"].close()
    del databases["pg"]
    del databases.settings["pg"]


@pytest.fixture(params=["sqlite", pytest.param("pg", marks=pytest.mark.postgresql)])
def alias(request):
    """The alias of an empty outbox."""
    return "default" if request.param == "sqlite" else request.getfixturevalue("pg")


@pytest.fixture
def task(alias):
    """A task whose jobs go through that outbox."""
    return tasks.mark.using(outbox=alias)


def rows(alias):
    return list(Outbox.objects.using(alias).order_by("id"))


def drain(client, alias, **options):
    """What a relay does; how many rows it pushed."""
    one = Relay(client, (alias,), **options)
    one.drain(alias)
    return one.pushed


def work(client, queue=QUEUE):
    """Run and finish all jobs that are ready, as a worker would; their ids in order."""
    claims = scripts.claim(client, queue, worker="w", request="r", lease_ms=60_000, count=1000)
    scripts.complete(client, queue, [(job.id, job.token, "") for job in claims.jobs])
    client.raw.delete(queue_keys(queue).claims("w"))
    return [job.id.decode() for job in claims.jobs]


# -- ends of a transaction --------------------------------------------------------------------


def test_stored_with_the_transaction_and_pushed_after_it(client, alias, task):
    """One row a call before the commit, none after it; the jobs in the order of the calls."""
    with transaction.atomic(alias):
        made = [task.enqueue(1), emq.enqueue_in(60, task, 2), *emq.enqueue_many([task.job(3)])]
        assert {job.status for job in made} == {"deferred"}
        assert [row.count for row in rows(alias)] == [1, 1, 1]
        assert len({row.batch for row in rows(alias)}) == 1
        assert stored(client) == []
    assert rows(alias) == []
    assert stored(client) == [job.id for job in made]


def test_rolled_back(client, alias, task):
    """Nothing is left, neither row nor job; the next transaction is not disturbed."""
    with pytest.raises(ZeroDivisionError), transaction.atomic(alias):
        task.enqueue(1)
        raise ZeroDivisionError
    assert (rows(alias), stored(client)) == ([], [])
    with transaction.atomic(alias):
        job = task.enqueue(2)
    assert (rows(alias), stored(client)) == ([], [job.id])


def test_rolled_back_in_part(client, alias, task):
    """What an inner block stored is gone with it, also when it was the first; the rest is there."""
    with transaction.atomic(alias):
        with pytest.raises(ZeroDivisionError), transaction.atomic(alias):
            task.enqueue(1)
            raise ZeroDivisionError
        kept = [task.enqueue(2)]
        with transaction.atomic(alias):
            kept.append(task.enqueue(3))
    assert (rows(alias), stored(client)) == ([], [job.id for job in kept])


def test_outside_of_a_transaction(client, alias, task):
    """Stored, committed and pushed within the call."""
    job = task.enqueue(1)
    assert (rows(alias), stored(client)) == ([], [job.id])


def test_without_autocommit(client, alias, task):
    """There is no commit that Django would tell of: the rows wait for a relay."""
    transaction.set_autocommit(False, alias)
    job = task.enqueue(1)
    transaction.commit(alias)
    transaction.set_autocommit(True, alias)
    assert stored(client) == []
    assert drain(client, alias) == 1
    assert stored(client) == [job.id]


def test_many_jobs_are_few_rows(client, alias, task, monkeypatch):
    """500 jobs, or a quarter of a megabyte, in each; a larger job has a row of its own."""
    monkeypatch.setattr(outbox, "ROW_BYTES", 30_000)
    sizes = [10] * 1100 + [20_000] * 2 + [50_000]
    with transaction.atomic(alias):
        made = emq.enqueue_many(task.job("x" * size) for size in sizes)
        assert [row.count for row in rows(alias)][-3:] == [1, 1, 1]
        assert max(len(row.jobs) for row in rows(alias)[:-1]) < 100_000
        assert sum(row.count for row in rows(alias)) == len(made)
    assert stored(client) == [job.id for job in made]


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


@pytest.mark.parametrize("point", POINTS)
def test_killed_between_commit_and_push(client, alias, task, point):
    """Whatever the point: each committed job is run once, also when it was run and gone at once."""
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
def test_a_relay_is_killed(client, alias, task, monkeypatch, point):
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


# -- many relays ------------------------------------------------------------------------------


@pytest.fixture
def left(monkeypatch):
    """Rows stay in the outbox, as those of a process that was killed after its commit."""
    monkeypatch.setattr(outbox, "_away_until", float("inf"))


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


def test_order_within_a_transaction(client, alias, task, left, monkeypatch):
    """Its calls are sent in their order, over several queues and several pushes."""
    with transaction.atomic(alias):
        made = [task.using(queue=f"q{i % 2}").enqueue(i) for i in range(7)]
    other = task.using(queue="q2").enqueue(7)
    with spying(monkeypatch) as sent:
        assert drain(client, alias, batch=2) == 8
    assert [job_id for job_id in sent if job_id != other.id] == [job.id for job in made]


def test_two_relays_at_once(client, alias, task, left):
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


@pytest.mark.postgresql
def test_what_another_relay_holds_is_passed_over(client, cluster, pg, left):
    """Neither waited for nor overtaken: of its transaction nothing is pushed by anybody else."""
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


def test_a_push_that_comes_late_is_void(client, alias, task, left, monkeypatch):
    """A relay that slept between reading and sending runs nothing again.

    Meanwhile another one has pushed and deleted the row, the job is done, and the server has
    forgotten the row.
    """
    job = task.enqueue(1)
    stale = rows(alias)
    void_at = outbox._now_ms(client) - 1
    assert drain(client, alias) == 1
    assert work(client) == [job.id]
    key = queue_keys(QUEUE).sent(job.id)
    assert 0 < client.raw.pttl(key) <= outbox.GRACE_MS
    assert outbox.GRACE_MS > outbox.VOID_MS
    client.raw.delete(key)
    taken, error = outbox._send(client, stale, void_at)
    assert taken == []
    assert isinstance(error, emq.ServerRefused)
    assert work(client) == []


def test_a_row_is_remembered_until_it_is_deleted(client, alias, task, left, monkeypatch):
    """For as long as a relay may find it: not for the two minutes of an ordinary call."""
    job = task.enqueue(1)
    monkeypatch.setattr(scripts, "forget", lambda *args, **kwargs: None)
    drain(client, alias)
    days = client.raw.pttl(queue_keys(QUEUE).sent(job.id)) / outbox.DAY_MS
    assert 29 < days <= 30


def test_the_time_is_asked_for_before_the_rows_are_read(client, alias, task, left):
    """Else a push could outlive the memory of its row by the time that reading took."""
    task.enqueue(1)
    asked = []

    def choose(found):
        asked.append(outbox._now_ms(client))
        return list(found.order_by("id"))

    sent = []
    real = outbox._send
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outbox, "_send", lambda c, r, void: sent.append(void) or real(c, r, void))
        outbox.push(client, alias, choose)
    assert sent[0] - outbox.VOID_MS <= asked[0]


# -- what goes wrong --------------------------------------------------------------------------


def test_the_server_is_away_at_the_commit(lone, client, alias, task, caplog, monkeypatch):
    """Nothing is lost, the caller sees no error, and the log has one line."""
    monkeypatch.setattr(outbox, "_away_until", 0.0)
    lone.stop()
    with transaction.atomic(alias):
        one = task.enqueue(1)
    two = task.enqueue(2)
    assert [row.count for row in rows(alias)] == [1, 1]
    assert len([line for line in caplog.messages if line.startswith("outbox: ")]) == 1
    lone.restart()
    assert drain(client, alias) == 2
    assert stored(client) == [one.id, two.id]


def test_the_database_fails_after_the_commit(client, alias, task, caplog, monkeypatch):
    """The jobs are committed: the caller sees no error, and a relay pushes them."""

    def broken(*args, **kwargs):
        raise databases[alias].Database.OperationalError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(outbox, "_send", broken)
        with transaction.atomic(alias):
            job = task.enqueue(1)
    assert "a push after a commit failed" in caplog.text
    assert drain(client, alias) == 1
    assert stored(client) == [job.id]


def test_a_queue_that_is_refused_does_not_hold_up_others(client, alias, task, left):
    """Its rows stay; those of other transactions are pushed."""
    client.raw.set(queue_keys("broken").pending, "no zset")
    task.using(queue="broken").enqueue(1)
    job = task.enqueue(2)
    with pytest.raises(emq.EmqError):
        drain(client, alias)
    assert work(client) == [job.id]
    assert [row.queue for row in rows(alias)] == ["broken"]
    client.raw.delete(queue_keys("broken").pending)
    assert drain(client, alias) == 1


def test_a_row_that_cannot_be_read_stays(client, alias, task, left, caplog):
    """It is told of, and those beside it are pushed."""
    task.enqueue(1)
    Outbox.objects.using(alias).update(jobs="[[")
    job = task.enqueue(2)
    assert drain(client, alias) == 1
    assert work(client) == [job.id]
    assert len(rows(alias)) == 1
    assert "cannot be read, and stays" in caplog.text


# -- who relays -------------------------------------------------------------------------------


def relays():
    return [thread for thread in threading.enumerate() if thread.name == "emq-relay"]


@pytest.mark.parametrize(
    ("setting", "aliases"),
    [
        ({}, ()),
        ({"OUTBOX": True}, ("default",)),
        ({"OUTBOX": "other"}, ("other",)),
        ({"OUTBOX": "other", "QUEUES": {"a": {"OUTBOX": True}}}, ("other", "default")),
    ],
)
def test_who_is_watched(client, settings, monkeypatch, setting, aliases):
    """What the settings name, and nothing where they name none: no query and no thread."""
    settings.EMQ = {**settings.EMQ, **setting}
    assert relay.watched() == aliases
    monkeypatch.setattr(Relay, "run", lambda self: self._stop.wait())
    with relay.relaying(client):
        assert len(relays()) == bool(aliases)
    with relay.relaying(client, enabled=False):
        assert relays() == []
