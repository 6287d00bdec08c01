"""A cluster in motion while jobs run: a slot moves, a replica takes over, a primary is killed.

What holds each time: every job that was admitted runs, the books balance, and no job has two
accepted settlements.
"""

import contextlib
from collections import Counter

import pytest

import django_emq as emq
from django_emq import connections, inspector, scripts
from django_emq.keys import queue_keys
from tests.cluster.test_cluster import balanced
from tests.conformance.wire import claim_one, enqueue_one, enqueue_some
from tests.helpers import again_and_again
from tests.probe import tasks
from tests.processes import Worker, wait_until

JOBS = 80


@pytest.fixture
def busy(nodes, client, probe, settings, monkeypatch):
    """A queue on each node with jobs of 20 ms, and a worker with two processes on all of them.

    It serves the one first whose node has a replica.
    """
    queues = nodes.queues()[::-1]
    for queue in queues:
        many = tasks.nap_then_mark.using(queue=queue)
        emq.enqueue_many(many.job(0.02, f"{queue} {i}") for i in range(JOBS))
    wait_until(lambda: nodes.replica.info()["slave_read_repl_offset"] >= offset(nodes, queues[0]))
    options = ("--processes", "2", "--threads", "2", "--lease", "3")
    env = {"DJANGO_SETTINGS_MODULE": "tests.cluster.settings"}
    with Worker(*queues, *options, **env) as worker:
        probe.wait_for(20)
        yield queues
        expected = {f"{queue} {i}" for queue in queues for i in range(JOBS)}
        wait_until(lambda: expected <= set(probe.marks()), what="all jobs")
        wait_until(lambda: not any(held(client, queue) for queue in queues))
        worker.terminate()
        assert worker.wait() == 0, worker.output
        assert "Traceback" not in worker.output
    for queue in queues:
        assert balanced(nodes, queue) == set()
        assert twice(nodes.owner(queue), queue) == {}


def offset(nodes, queue):
    """How much the primary of a queue has written."""
    return nodes.owner(queue).info()["master_repl_offset"]


def held(client, queue):
    """How many jobs a queue has in whatever set; none is an answer only where one comes."""
    try:
        return sum(inspector.counts(client, queue).values())
    except emq.ServerError:
        return True


def twice(node, queue):
    """The jobs that were settled twice, as the whole trail of the queue says."""
    entries = node.ask("XRANGE", queue_keys(queue).trail, "-", "+")
    ended = [fact[b"id"] for _, fact in entries if fact[b"event"] in (b"completed", b"dead")]
    assert ended
    return {job_id: count for job_id, count in Counter(ended).items() if count > 1}


def test_a_slot_moves(nodes, client):
    """Half-way, each verb is refused before its first step; then all goes on elsewhere."""
    queue = nodes.queues()[0]
    source, target = nodes.owner(queue), nodes.primaries[1]
    ids = enqueue_some(client, queue, 60)
    job = claim_one(client, queue)

    def refused():
        for node in (source, target):
            node.ask("SCRIPT", "FLUSH")
        for call in (
            lambda: enqueue_one(client, queue),
            lambda: claim_one(client, queue),
            lambda: scripts.extend(client, queue, [(job.id, 1)], lease_ms=60_000),
            lambda: scripts.discard(client, queue, [(job.id, 1)]),
            lambda: scripts.reap(client, queue, max_stalls=3),
        ):
            with pytest.raises(emq.ServerRefused):
                call()
        counted = inspector.counts(client, queue)
        assert counted == {"pending": 59, "active": 1, "schedule": 0, "dead": 0, "done": 0}

    nodes.move(queue, target, between=refused)
    assert nodes.owner(queue) == target
    assert scripts.extend(client, queue, [(job.id, 1)], lease_ms=60_000) == [1]
    assert balanced(nodes, queue) == set(ids)


def test_a_slot_moves_while_jobs_run(nodes, busy):
    queue = busy[0]
    nodes.move(queue, nodes.primaries[1], between=lambda: None)


def test_a_replica_takes_over_by_command(nodes, busy):
    new, old = nodes.replica, nodes.owner(busy[0])
    assert new.info()["master_port"] == old.port
    new.ask("CLUSTER", "FAILOVER")
    wait_until(lambda: nodes.owner(busy[0]) == new)


def test_a_primary_is_killed(nodes, busy):
    """Also who enqueues meanwhile is told the truth: what was answered is there."""
    queue = busy[0]
    new, old = nodes.replica, nodes.owner(queue)
    assert new.info()["master_port"] == old.port
    admitted = []
    reader = connections.connect()
    inspector.counts(reader, queue)

    def produce():
        with contextlib.suppress(emq.ServerError):
            admitted.append(tasks.nap.using(queue=queue).enqueue(0).id)

    try:
        with again_and_again(produce):
            old.kill()
            wait_until(lambda: new.info()["role"] == "master")
            count = len(admitted)
            wait_until(lambda: len(admitted) > count + 20)
        # Who only reads finds the new primary by itself too.
        wait_until(lambda: held(reader, queue) is not True)
        reader.close()
    finally:
        old.server.restart()
        wait_until(nodes.is_sound)
    assert nodes.owner(queue) == new
    connections.reset()
