"""Reapers: many at once, killed half-way, of other queues, without any of them."""

import random
import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest
from django.core.management import call_command

import django_emq as emq
from django_emq import inspector, registry, scripts
from django_emq.connections import connect
from django_emq.keys import queue_keys
from django_emq.reaper import Reaper
from tests.conformance.wire import books_balance, members, pass_ms
from tests.helpers import QUEUE, forked
from tests.probe import tasks
from tests.processes import Worker, manage, wait_until


def lapse(client, queue, count, lease_ms=1):
    """Enqueue and claim so many jobs by a worker that is lost; all their ids."""
    made = emq.enqueue_many(tasks.mark.using(queue=queue).job(i) for i in range(count))
    for start in range(0, count, 1000):
        scripts.claim(
            client, queue, worker="lost", request=str(start), lease_ms=lease_ms, count=1000
        )
    return [job.id for job in made]


def reap_once(capsys, *queues):
    """Run `emq_reaper --once` in this process; its summary."""
    call_command("emq_reaper", "--once", *queues)
    return capsys.readouterr().out


def test_B23_five_reapers_at_once(client, queue):
    """5,000 lapsed leases are taken back once each, whoever does it."""
    with ExitStack() as stack:
        reapers = [
            stack.enter_context(
                Worker(queue, "--interval", "0.05", "--batch", "20", command="emq_reaper")
            )
            for _ in range(5)
        ]
        for reaper in reapers:
            reaper.wait_for("reaper ready")
        # The leases end together, under the eyes of all five.
        ids = lapse(client, queue, 5000, lease_ms=1500)
        wait_until(lambda: inspector.counts(client, queue)["active"] == 0)
        for reaper in reapers:
            reaper.terminate()
            assert reaper.wait() == 0
        shares = [int(r.output.partition("reaped ")[2].split(",")[0]) for r in reapers]
    pending = client.raw.zrange(queue_keys(queue).pending, 0, -1)
    assert sorted(i.decode() for i in pending) == sorted(ids)
    assert inspector.totals(client, queue)["reaped"] == sum(shares) == 5000
    assert sum(share > 0 for share in shares) > 1, shares
    assert set(books_balance(client, queue).values()) == {1}


def test_a_sweep_whose_time_is_over_says_so(client, queue):
    """What is left has its turn at once, not after the interval."""
    lapse(client, queue, 25)
    emq.enqueue_many(tasks.mark.using(queue=queue, run_in=0.001).job(i) for i in range(15))
    pass_ms(client, 5)
    reaper = Reaper(client, (queue,), interval=60, batch=10)
    seen = []
    for _ in range(3):
        answer = reaper.sweep(queue, seconds=0)
        seen.append((answer, reaper.returned, reaper.promoted))
    assert seen == [(0, 10, 10), (0, 20, 15), (-1, 25, 15)]
    assert reaper.run_once() > 1


def test_B10_sweeper_killed_in_the_middle(client, queue, capsys):
    """At each of 50 kills each of 1,000 jobs is in exactly one set; in the end all are pending."""
    ids = lapse(client, queue, 1000)
    keys = queue_keys(queue)
    dice = random.Random(10)

    def sweep():
        Reaper(connect(), (queue,), interval=1, batch=1).run_once()

    hits = 0
    for _ in range(50):
        back = client.raw.zcard(keys.pending)
        with forked(sweep):
            wait_until(lambda back=back: client.raw.zcard(keys.pending) > back)
            time.sleep(dice.random() * 0.005)  # a random moment of its sweep
        assert set(books_balance(client, queue)) == set(ids)
        hits += back < client.raw.zcard(keys.pending) < 1000
    assert hits == 50, "the kills did not hit the sweep"
    reap_once(capsys, queue)
    assert inspector.counts(client, queue)["pending"] == 1000
    assert inspector.counts(client, queue)["active"] == 0
    assert set(books_balance(client, queue).values()) == {1}


def test_B25_fresh_jobs_are_not_swept(probe, client):
    """A reaper without pause beside four busy workers takes nothing back."""
    stop = threading.Event()

    def sweep():
        own = connect()
        reaper = Reaper(own, (QUEUE,), interval=1)
        while not stop.is_set():
            reaper.sweep(QUEUE)
        own.close()

    emq.enqueue_many(tasks.mark.job(i) for i in range(5000))
    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        # Four processes, two of them with threads.
        one, two = ("--lease", "30", "--processes", "2"), ("--threads", "2")
        with Worker(*one), Worker(*one, *two):
            wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 5000)
    finally:
        stop.set()
        sweeper.join()
    assert inspector.totals(client, QUEUE).get("reaped", 0) == 0
    assert sorted(map(int, probe.marks())) == list(range(5000))


