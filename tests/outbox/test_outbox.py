"""The outbox without a crash: ends of transactions, the push, and what goes wrong."""

import pytest
from django.db import connections as databases
from django.db import transaction
from django.test import TestCase

import django_emq as emq
from django_emq import connections, outbox, relay, scripts
from django_emq.keys import queue_keys
from django_emq.models import Outbox
from tests.helpers import QUEUE, point_at
from tests.outbox.boxes import drain, on_sqlite, rows, work
from tests.probe import tasks
from tests.test_on_commit import rolled_back, stored

# -- ends of a transaction --------------------------------------------------------------------


@on_sqlite
def test_rolled_back(client, alias, task):
    """Nothing is left, neither row nor job; the next transaction is not disturbed."""
    with rolled_back(alias):
        task.enqueue(1)
    assert (rows(alias), stored(client)) == ([], [])
    with transaction.atomic(alias):
        job = task.enqueue(2)
    assert (rows(alias), stored(client)) == ([], [job.id])


@on_sqlite
def test_outside_of_a_transaction(client, alias, task):
    """Stored, committed and pushed within the call."""
    job = task.enqueue(1)
    assert (rows(alias), stored(client)) == ([], [job.id])


@on_sqlite
def test_without_autocommit(client, alias, task):
    """There is no commit that Django would tell of: the rows wait for a relay."""
    transaction.set_autocommit(False, alias)
    job = task.enqueue(1)
    transaction.commit(alias)
    transaction.set_autocommit(True, alias)
    assert stored(client) == []
    assert drain(client, alias) == 1
    assert stored(client) == [job.id]


@on_sqlite
def test_many_jobs_are_few_rows(client, alias, task, monkeypatch):
    """500 jobs in each, or a bound of bytes; a job that is larger has a row of its own."""
    with transaction.atomic():
        made = emq.enqueue_many(task.job(i) for i in range(1100))
        assert [row.count for row in rows(alias)] == [500, 500, 100]
        monkeypatch.setattr(outbox, "ROW_BYTES", 1000)
        made += emq.enqueue_many(task.job("x" * size) for size in (400, 400, 400, 2000, 400))
        assert [row.count for row in rows(alias)][3:] == [2, 1, 1, 1]
    assert stored(client) == [job.id for job in made]


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_two_databases(client):
    """The row is in the database that is named, and follows its commit alone."""
    task = tasks.mark.using(outbox="other")
    with transaction.atomic("other"):
        with rolled_back():
            job = task.enqueue(1)
        assert (len(rows("other")), rows("default"), stored(client)) == (1, [], [])
    assert (rows("other"), stored(client)) == ([], [job.id])
    with transaction.atomic():
        with rolled_back("other"):
            task.enqueue(2)
        alone = task.enqueue(3)  # no transaction is open there
        assert stored(client) == [job.id, alone.id]


class Reads:
    """A router that writes the outbox to one database."""

    def db_for_write(self, model, **hints):
        return "other" if model is Outbox else None


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_router_says_where(client, settings):
    """True is the database that the routers write it to."""
    settings.DATABASE_ROUTERS = [Reads()]
    settings.EMQ = {**settings.EMQ, "OUTBOX": True}
    with transaction.atomic("other"):
        job = tasks.mark.enqueue(1)
        assert (len(rows("other")), rows("default"), stored(client)) == (1, [], [])
    assert stored(client) == [job.id]
    assert relay.watched() == ("other",)


@on_sqlite
@pytest.mark.parametrize(
    ("option", "where"),
    [
        ({}, "outbox"),
        ({"outbox": False}, "server"),
        ({"on_commit": False}, "server"),
        ({"on_commit": True}, "memory"),
        ({"on_commit": True, "outbox": True}, "outbox"),
    ],
)
def test_what_goes_before_what(client, settings, option, where):
    """The call before the settings, the outbox before on_commit."""
    settings.EMQ = {**settings.EMQ, "OUTBOX": True}
    with rolled_back():
        tasks.mark.using(**option).enqueue(1)
        found = {"outbox": len(rows("default")), "server": len(stored(client))}
        assert {name for name, count in found.items() if count} == {where} - {"memory"}


