"""Enqueueing that waits for replicas: what it answers, and what it says when they are away."""

import asyncio
import os
import signal

import pytest

import django_emq as emq
from django_emq import connections, inspector
from tests.cluster.servers import AT_ONCE, nodes
from tests.conformance.wire import Clock, books_balance, calls, claim_one, complete
from tests.helpers import QUEUE, point_at
from tests.probe.tasks import mark
from tests.processes import wait_until


@pytest.fixture(scope="module")
def _pair():
    with nodes(2, *AT_ONCE) as (primary, replica):
        replica.ask("REPLICAOF", "127.0.0.1", primary.port)
        yield primary, replica


@pytest.fixture
def pair(_pair, settings):
    """A primary, which this process uses, and its replica."""
    primary, replica = _pair
    settings.EMQ = {**settings.EMQ, "WAIT_TIMEOUT": 0.05}
    point_at(settings, primary.server.url)
    wait_until(lambda: replica.info()["master_link_status"] == "up")
    wait_until(lambda: primary.ask("WAIT", 1, 100) == 1)
    yield primary, replica
    os.kill(replica.server.pid, signal.SIGCONT)
    replica.ask("REPLICAOF", "127.0.0.1", primary.port)
    primary.ask("FLUSHALL")
    connections.reset()


@pytest.fixture
def client(pair):
    return connections.client()


def test_a_replica_has_what_was_answered(pair, client):
    """For one job, for many, and awaited: also where no script was loaded."""
    primary, replica = pair
    patient = mark.using(wait_replicas=1)
    primary.ask("SCRIPT", "FLUSH")
    before = calls(client, "wait")
    with replica.server.client() as raw:
        ids = [patient.enqueue(1).id]
        assert set(books_balance(connections.Client(raw, "emq"), QUEUE)) == set(ids)
        ids += [job.id for job in emq.enqueue_many(patient.job(i) for i in range(600))]
        assert set(books_balance(connections.Client(raw, "emq"), QUEUE)) == set(ids)
        ids += [asyncio.run(patient.aenqueue(2)).id]
        assert set(books_balance(connections.Client(raw, "emq"), QUEUE)) == set(ids)
    assert calls(client, "wait") - before == 4 + 1  # one of them on the cold server


def test_off_costs_nothing(pair, client):
    mark.enqueue(0)
    before = calls(client, "wait")
    mark.enqueue(1)
    mark.using(wait_replicas=0).enqueue(1)
    emq.enqueue_many(mark.job(i) for i in range(3))
    assert calls(client, "wait") == before


def test_too_few_replicas(pair, client):
    """The error says what is there, and repeats it without a second job, also of a finished one."""
    primary, replica = pair
    replica.ask("REPLICAOF", "NO", "ONE")
    with pytest.raises(emq.TooFewReplicas, match="only 0 of 1 replicas") as caught:
        mark.using(wait_replicas=1).enqueue(1)
    (job,) = caught.value.jobs
    assert job.id in str(caught.value)
    assert (caught.value.wanted, caught.value.replicas) == (1, 0)
    assert inspector.counts(client, QUEUE)["pending"] == 1
    for _ in range(3):
        mark.enqueue("another call of this producer process")
    with pytest.raises(emq.TooFewReplicas) as again:
        caught.value.again()
    assert again.value.jobs == [job]
    taken = claim_one(client, QUEUE)
    assert taken.id.decode() == job.id
    assert complete(client, QUEUE, job.id, 1) == 1
    replica.ask("REPLICAOF", "127.0.0.1", primary.port)
    wait_until(lambda: replica.info()["master_link_status"] == "up")
    wait_until(lambda: confirmed(again.value) == [job])
    assert inspector.counts(client, QUEUE) == {
        "pending": 3, "active": 0, "schedule": 0, "dead": 0, "done": 0,
    }  # fmt: skip


def confirmed(error):
    """The jobs, once the replica has caught up."""
    try:
        return asyncio.run(error.aagain())
    except emq.TooFewReplicas:
        return None


def test_a_repeat_waits_for_what_the_first_call_wrote(pair, client):
    """A replica that stopped before it is not counted, though the repeat itself changes nothing."""
    _, replica = pair
    os.kill(replica.server.pid, signal.SIGSTOP)
    with pytest.raises(emq.TooFewReplicas) as caught:
        mark.using(wait_replicas=1).enqueue(1)
    connections.reset()  # connections that have written nothing
    with pytest.raises(emq.TooFewReplicas):
        caught.value.again()


def test_many_where_some_lack_replicas(pair, client, settings):
    """All are sent before the error is raised; a queue that asks for none does not matter."""
    _, replica = pair
    settings.EMQ = {
        **settings.EMQ,
        "QUEUES": {"mail": {"WAIT_REPLICAS": 1, "WAIT_TIMEOUT": 0.02}},
    }
    replica.ask("REPLICAOF", "NO", "ONE")
    clock = Clock()
    with pytest.raises(emq.TooFewReplicas, match="2 jobs, from JOB") as caught:
        emq.enqueue_many(mark.using(queue=queue).job(1) for queue in ("mail", "other", "mail"))
    assert clock.seconds < 5
    assert [job.queue for job in caught.value.jobs] == ["mail", "other", "mail"]
    client = connections.client()
    assert len(books_balance(client, "mail")) == 2
    assert len(books_balance(client, "other")) == 1
    with pytest.raises(emq.InvalidOption, match="wait_replicas is -1"):
        mark.using(wait_replicas=-1)


def test_a_user_who_may_not_wait(pair, client, settings):
    """The job is admitted all the same, and the error says why nobody waited."""
    primary, _ = pair
    primary.ask("ACL", "SETUSER", "hasty", "on", ">pw", "~*", "&*", "+@all", "-wait")
    point_at(settings, primary.server.url.replace("unix://", "unix://hasty:pw@"))
    with pytest.raises(emq.TooFewReplicas, match="refused to wait.*permission"):
        mark.using(wait_replicas=1).enqueue(1)
    assert inspector.counts(connections.client(), QUEUE)["pending"] == 1