def test_B37_a_reaper_minds_its_own_queues(client, capsys):
    """One queue's reaper leaves the others alone; one for all sweeps by their own leases."""
    (ours,) = lapse(client, "qa", 1)
    (long,) = lapse(client, "qb", 1, lease_ms=60_000)
    unknown = emq.enqueue("tests.probe.tasks.mark", "x")
    row = queue_keys(QUEUE).job(unknown.id)
    client.raw.hset(row, "payload", '{"task":"shop.tasks.gone"}')
    scripts.claim(client, QUEUE, worker="lost", request="1", lease_ms=1)
    assert "reaped 1, dead 0" in reap_once(capsys, "qa")
    assert inspector.state(client, "qa", ours) == "pending"
    assert inspector.state(client, "qb", long) == "active"
    assert inspector.state(client, QUEUE, unknown.id) == "active"
    assert "reaped 1, dead 0" in reap_once(capsys)
    assert inspector.state(client, "qb", long) == "active"
    assert inspector.state(client, QUEUE, unknown.id) == "pending"
    scripts.extend(client, "qb", [(long, 1)], lease_ms=0)
    assert "reaped 1, dead 0" in reap_once(capsys)
    assert inspector.state(client, "qb", long) == "pending"


def test_a_reaper_outlives_its_server(client, lone, proxy):
    """It says once that the server is away, once that it is back, and goes on sweeping."""
    with Worker("--interval", "0.1", command="emq_reaper", EMQ_URL=proxy.url) as reaper:
        reaper.wait_for("reaper ready: all queues")
        proxy.refuse()
        reaper.wait_for("trying again")
        time.sleep(0.5)  # this is how long the server is away
        lapse(client, QUEUE, 3)
        proxy.allow()
        reaper.wait_for("the server is back")
        wait_until(lambda: inspector.counts(client, QUEUE)["pending"] == 3)
        reaper.terminate()
        assert reaper.wait() == 0
    assert reaper.output.count("trying again") == 1
    assert "reaped 3, dead 0" in reaper.output


def test_lost_too_often_is_told_as_an_error(client, queue):
    """The morgue's newcomers are in the reaper's log, with queue and id."""
    task = tasks.mark.using(queue=queue, max_stalls=1)
    job = task.enqueue("a")
    scripts.claim(client, queue, worker="lost", request="1", lease_ms=1)
    done = manage("emq_reaper", "--once", queue)
    assert "reaped 0, dead 1" in done.stdout
    (line,) = [line for line in done.stderr.splitlines() if job.id in line]
    assert "ERROR" in line
    assert queue in line


def test_batches_are_swept_whole(client, queue, capsys):
    """More jobs than one step may move are moved in several: 1,200 due, 1,200 lapsed."""
    lapse(client, queue, 1200)
    due = tasks.mark.using(queue=queue, run_in=0.001)
    emq.enqueue_many(due.job(i) for i in range(1200))
    assert "reaped 1200, dead 0, promoted 1200" in reap_once(capsys, queue)
    assert inspector.counts(client, queue)["pending"] == 2400


def test_a_full_server_keeps_no_sweep_from_its_work(client, redis, settings, queue, caplog):
    """A tick is refused there, said once, and made when there is room; other queues are swept."""
    late = f"{queue}-late"
    lapse(client, late, 1)
    pass_ms(client, 5)
    plan = {"task": "tests.probe.tasks.mark", "args": [1], "every": 3600, "queue": queue}
    settings.EMQ = {**settings.EMQ, "SCHEDULES": {"x": plan}}
    reaper = Reaper(client, (queue, late), interval=9)
    reaper.declare()
    redis.zincrby(queue_keys(queue).repeat, -3_600_000, "x")
    redis.config_set("maxmemory", 1)
    for _ in range(2):
        reaper.run_once()
    assert caplog.text.count("schedules do not tick") == 1
    assert inspector.counts(client, queue)["pending"] == 0
    redis.config_set("maxmemory", 0)
    reaper.run_once()
    assert inspector.counts(client, queue)["pending"] == 1
    assert inspector.counts(client, late)["pending"] == 1


def test_a_key_that_cannot_be_made_keeps_no_sweep_from_its_work(client, settings, queue, caplog):
    """What code of the project raises costs its own schedule, and is said once."""
    plan = {"task": "tests.probe.tasks.mark", "every": 3600, "queue": queue}
    settings.EMQ = {**settings.EMQ, "SCHEDULES": {"x": plan, "y": {**plan, "args": [1]}}}
    keyed = replace(tasks.mark, unique=lambda *args: str(args[0]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry._tasks, keyed.name, keyed)
        reaper = Reaper(client, (queue,), interval=9)
        for _ in range(2):
            reaper.declare()
            reaper.run_once()
    assert list(members(client, queue, "repeat")) == ["y"]
    assert caplog.text.count("schedule x cannot be kept: ") == 1
