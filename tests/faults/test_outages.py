"""The server goes away, or refuses, or forgets its scripts: nothing is lost, nobody dies."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import django_emq as emq
from django_emq import connections, inspector, scripts
from django_emq.keys import queue_keys
from tests.conformance.wire import Clock, books_balance
from tests.faults.conftest import point_at
from tests.helpers import QUEUE, children, is_running
from tests.probe import tasks
from tests.processes import Worker, wait_until
from tests.proxy import Act
from tests.variant import variant


def totals(client, queue=QUEUE):
    """Lifetime counters, those at nought included."""
    wanted = ("enqueued", "claimed", "completed", "failed", "retried", "reaped", "dead")
    found = inspector.totals(client, queue)
    return {name: found[name] for name in wanted if found.get(name)}


def test_workers_take_up_work_after_every_break(probe, lone):
    """B26: three restarts of the server, then ten cuts of all connections: same processes."""
    with (
        Worker("idle", "--lease", "60") as idle,
        Worker("busy", "--lease", "60") as busy,
    ):
        tasks.nap_then_mark.using(queue="busy").enqueue(6, "napped")
        idle.wait_ready()
        busy.wait_ready()
        pids = {worker.pid: children(worker.pid) for worker in (idle, busy)}
        for _ in range(3):
            os.kill(lone.pid, signal.SIGKILL)
            time.sleep(0.7)  # this is how long the server is away
            lone.restart()
            time.sleep(0.3)
        with lone.client() as killer:
            for _ in range(10):
                killer.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                time.sleep(0.2)
        clock = Clock()
        tasks.mark.using(queue="idle").enqueue("idle")
        probe.wait_for(1)
        assert clock.seconds < 5
        wait_until(lambda: "napped" in probe.marks())
        clock = Clock()
        tasks.mark.using(queue="busy").enqueue("busy")
        probe.wait_for(3)
        assert clock.seconds < 5
        assert {worker.pid: children(worker.pid) for worker in (idle, busy)} == pids
    assert sorted(probe.marks()) == ["busy", "idle", "napped"]
    for worker in (idle, busy):
        assert "Traceback" not in worker.output


@pytest.mark.parametrize("processes", ["0", "1"])
def test_an_outage_is_told_once(probe, client, proxy, processes):
    """Many tries, one line a process when it begins and one when it is over."""
    with Worker("--lease", "3", "--processes", processes, EMQ_URL=proxy.url) as worker:
        worker.wait_ready()
        tasks.mark.enqueue("a")
        probe.wait_for(1)
        proxy.refuse()
        worker.wait_for("supervisor: No answer" if processes == "1" else "trying again")
        time.sleep(2)  # this is how long the server is away
        tasks.mark.enqueue("b")  # we are not behind the proxy
        proxy.allow()
        probe.wait_for(2)
        alone = processes == "0"
        worker.wait_for("the server is back after" if alone else "supervisor: the server is back")
    for words in ("trying again", "the server is back"):
        who = [line.split(": ")[0].split()[-1] for line in worker.lines if words in line]
        assert len(who) == len(set(who)), worker.output
        assert len(who) == 1 if alone else "supervisor" in who, worker.output
    assert "ERROR" not in worker.output


def test_the_server_is_away_when_the_job_ends(probe, client, proxy):
    """B06: the completion is repeated with its token until it is carried out."""
    with Worker("--lease", "10", EMQ_URL=proxy.url) as worker:
        worker.wait_ready()
        (child,) = children(worker.pid)
        rule = proxy.on("complete", Act.CUT_BEFORE, then=proxy.refuse)
        job = tasks.mark.enqueue("a")
        assert rule.fired.wait(20)
        time.sleep(2)  # this is how long the server is away
        assert inspector.state(client, QUEUE, job.id) == "active"
        proxy.allow()
        wait_until(lambda: inspector.state(client, QUEUE, job.id) == "absent", seconds=8)
        tasks.mark.enqueue("next")
        assert probe.wait_for(2) == ["a", "next"]
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 2)
        assert children(worker.pid) == [child]
    assert totals(client) == {"enqueued": 2, "claimed": 2, "completed": 2}
    assert "ERROR" not in worker.output


@pytest.mark.parametrize(("verb", "times"), [("retry", 3), ("complete", 1)])
def test_a_lease_lost_in_an_outage(probe, client, proxy, verb, times):
    """Others sweep while a worker is cut off: its completion still counts, its failure does not.

    The job that failed is run again, also by this worker, under a new token.
    """
    with Worker("--lease", "1", "--no-sweep", EMQ_URL=proxy.url) as worker:
        worker.wait_ready()
        tasks.boom_until.enqueue(2, "warm")  # the server knows all scripts from now on
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 1)
        rule = proxy.on(verb, Act.CUT_BEFORE, then=proxy.refuse)
        job = tasks.boom_until.using(max_stalls=9).enqueue(times, "a")
        assert rule.fired.wait(20)
        wait_until(lambda: scripts.reap(client, QUEUE, max_stalls=9).returned == [job.id])
        proxy.allow()
        wait_until(lambda: inspector.state(client, QUEUE, job.id) == "absent")
        assert probe.marks() == ["warm"] * 2 + ["a"] * times
        tasks.mark.enqueue("next")
        probe.wait_for(times + 3)
    assert "ERROR" not in worker.output


def test_jobs_handed_back_in_an_outage_run_later(probe, client, proxy):
    """What could not be handed back while the server was away is run by this worker in the end."""
    with Worker("--lease", "1", "--no-sweep", EMQ_URL=proxy.url) as worker:
        worker.wait_ready()
        emq.enqueue_many(tasks.mark.job("warm") for _ in range(20))
        probe.wait_for(20)
        rule = proxy.on("release", Act.CUT_BEFORE, then=proxy.refuse)
        jobs = [tasks.mark_then_nap.job("slow", 4), *(tasks.mark.job(i) for i in range(5))]
        made = emq.enqueue_many(jobs)
        assert rule.fired.wait(20)
        back = set()

        def all_swept():
            back.update(scripts.reap(client, QUEUE, max_stalls=9).returned)
            return back == {job.id for job in made}

        wait_until(all_swept)
        proxy.allow()
        wait_until(lambda: set(map(str, range(5))) <= set(probe.marks()))
        wait_until(lambda: sum(inspector.counts(client, QUEUE).values()) == 0)
    for i in range(5):
        assert probe.marks().count(str(i)) == 1


def test_a_failed_call_for_a_delayed_job_is_tried_again(probe, client, proxy):
    """B30: scripts fail for seconds around the due time; the job starts soon after."""
    with Worker("--lease", "60", EMQ_URL=proxy.url) as worker:
        worker.wait_ready()
        tasks.mark.using(run_in=1.5).enqueue("due")
        proxy.refuse()
        time.sleep(2)  # this is how long the server is away
        proxy.allow()
        clock = Clock()
        probe.wait_for(1)
        assert clock.seconds < 5
    assert "ERROR" not in worker.output


def test_a_short_socket_timeout_of_the_alias(probe, redis):
    """B68: the blocking wait is longer than the alias's SOCKET_TIMEOUT, and nobody minds."""
    alias = {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": os.environ["EMQ_URL"],
        "OPTIONS": {"SOCKET_TIMEOUT": 1, "SOCKET_CONNECT_TIMEOUT": 1},
    }
    other = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    with Worker(**variant(CACHES={"default": other, "emq": alias})) as worker:
        worker.wait_ready()
        wait_until(lambda: redis.info("clients")["blocked_clients"] == 1)
        before = redis.info("stats")["total_connections_received"]
        time.sleep(2.5)  # a wait longer than the time-out
        clock = Clock()
        tasks.mark.enqueue("a")
        probe.wait_for(1)
        assert clock.seconds < 1
        time.sleep(1.5)  # and another one
        assert redis.info("stats")["total_connections_received"] - before <= 3
    assert "Traceback" not in worker.output
    assert "WARNING" not in worker.output


