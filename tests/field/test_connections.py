"""Field reports of connections: silent links, small pools, servers that forbid commands."""

import time

import redis as redis_py
from django.urls import reverse

import django_emq as emq
from django_emq import connections, inspector, scripts
from django_emq.batches import Batch, line_of
from tests.conformance.wire import Clock, books_balance
from tests.helpers import QUEUE, children, is_running, point_at
from tests.probe import tasks, verdicts
from tests.processes import Worker, manage, wait_until
from tests.variant import variant

BOUND = 15  # seconds after a silence until a worker takes jobs again, as docs/how-it-works.md says


def test_B69_silent_link(probe, client, proxy):
    """Nothing is passed on and nothing closed, then all is reset: work goes on, SIGTERM is heard.

    The silence lasts 6 s, not 30, and a call may hang for 1 s, not 5.
    """
    quick = variant(EMQ={"SOCKET_TIMEOUT": 1})
    with (
        Worker("idle", "--lease", "30", EMQ_URL=proxy.url, **quick) as idle,
        Worker("busy", "--lease", "30", EMQ_URL=proxy.url, **quick) as busy,
        Worker("third", "--grace", "5", EMQ_URL=proxy.url, **quick) as third,
    ):
        for worker in (idle, busy, third):
            worker.wait_ready()
        tasks.mark_then_nap_then_mark_token.using(queue="busy").enqueue("nap", 2)
        probe.wait_for(1)
        pids = [*children(idle.pid), *children(busy.pid)]
        proxy.freeze()
        silence = Clock()
        tasks.mark.using(queue="idle").enqueue("idle")  # we are not behind the proxy
        third.terminate()
        assert third.wait() == 0
        assert silence.seconds < 5 + 6  # the grace, and the calls that hang
        time.sleep(max(6 - silence.seconds, 0))
        proxy.thaw()
        clock = Clock()
        tasks.mark.using(queue="busy").enqueue("busy")
        probe.wait_for(4, seconds=BOUND)
        assert clock.seconds < BOUND
        assert [*children(idle.pid), *children(busy.pid)] == pids
        wait_until(lambda: not any(inspector.counts(client, "busy").values()))
        wait_until(lambda: not any(inspector.counts(client, "idle").values()))
    assert sorted(probe.marks()) == ["busy", "idle", "nap", "nap token 1"]
    for worker in (idle, busy, third):
        assert "Traceback" not in worker.output


def test_B75_pool_too_small(probe, client, settings):
    """The alias allows two connections and its cache is read by eight jobs: no lease is lost.

    The queue has a pool of its own. Where the cache itself runs out, the job that reads it is
    told so, and not the queue. All times are halved: lease 1 s, jobs of 3 s.
    """
    alias = {
        **settings.CACHES["emq"],
        "OPTIONS": {"CONNECTION_POOL_KWARGS": {"max_connections": 2}},
    }
    other = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    caches = {"default": other, "emq": alias}
    with Worker("--threads", "8", "--lease", "1", **variant(CACHES=caches)) as worker:
        worker.wait_ready()
        emq.enqueue_many(verdicts.read_cache_then_mark_token.job(3, i) for i in range(8))
        probe.wait_for(8)
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 8)
    assert sorted(probe.marks()) == [f"{i} token 1" for i in range(8)]
    totals = inspector.totals(client, QUEUE)
    assert (totals["claimed"], totals.get("reaped", 0), totals.get("failed", 0)) == (8, 0, 0)
    assert "Too many connections" not in worker.output
    assert "Traceback" not in worker.output


FORBIDDEN = ["client", "hello", "info", "config", "monitor", "slowlog", "keys", "flushdb"]


def test_B76_server_that_lacks_commands(probe, client, redis, settings, lone, admin_client):
    """A user who may do none of the optional things: worker, reaper, a whole life and the pages."""
    rules = [f"-{command}" for command in FORBIDDEN]
    redis.execute_command("ACL", "SETUSER", "plain", "on", ">pw", "~*", "&*", "+@all", *rules)
    url = lone.url.replace("unix://", "unix://plain:pw@")
    with redis_py.Redis.from_url(url) as plain:
        assert plain.acl_whoami() in ("plain", b"plain")
    point_at(settings, url)
    connections.reset()
    with (
        Worker("--lease", "2", EMQ_URL=url) as worker,
        Worker("--interval", "0.2", command="emq_reaper", EMQ_URL=url) as reaper,
    ):
        worker.wait_ready()
        reaper.wait_for("reaper ready")
        emq.enqueue_many([tasks.mark.job("a"), tasks.boom_until.job(2, "b")])
        tasks.mark.using(run_in=0.3).enqueue("later")
        verdicts.ask_bury.enqueue("no use")
        verdicts.aanswer.enqueue("kept")
        probe.wait_for(4)
        wait_until(lambda: inspector.totals(connections.client(), QUEUE).get("completed") == 4)
        for view in ("queue", "morgue", "worker", "server"):
            page = admin_client.get(reverse(f"admin:django_emq_{view}_changelist"))
            assert page.status_code == 200
            assert "not reachable" not in page.content.decode()
        assert is_running(worker.pid)
        worker.terminate()
        assert worker.wait() == 0
        reaper.terminate()
        assert reaper.wait() == 0
    assert sorted(probe.marks()) == ["a", "b", "b", "later"]
    for process in (worker, reaper):
        told = [line for line in process.lines if "NOPERM" in line or "no permissions" in line]
        for command in FORBIDDEN:
            assert sum(command in line.lower() for line in told) <= 1
        assert "Traceback" not in process.output
    books_balance(client, QUEUE)


def test_an_outage_of_any_length_uses_nothing_up(queue):
    """A pool of redis-py counts what it has made, and refuses for good at its bound.

    Couriers and waiters make a connection anew after each error, so they must not be counted.
    """
    client = connections.connect()
    client.raw.connection_pool.max_connections = 2
    line = line_of(client)
    for _ in range(4):
        batch = Batch(client)
        scripts.register(batch, [queue])
        line.post(batch)
        assert line.collect() in ([0], [1])
        line.drop()
        scripts.register(client, [queue])
        client.close()


FORK = """
import os
from django_emq import connections
client = connections.connect()
ours = client._ask("CLIENT", "ID")
child = os.fork()
if child == 0:
    os._exit(3 if client._ask("CLIENT", "ID") == ours else 0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert client._ask("CLIENT", "ID") == ours
print("apart")
"""


def test_a_connection_is_left_to_the_parent_of_a_fork():
    """Parent and child call the server over connections of their own."""
    done = manage("shell", "--verbosity", "0", "-c", FORK)
    assert (done.returncode, done.stdout) == (0, "apart\n"), done.stderr
