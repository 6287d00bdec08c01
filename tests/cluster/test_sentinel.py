"""A primary with a replica under sentinels: the primary dies while jobs run."""

import contextlib
import json

import pytest
from redis import exceptions
from redis.sentinel import MasterNotFoundError

import django_emq as emq
from django_emq import connections, inspector, scripts
from tests.cluster.servers import free_ports, sentinels
from tests.cluster.test_moves import twice
from tests.conformance.wire import Clock, books_balance
from tests.helpers import again_and_again, point_at
from tests.probe import tasks
from tests.processes import Worker, wait_until

QUEUE = "watched"
JOBS = 150
REFUSED = emq.ServerRefused


@pytest.fixture
def trio(settings, monkeypatch):
    """The servers and sentinels. This process and all workers that the test starts use them."""
    with sentinels() as made:
        point_at(settings, made.url, **made.options)
        monkeypatch.setenv("EMQ_URL", made.url)
        monkeypatch.setenv("EMQ_ALIAS", json.dumps({"OPTIONS": made.options}))
        yield made
        connections.reset()


def test_the_primary_dies_with_a_sentinel(trio, probe):
    """Work goes on with the replica; all jobs run, and none is settled twice."""
    many = tasks.nap_then_mark.using(queue=QUEUE)
    emq.enqueue_many(many.job(0.02, i) for i in range(JOBS))
    old, new = trio.primary, trio.replica
    sent = old.info()["master_repl_offset"]
    wait_until(lambda: new.info()["slave_read_repl_offset"] >= sent)
    admitted = []

    def produce():
        with contextlib.suppress(emq.ServerError):
            admitted.append(tasks.nap.using(queue=QUEUE).enqueue(0).id)

    env = {"DJANGO_SETTINGS_MODULE": "tests.cluster.settings"}
    with Worker(QUEUE, "--threads", "2", "--lease", "3", **env) as worker:
        probe.wait_for(20)
        with again_and_again(produce):
            trio.sentinels[0].kill()  # the one that all ask first, on the machine that died
            old.kill()
            wait_until(lambda: trio.primary == new)
            count = len(admitted)
            wait_until(lambda: len(admitted) > count + 20)
        wait_until(lambda: {str(i) for i in range(JOBS)} <= set(probe.marks()), what="all jobs")
        client = connections.client()
        wait_until(lambda: not any(inspector.counts(client, QUEUE).values()))
        worker.terminate()
        assert worker.wait() == 0, worker.output
        assert "Traceback" not in worker.output
        assert worker.output.count("trying again") <= 2  # once a process
    assert client.raw.info("replication")["role"] == "master"
    assert books_balance(client, QUEUE) == {}
    assert twice(new, QUEUE) == {}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MasterNotFoundError("No master found for 'jobs'"), emq.OutcomeUnknown),
        (exceptions.ConnectionError("The previous master is now a slave"), emq.OutcomeUnknown),
        (exceptions.RedisClusterException("cannot be connected"), emq.OutcomeUnknown),
        (exceptions.ReadOnlyError("You can't write against a read only replica."), REFUSED),
        (exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."), REFUSED),
        (exceptions.SlotNotCoveredError("Slot 1 not covered by the cluster."), REFUSED),
        (exceptions.ClusterDownError("CLUSTERDOWN Hash slot not served"), REFUSED),
        (exceptions.ClusterError("TTL exhausted."), REFUSED),
        (exceptions.TryAgainError("Multiple keys request during rehashing"), REFUSED),
        (exceptions.MovedError("3999 127.0.0.1:6381"), REFUSED),
        (exceptions.AskError("3999 127.0.0.1:6381"), REFUSED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_failover_raises(error, kind):
    """Where a server says no, nothing was stored; where nobody says anything, nobody knows."""
    assert type(connections.typed(error)) is kind


def test_no_sentinel_answers(settings):
    """The error is one of ours, and comes at once: nobody is asked again and again."""
    dead = [("127.0.0.1", port) for port in free_ports(3)]
    factory = "django_redis.pool.SentinelConnectionFactory"
    point_at(settings, "redis://jobs/0", CONNECTION_FACTORY=factory, SENTINELS=dead)
    client, clock = connections.connect(), Clock()
    with pytest.raises(emq.OutcomeUnknown, match="No master found"):
        scripts.register(client, [QUEUE])
    assert clock.seconds < 2