def test_pooled_connections_that_died_while_idle(client, lone):
    """B70: the server closed five idle sockets; the next enqueue works, once."""
    with ThreadPoolExecutor(5) as pool:
        together = threading.Barrier(5)
        list(pool.map(lambda i: (together.wait(), tasks.mark.enqueue(i)), range(5)))
    with lone.client() as admin:
        ours = {entry["id"] for entry in admin.client_list()}
        admin.config_set("timeout", 1)
        # The server closes idle clients by and by; it is asked by a client that is not idle.
        wait_until(lambda: len({e["id"] for e in admin.client_list()} & ours) <= 1)
        admin.config_set("timeout", 0)
    assert tasks.mark.enqueue("after").status == "enqueued"
    assert inspector.counts(client, QUEUE)["pending"] == 6


def test_scripts_forgotten_all_the_time(probe, client, lone):
    """B73: SCRIPT FLUSH again and again under enqueues, bulk enqueues, a worker and a sweep."""
    stop = threading.Event()

    def forget():
        with lone.client() as admin:
            while not stop.is_set():
                admin.script_flush()

    flusher = threading.Thread(target=forget)
    flusher.start()
    try:
        with Worker("--lease", "1", LOG_LEVEL="INFO") as worker:
            worker.wait_ready()
            for i in range(100):
                tasks.mark.enqueue(i)
            verdicts = emq.enqueue_many(tasks.mark.job(100 + i) for i in range(100))
            assert {job.status for job in verdicts} == {"enqueued"}
            tasks.boom_until.enqueue(2, "again")
            tasks.mark.using(run_in=0.3).enqueue("later")
            probe.wait_for(203)
            wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 202)
            worker.terminate()
            assert worker.wait() == 0
    finally:
        stop.set()
        flusher.join()
    marks = probe.marks()
    assert sorted(marks[:], key=str) == sorted(
        [*map(str, range(200)), "again", "again", "later"], key=str
    )
    assert "NOSCRIPT" not in worker.output
    assert "ERROR" not in worker.output


