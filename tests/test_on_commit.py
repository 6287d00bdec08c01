"""Enqueueing after the commit: every way in, every end of a transaction, each database."""

import asyncio
import itertools
from contextlib import contextmanager
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError
from django.test import TestCase
from django.utils import timezone

import django_emq as emq
from django_emq import inspector
from tests.helpers import QUEUE, burst
from tests.probe import state, tasks, unique

pytestmark = pytest.mark.django_db(transaction=True)
LATER = tasks.mark.using(on_commit=True)


def stored(client, queue=QUEUE):
    """Ids of all jobs on the server, in the order of their minting."""
    return sorted(
        job_id.decode()
        for name in ("pending", "schedule")
        for job_id in client.raw.zrange(f"emq:{{{queue}}}:{name}", 0, -1)
    )


@contextmanager
def rolled_back(using=None):
    """A transaction, or a part of one, that is not committed."""
    with transaction.atomic(using):
        yield
        transaction.set_rollback(True, using)


def in_an_hour():
    return timezone.now() + timedelta(hours=1)


users = itertools.count()
WAYS = {
    "plain": lambda: [LATER.enqueue(1)],
    "on_commit": lambda: [emq.enqueue_on_commit(tasks.mark, 1)],
    "on_commit by name": lambda: [emq.enqueue_on_commit("tests.probe.tasks.mark", x=1)],
    "function": lambda: [emq.enqueue(LATER, 1)],
    "delayed": lambda: [emq.enqueue_in(3600, LATER, 1)],
    "at a time": lambda: [emq.enqueue_at(in_an_hour(), LATER, 1)],
    "unique": lambda: [unique.sync.using(on_commit=True).enqueue(next(users))],
    "chain": lambda: [emq.chain(LATER.job(1), tasks.mark.job(2)).enqueue()],
    "bulk": lambda: emq.enqueue_many(LATER.job(i) for i in range(1200)),
    "some of a bulk": lambda: emq.enqueue_many([LATER.job(1), LATER.job(2)]),
}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


# -- ends of a transaction --------------------------------------------------------------------


def test_B106_job_runs_before_or_without_the_commit(client, way):
    """Nothing is stored before the commit; after it each job once, in the order of the calls.

    After a rollback there is none, after that of an inner block those around it. Outside of a
    transaction it is stored at once.
    """
    with transaction.atomic():
        kept = way()
        with rolled_back():
            way()
        with transaction.atomic():
            kept += way()
        kept += WAYS["plain"]()
        assert {job.status for job in kept} == {"deferred"}
        assert stored(client) == []
    assert stored(client) == [job.id for job in kept]
    with rolled_back():
        way()
    assert stored(client) == [job.id for job in kept]
    now = way()
    assert {job.status for job in now} == {"enqueued"}
    assert stored(client) == [job.id for job in (*kept, *now)]


@pytest.mark.parametrize("setting", [{"ON_COMMIT": True}, {"QUEUES": {QUEUE: {"ON_COMMIT": True}}}])
def test_the_opt_out(client, settings, setting):
    """With the setting on, a call that says so is sent at once, and only that."""
    settings.EMQ = {**settings.EMQ, **setting}
    with transaction.atomic():
        now = tasks.mark.using(on_commit=False).enqueue(1)
        many = emq.enqueue_many([tasks.mark.using(on_commit=False).job(2), tasks.mark.job(3)])
        assert stored(client) == [now.id, many[0].id]
        assert [job.status for job in (now, *many)] == ["enqueued", "enqueued", "deferred"]
    assert stored(client) == [now.id, *(job.id for job in many)]


def test_a_setting_of_the_queue_goes_before_the_general_one(client, settings):
    """And the options of the task before both; `enqueue_on_commit` waits in any case."""
    settings.EMQ = {**settings.EMQ, "ON_COMMIT": True, "QUEUES": {"quick": {"ON_COMMIT": False}}}
    quick = tasks.mark.using(queue="quick")
    with transaction.atomic():
        assert quick.enqueue(1).status == "enqueued"
        assert quick.using(on_commit=True).enqueue(1).status == "deferred"
        assert emq.enqueue_on_commit(quick, 1).status == "deferred"
        assert tasks.mark.using(queue="other").enqueue(1).status == "deferred"
    assert len(stored(client, "quick")) == 3


def test_a_worker_finds_the_row(probe):
    """The job starts after the commit, so what it was enqueued for is there."""
    with transaction.atomic():
        Group.objects.create(name="written in this transaction")
        state.count_groups.using(on_commit=True).enqueue("seen")
    burst()
    assert probe.marks()[0].startswith("seen 1 ")


def test_the_asynchronous_forms(client):
    """They wait as well, where the thread of the database has a transaction open."""

    async def inside():
        first = await LATER.aenqueue(1)
        second = await emq.aenqueue_on_commit(tasks.mark, 2)
        third = await emq.aenqueue_in(60, LATER, 3)
        return [first, second, third, *await emq.aenqueue_many([LATER.job(4)])]

    async def committed():
        atomic = transaction.atomic()
        await sync_to_async(atomic.__enter__)()
        made = await inside()
        assert {job.status for job in made} == {"deferred"}
        assert stored(client) == []
        await sync_to_async(atomic.__exit__)(None, None, None)
        return made

    made = asyncio.run(committed())
    assert stored(client) == [job.id for job in made]


# -- which database ---------------------------------------------------------------------------


