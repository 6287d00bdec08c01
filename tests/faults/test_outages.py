"""The server goes away, or refuses, or forgets its scripts: nothing is lost, nobody dies."""

import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.urls import reverse

import django_emq as emq
from django_emq import connections, inspector, scripts
from django_emq.keys import queue_keys
from tests.conformance.wire import Clock, books_balance
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


def test_B26_workers_take_up_work_after_every_break(probe, lone):
    """Three restarts of the server, then ten cuts of all connections: same processes."""
    with (
        Worker("idle", "--lease", "60") as idle,
        Worker("busy", "--lease", "60") as busy,
    ):
        tasks.nap_then_mark.using(queue="busy").enqueue(8, "napped")
        idle.wait_ready()
        busy.wait_ready()
        pids = {worker.pid: children(worker.pid) for worker in (idle, busy)}
        for _ in range(3):
            os.kill(lone.pid, signal.SIGKILL)
            time.sleep(1)  # this is how long the server is away
            lone.restart()
            time.sleep(0.5)
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


def test_the_server_goes_away_while_a_worker_starts(probe, client, proxy):
    """It answered the command, and not the supervisor: an outage like any other."""
    scripts.register(client, [QUEUE])  # the server knows the script: each call is one request
    # Spared are the command's own call, and its look whether the server knows its scripts.
    rule = proxy.on("register", Act.CUT_BEFORE, after=2)
    with Worker(EMQ_URL=proxy.url) as worker:
        assert rule.fired.wait(20), worker.output
        tasks.mark.enqueue("a")
        probe.wait_for(1)
        worker.wait_for("supervisor: the server is back after")
    assert "Traceback" not in worker.output


def test_B06_the_server_is_away_when_the_job_ends(probe, client, proxy):
    """The completion is repeated with its token until it is carried out: 3 s later it has been."""
    with Worker("--lease", "10", EMQ_URL=proxy.url) as worker:
        worker.wait_ready()
        (child,) = children(worker.pid)
        rule = proxy.on("complete", Act.CUT_BEFORE, then=proxy.refuse)
        job = tasks.mark.enqueue("a")
        assert rule.fired.wait(20)
        time.sleep(2)  # this is how long the server is away
        assert inspector.row(client, QUEUE, job.id)["attempts"] == "1"
        assert inspector.state(client, QUEUE, job.id) == "active"
        proxy.allow()
        wait_until(lambda: inspector.state(client, QUEUE, job.id) == "absent", seconds=3)
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


def test_B30_failed_ticks_do_not_end_the_promoter(probe, client, lone):
    """Each script is answered BUSY for a while before a job falls due; it starts in time.

    The times are halved: due after 3 s, busy from second 1 to 2.5, started 2 s later at most.
    """
    with Worker("--lease", "2") as worker, Worker(command="emq_reaper") as reaper:
        worker.wait_ready()
        reaper.wait_for("reaper ready")
        pids = children(worker.pid)
        due = Clock()  # first: the server's clock begins before its answer is here
        tasks.mark.using(run_in=3).enqueue("due")
        with lone.client() as admin, lone.client() as killer:
            admin.config_set("busy-reply-threshold", 1)
            time.sleep(1)
            blocker = threading.Thread(target=keep_busy, args=(admin,))
            blocker.start()
            time.sleep(1.5)  # this is how long it is busy
            killer.execute_command("SCRIPT", "KILL")
            blocker.join()
        probe.wait_for(1)
        assert 3 <= due.seconds < 5
        assert children(worker.pid) == pids
        assert is_running(reaper.pid)
    lines = [line for line in (*worker.lines, *reaper.lines) if "BUSY" in line]
    assert lines, "nobody met the busy server"
    for process in (worker, reaper):
        stamps = Counter((line[:19], line.split(": ")[0][24:]) for line in process.lines)
        assert max(stamps.values()) == 1, process.output  # a line a second from each part
        assert "ERROR" not in process.output


def keep_busy(admin):
    """Run a script without an end, until it is killed."""
    with pytest.raises(Exception, match="killed"):
        admin.eval("while true do end", 0)


def test_B68_socket_timeout_shorter_than_the_blocking_wait(probe, redis):
    """The blocking wait is longer than the alias's SOCKET_TIMEOUT of 1 s, and nobody minds.

    Idle for 4 s, not for 20.
    """
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
        assert clock.seconds < 5
        time.sleep(1.5)  # and another one
        assert redis.info("stats")["total_connections_received"] - before <= 3
    assert "Traceback" not in worker.output
    assert "WARNING" not in worker.output


def test_B70_pooled_sockets_died_while_idle(client, lone, admin_client):
    """The server closed five idle sockets; the next enqueue works, once, and so does a page."""
    with ThreadPoolExecutor(5) as pool:
        together = threading.Barrier(5)
        list(pool.map(lambda i: (together.wait(), tasks.mark.enqueue(i)), range(5)))
    page = reverse("admin:django_emq_queue_changelist")

    def lose_all():
        with lone.client() as admin:
            ours = {entry["id"] for entry in admin.client_list()}
            admin.config_set("timeout", 1)  # not 2, to be done sooner
            # The server closes idle clients by and by; it is asked by a client that is not idle.
            wait_until(lambda: len({e["id"] for e in admin.client_list()} & ours) <= 1)
            admin.config_set("timeout", 0)

    lose_all()
    assert tasks.mark.enqueue("after").status == "enqueued"
    assert inspector.counts(client, QUEUE)["pending"] == 6
    assert admin_client.get(page).status_code == 200
    lose_all()
    answer = admin_client.get(page)
    assert answer.status_code == 200
    assert "not reachable" not in answer.content.decode()


def test_B73_script_cache_emptied(probe, client, lone):
    """SCRIPT FLUSH again and again under enqueues, bulk enqueues, a worker and a sweep."""
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
            stop.set()
            flusher.join()
            lone.restart()  # with its data, without its scripts
            tasks.mark.enqueue("after")
            probe.wait_for(204)
            worker.terminate()
            assert worker.wait() == 0
    finally:
        stop.set()
        flusher.join()
    marks = probe.marks()
    assert sorted(marks[:], key=str) == sorted(
        [*map(str, range(200)), "again", "again", "later", "after"], key=str
    )
    assert "NOSCRIPT" not in worker.output
    assert "ERROR" not in worker.output


def test_B81_server_out_of_memory(probe, client, lone):
    """Nothing more is admitted, all that is queued is finished, and nothing is lost."""
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
    assert books_balance(client, QUEUE) == {}


def test_B79_server_refuses_writes_for_a_while(probe, client, lone):
    """The enqueue says so and stores nothing; what ends meanwhile is retired afterwards.

    Too few replicas for 2 s, not for 6.
    """
    with Worker("--lease", "10") as worker, lone.client() as admin:
        worker.wait_ready()
        (child,) = children(worker.pid)
        emq.enqueue_many([tasks.mark_then_nap.job("a", 0.5), tasks.mark.job("b")])
        probe.wait_for(1)
        admin.config_set("min-replicas-to-write", 1)
        with pytest.raises(emq.ServerRefused, match="NOREPLICAS"):
            tasks.mark.enqueue("refused")
        worker.wait_for("trying again")
        time.sleep(2)  # this is how long it refuses
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
