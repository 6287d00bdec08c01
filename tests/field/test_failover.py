"""Field reports of servers that change their role, their policy, or what they allow."""

import contextlib
import re
import socket

import pytest
from django.core.checks import run_checks
from django.urls import reverse
from private_server import private_server

import django_emq as emq
from django_emq import connections, inspector
from django_emq.keys import queue_keys
from tests.admin.yard import make_yard
from tests.conformance.wire import SETS, Clock, books_balance
from tests.helpers import QUEUE, again_and_again, children, is_running, point_at
from tests.probe import tasks
from tests.processes import Worker, wait_until
from tests.proxy import Proxy

AT_ONCE = ["--repl-diskless-sync-delay", "0"]  # not after waiting for further replicas


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def pair():
    """A primary and its replica, each with a unix socket; and the replica's port."""
    first, second = free_port(), free_port()
    with (
        private_server(["--port", str(first), *AT_ONCE], own=True) as primary,
        private_server(
            ["--port", str(second), "--replicaof", "127.0.0.1", str(first)], own=True
        ) as replica,
    ):
        with replica.client() as client:
            wait_until(lambda: client.info("replication")["master_link_status"] == "up")
        yield primary, replica, second


def test_B77_server_became_a_replica(probe, settings, pair):
    """A failover in mid-run, and the old connections lead to what is now read-only.

    No process exits, work goes on within 5 s, all 200 run, none twice without a sweep, and an
    enqueue in the gap never answers a job that is not there.
    """
    primary, replica, port = pair
    with Proxy(primary.socket) as proxy:
        point_at(settings, proxy.url)
        made = emq.enqueue_many(tasks.nap_then_mark.job(0.05, i) for i in range(200))
        options = ("--lease", "3", "--threads", "2")
        with (
            Worker(*options, EMQ_URL=proxy.url) as one,
            Worker(*options, EMQ_URL=proxy.url) as two,
            contextlib.ExitStack() as producing,
        ):
            probe.wait_for(40)
            pids = [*children(one.pid), *children(two.pid)]
            admitted = []

            def produce():
                with contextlib.suppress(emq.ServerRefused, emq.OutcomeUnknown):
                    admitted.append(tasks.nap.using(queue="gap").enqueue(0).id)

            producing.enter_context(again_and_again(produce, every=0.005))
            with primary.client() as client, replica.client() as other:
                client.execute_command("FAILOVER", "TO", "127.0.0.1", str(port))
                wait_until(lambda: other.info("replication")["role"] == "master")
                proxy.lead_to(replica.socket)
                wait_until(lambda: client.info("replication")["role"] == "slave")
            clock, before = Clock(), len(probe.marks())
            probe.wait_for(before + 20)
            assert clock.seconds < 5
            wait_until(lambda: len(set(probe.marks())) == 200)
            producing.close()
            client = connections.client()
            wait_until(lambda: not any(inspector.counts(client, QUEUE).values()))
            assert [*children(one.pid), *children(two.pid)] == pids
            assert is_running(one.pid)
            assert is_running(two.pid)
            output = one.output + two.output
        marks = probe.marks()
        for number, job in enumerate(made):
            if marks.count(str(number)) > 1:
                assert f"lease of job {job.id} lapsed" in output
        assert "Traceback" not in output
        assert admitted
        assert set(books_balance(client, "gap")) >= set(admitted)
        assert client.raw.info("replication")["role"] == "master"


def checked():
    """What `manage.py check --deploy` says of the server."""
    messages = run_checks(tags=["emq"], include_deployment_checks=True)
    return [(message.id, message.msg) for message in messages if message.id.endswith("D010")]


def first_lines(**env):
    with Worker(**env) as worker:
        worker.wait_ready()
        return worker.output


def test_B82_server_evicts_keys(probe, client, redis, lone, settings, admin_client):
    """The policy is named by the check for a deployment, by a worker's first lines and the page.

    With volatile-… the jobs are safe, for nothing that holds them has an end; the memories of calls
    have one, so it is told as well. A user who may not ask starts with 'unknown'.
    """
    page = reverse("admin:django_emq_server_changelist")
    redis.config_set("maxmemory", "100mb")
    for policy in ("allkeys-lru", "volatile-lru"):
        redis.config_set("maxmemory-policy", policy)
        ((id_, text),) = checked()
        assert id_ == "django_emq.D010"
        assert policy in text
        output = first_lines()
        assert "django_emq.D010" in output
        assert policy in output
        assert policy in admin_client.get(page).content.decode()
    redis.config_set("maxmemory-policy", "noeviction")
    assert checked() == []
    assert "D010" not in first_lines()

    make_yard(client, QUEUE)
    endless = {key.decode() for key in redis.scan_iter() if redis.ttl(key) == -1}
    ending = {key.decode() for key in redis.scan_iter()} - endless
    sets = {getattr(queue_keys(QUEUE), name) for name in SETS}
    assert endless >= sets | {queue_keys(QUEUE).metrics, "{emq}:version", "{emq}:queues"}
    assert len([key for key in endless if ":job:" in key]) == 11
    allowed = re.compile(r".*:(sent|claims|metrics|worker):[^:]+")
    assert [key for key in ending if not allowed.fullmatch(key)] == []

    rules = ["on", ">pw", "~*", "&*", "+@all", "-info", "-config"]
    redis.execute_command("ACL", "SETUSER", "plain", *rules)
    url = lone.url.replace("unix://", "unix://plain:pw@")
    point_at(settings, url)
    assert checked() == []
    assert "maxmemory-policy: unknown" in first_lines(EMQ_URL=url)
    assert "unknown" in admin_client.get(page).content.decode()