two_databases = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@two_databases
@pytest.mark.parametrize("by", ["option", "setting", "queue"])
def test_B107_which_databases_commit(client, settings, by):
    """A job with an alias follows that one alone, whatever is open around it or inside."""
    task = tasks.mark
    if by == "option":
        task = tasks.mark.using(on_commit="other")
    elif by == "setting":
        settings.EMQ = {**settings.EMQ, "ON_COMMIT": "other"}
    else:
        settings.EMQ = {**settings.EMQ, "QUEUES": {QUEUE: {"ON_COMMIT": "other"}}}
    with transaction.atomic("other"):
        with transaction.atomic():
            one = task.enqueue(1)
        assert stored(client) == []
    assert stored(client) == [one.id]
    with rolled_back():
        with transaction.atomic("other"):
            two = task.enqueue(2)
        assert stored(client) == [one.id, two.id]
        three = task.enqueue(3)  # nothing is open on "other"
        assert three.status == "enqueued"
    with rolled_back("other"):
        task.enqueue(4)
    assert stored(client) == [one.id, two.id, three.id]


@two_databases
def test_without_an_alias(client):
    """It follows "default", also inside a transaction of another database."""
    with transaction.atomic("other"):
        one = LATER.enqueue(1)
        assert one.status == "enqueued"
        with transaction.atomic():
            two = LATER.enqueue(2)
            assert stored(client) == [one.id]
        assert stored(client) == [one.id, two.id]


@two_databases
def test_requests_in_a_transaction(client, monkeypatch):
    """ATOMIC_REQUESTS of another database: its commit, if that is the one named."""
    from django.core.handlers.base import BaseHandler

    monkeypatch.setitem(transaction.get_connection("other").settings_dict, "ATOMIC_REQUESTS", True)
    seen = []

    def view(request):
        waits = tasks.mark.using(on_commit="other").enqueue(request)
        seen.append(LATER.enqueue(request).id)
        assert waits.id not in stored(client)
        if request:
            raise ZeroDivisionError
        seen.append(waits.id)

    wrapped = BaseHandler().make_view_atomic(view)
    wrapped(0)
    with pytest.raises(ZeroDivisionError):
        wrapped(1)
    assert stored(client) == sorted(seen)


@pytest.mark.parametrize("option", ["on_commit", "outbox"])
def test_an_unknown_alias(client, option):
    """It is an error at the call, with the nearest known one, in a transaction and outside."""
    task = tasks.mark.using(**{option: "defualt"})
    sentence = "There is no database 'defualt' in DATABASES. Did you mean 'default'?"
    with pytest.raises(emq.InvalidOption, match=sentence.replace("?", r"\?")):
        task.enqueue(1)
    with transaction.atomic(), pytest.raises(emq.InvalidOption):
        emq.enqueue_many([task.job(1)])
    with pytest.raises(emq.InvalidOption, match="Use True, False, or the alias of a database"):
        tasks.mark.using(**{option: 1})
    assert stored(client) == []


# -- what goes wrong --------------------------------------------------------------------------


def test_arguments_are_refused_at_the_call_and_kept_as_they_were(client):
    """Not after the commit, where the caller is gone; and what is changed later changes nothing."""
    with transaction.atomic():
        with pytest.raises(emq.InvalidArguments):
            LATER.enqueue({1, 2})
        things = ["as it was"]
        job = LATER.enqueue(things)
        things.append("changed since")
    assert '"args":[["as it was"]]' in inspector.row(client, QUEUE, job.id)["payload"]


def test_a_server_that_is_away_after_the_commit(settings, lone):
    """The rows are committed, and the block raises: the job is not lost in silence."""
    lone.stop()

    def view():
        with transaction.atomic():
            Group.objects.create(name="committed")
            LATER.enqueue(1)

    with pytest.raises(emq.OutcomeUnknown):
        view()
    assert Group.objects.count() == 1


def test_manual_transactions_are_refused(client):
    """Without autocommit there is no commit that Django would tell of."""
    transaction.set_autocommit(False)
    try:
        with pytest.raises(TransactionManagementError):
            LATER.enqueue(1)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert stored(client) == []


def test_no_connection_is_opened_to_find_out(client):
    """A process that has not used its database enqueues without it."""
    connection.close()
    assert LATER.enqueue(1).status == "enqueued"
    assert connection.connection is None


# -- the record that a job is about -----------------------------------------------------------


@pytest.mark.parametrize("declared", [False, True])
def test_B111_the_record_is_gone_when_the_job_runs(probe, client, declared):
    """A failure like any other: three tries, then the morgue with the exception's name.

    Where the task's backoff says that this error is final, there is one try. The worker lives, and
    the next job runs.
    """
    gone = Group.objects.create(name="gone")
    task = state.rename_or_give_up if declared else state.rename
    job = task.enqueue(gone.pk)
    key = gone.pk
    gone.delete()
    tasks.mark.enqueue("next")
    burst()
    assert probe.marks() == ["next"]
    row = inspector.row(client, QUEUE, job.id)
    assert (row["state"], row["attempts"]) == ("dead", "1" if declared else "3")
    assert "DoesNotExist" in row["last_error"]
    assert f'"args":[{key}]' in row["payload"]


# -- tests ------------------------------------------------------------------------------------


class InATestCase(TestCase):
    """Where the commit never comes, what is captured can be looked at and run."""

    def test_captured_and_run(self):
        """`captureOnCommitCallbacks(execute=True)` enqueues at the end of its block."""
        from django_emq import connections

        client = connections.client()
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            job = LATER.enqueue(1)
            assert stored(client) == []
        assert len(callbacks) == 1
        assert stored(client) == [job.id]

    def test_not_captured(self):
        """Nothing is enqueued, and nothing is left for the next test."""
        from django_emq import connections

        LATER.enqueue(1)
        assert stored(connections.client()) == []