class InATestCase(TestCase):
    """Where the commit never comes, what is captured is pushed, and only that."""

    def test_captured_and_run(self):
        """Also beside rows that were stored before, in the same transaction."""
        client = connections.client()
        task = tasks.mark.using(outbox=True)
        task.enqueue("not captured")
        with self.captureOnCommitCallbacks(execute=True):
            made = [task.enqueue(1), task.enqueue(2)]
        assert stored(client) == [job.id for job in made]
        assert len(rows("default")) == 1


# -- the push ---------------------------------------------------------------------------------


@on_sqlite
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
    assert "came too late" in str(error)
    assert work(client) == []


@on_sqlite
def test_a_row_is_remembered_until_it_is_deleted(client, alias, task, left, monkeypatch):
    """For as long as a relay may find it: not for the two minutes of an ordinary call."""
    job = task.enqueue(1)
    monkeypatch.setattr(scripts, "forget", lambda *args, **kwargs: None)
    drain(client, alias)
    days = client.raw.pttl(queue_keys(QUEUE).sent(job.id)) / outbox.DAY_MS
    assert 29 < days <= 30


@on_sqlite
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


@on_sqlite
def test_the_server_is_away_at_the_commit(settings, server, alias, task, caplog, monkeypatch):
    """Nothing is lost, the caller sees no error, and the log has one line."""
    monkeypatch.setattr(outbox, "_away_until", 0.0)
    point_at(settings, "redis://127.0.0.1:1/0")
    with transaction.atomic():
        one = task.enqueue(1)
        two = task.enqueue(2)
    three = task.enqueue(3)
    assert len(rows(alias)) == 3
    assert [line for line in caplog.messages if "the call may have run" in line][1:] == []
    assert "trying again" in caplog.text
    point_at(settings, server.url)
    client = connections.client()
    four = task.enqueue(4)  # nobody waits for a time-out again so soon
    assert stored(client) == []
    assert drain(client, alias) == 4
    assert stored(client) == [one.id, two.id, three.id, four.id]


@on_sqlite
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


@on_sqlite
def test_a_queue_that_is_refused_does_not_hold_up_others(client, alias, task, left):
    """Its rows stay, many as they are; those of others are pushed, and the error is told."""
    client.raw.set(queue_keys("broken").pending, "no zset")
    for i in range(3):
        task.using(queue="broken").enqueue(i)
    job = task.enqueue(3)
    with pytest.raises(emq.EmqError, match="Queue 'broken': "):
        drain(client, alias, batch=1)
    assert work(client) == [job.id]
    assert [row.queue for row in rows(alias)] == ["broken"] * 3
    client.raw.delete(queue_keys("broken").pending)
    assert drain(client, alias) == 3


@on_sqlite
def test_a_row_that_cannot_be_read_stays(client, alias, task, left, caplog):
    """It is told of, and those beside it are pushed."""
    task.enqueue(1)
    Outbox.objects.using(alias).update(jobs="[[")
    job = task.enqueue(2)
    assert drain(client, alias) == 1
    assert work(client) == [job.id]
    assert len(rows(alias)) == 1
    assert "cannot be read, and stays" in caplog.text


@on_sqlite
def test_a_refused_row_is_left_behind(client, alias, task, left):
    """What follows it in its transaction goes on, as what belongs to others does."""
    client.raw.set(queue_keys("broken").pending, "no zset")
    with transaction.atomic():
        made = [task.using(queue=name).enqueue(1) for name in (QUEUE, "broken", "broken", QUEUE)]
    with pytest.raises(emq.EmqError):
        drain(client, alias, batch=1)
    assert stored(client) == [made[0].id, made[3].id]
    assert [row.queue for row in rows(alias)] == ["broken"] * 2