def test_a_server_out_of_memory_drains(probe, client, lone):
    """B81: nothing more is admitted, all that is queued is finished, and nothing is lost."""
    emq.enqueue_many(tasks.mark.job(i) for i in range(95))
    failing = emq.enqueue_many(tasks.boom_until.job(2, f"twice {i}") for i in range(5))
    late = emq.enqueue_many(tasks.mark.job(f"late {i}") for i in range(2))
    held = scripts.claim(client, QUEUE, worker="lost", request="1", lease_ms=1000, count=1)
    with lone.client() as admin:
        admin.config_set("maxmemory-policy", "noeviction")
        admin.config_set("maxmemory", admin.info("memory")["used_memory"] - 1000)
        with pytest.raises(emq.ServerRefused, match="nothing was stored: .*maxmemory"):
            tasks.mark.enqueue("too much")
        with Worker("--lease", "2") as worker:
            wait_until(lambda: len(set(probe.marks())) >= 102)
            admin.config_set("maxmemory", 0)
            wait_until(lambda: sum(inspector.counts(client, QUEUE).values()) == 0)
            worker.terminate()
            assert worker.wait() == 0
    marks = probe.marks()
    once = [*map(str, range(95)), "late 0", "late 1"]
    assert sorted(marks) == sorted([*once, *(f"twice {i}" for i in range(5) for _ in "12")])
    assert "too much" not in marks
    assert "Traceback" not in worker.output
    assert len(failing) + len(late) + len(held.jobs) == 8


def test_too_few_replicas_for_a_while(probe, client, lone):
    """B79: the enqueue says so and stores nothing; what ends meanwhile is retired afterwards."""
    with Worker("--lease", "10") as worker, lone.client() as admin:
        worker.wait_ready()
        (child,) = children(worker.pid)
        emq.enqueue_many([tasks.mark_then_nap.job("a", 0.5), tasks.mark.job("b")])
        probe.wait_for(1)
        admin.config_set("min-replicas-to-write", 1)
        with pytest.raises(emq.ServerRefused, match="NOREPLICAS"):
            tasks.mark.enqueue("refused")
        worker.wait_for("trying again")
        time.sleep(1)  # this is how long it refuses
        assert inspector.totals(client, QUEUE).get("completed", 0) == 0
        admin.config_set("min-replicas-to-write", 0)
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 2)
        tasks.mark.enqueue("next")
        assert probe.wait_for(3) == ["a", "b", "next"]
        assert children(worker.pid) == [child]
        assert is_running(worker.pid)
    assert totals(client)["enqueued"] == 3
    assert "ERROR" not in worker.output


def test_a_read_only_server(client, lone):
    """What answers READONLY has stored nothing, and is asked again over a new connection."""
    with lone.client() as admin:
        admin.replicaof("127.0.0.1", 1)
        with pytest.raises(emq.ServerRefused, match="nothing was stored"):
            tasks.mark.enqueue("a")
        admin.replicaof("NO", "ONE")
    tasks.mark.enqueue("b")
    assert inspector.counts(client, QUEUE)["pending"] == 1


def test_the_queues_database_is_emptied(probe, client, redis):
    """B07: after a FLUSHDB the worker lives and runs the next job; a job that ran is told gone."""
    with Worker("--lease", "1") as worker:
        worker.wait_ready()
        tasks.mark_then_nap.enqueue("a", 1)
        probe.wait_for(1)
        redis.flushdb()
        worker.wait_for("is gone")
        tasks.mark.enqueue("b")
        assert probe.wait_for(2) == ["a", "b"]
    assert "ERROR" not in worker.output
    assert "Traceback" not in worker.output


def test_no_server_at_all(settings, tmp_path):
    """An enqueue without a server raises after its repeats, also with IGNORE_EXCEPTIONS."""
    point_at(settings, f"unix://{tmp_path}/nothing")
    settings.CACHES["emq"]["OPTIONS"] = {"IGNORE_EXCEPTIONS": True}
    settings.CACHES = dict(settings.CACHES)
    connections.reset()
    with pytest.raises(emq.OutcomeUnknown, match="No answer from the server"):
        tasks.mark.enqueue("a")


def test_a_frozen_server_times_out(client, lone, settings):
    """SOCKET_TIMEOUT bounds a call; with a server that is back in time it succeeds, once."""
    settings.EMQ = {"SOCKET_TIMEOUT": 0.3}
    tasks.mark.enqueue("known")
    os.kill(lone.pid, signal.SIGSTOP)
    try:
        clock = Clock()
        with pytest.raises(emq.OutcomeUnknown, match="no answer after 3 tries"):
            tasks.mark.enqueue("a")
        assert 0.9 <= clock.seconds < 4
    finally:
        os.kill(lone.pid, signal.SIGCONT)
    with lone.client() as admin:
        wait_until(lambda: admin.zcard(queue_keys(QUEUE).pending) == 2)
    books_balance(connections.client(), QUEUE)
