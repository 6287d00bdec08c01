"""Field reports of what grows: memory, keys, orphans, connections."""

import contextlib
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from django.core.management import call_command

from django_emq import connections, inspector, scripts
from django_emq.connections import connect
from django_emq.context import JobContext
from django_emq.exceptions import EmqError
from django_emq.ids import mint
from django_emq.jobs import UniqueKey
from django_emq.keys import digest, queue_keys
from django_emq.reaper import Reaper
from django_emq.worker.outcome import failed
from tests.admin.yard import url
from tests.conformance import wire
from tests.conformance.wire import books_balance, claim_some, enqueue_some, pass_ms
from tests.helpers import QUEUE, forked
from tests.probe import tasks
from tests.processes import wait_until


def die(client, queue, count, error):
    """Have so many jobs fail for good with an error, by the worker's own way to store it."""
    most = 0
    for start in range(0, count, 500):
        size = min(500, count - start)
        enqueue_some(client, queue, size)
        jobs = claim_some(client, queue, size)
        details = failed(JobContext(jobs[0], 15.0, lambda: 0.0), tasks.mark, error).details
        items = [(job.id, job.token, *details) for job in jobs]
        assert set(scripts.retry(client, queue, items, max_attempts=1)) == {"dead"}
        most = max(most, client.raw.zcard(queue_keys(queue).dead))
    return most


def megabyte():
    try:
        raise ValueError("head " + "x" * 1_000_000 + " tail")
    except ValueError as error:
        return error


def rows(client, queue):
    return sum(1 for _ in client.raw.scan_iter(queue_keys(queue).jobs + "*", count=1000))


def test_B61_failures_fill_the_memory(settings, client, queue):
    """An error is cut to 16 KB with its head and tail; number and age of dead jobs are bounded.

    At once, in the step that buries one too many, and each row leaves with its entry. The age is
    1 s, not 5, and they are gone within 2 s, not 10.
    """
    assert die(client, queue, 10_500, ValueError("short")) == 10_000  # the default
    assert rows(client, queue) == 10_000
    while scripts.drain(client, queue, "dead"):
        pass

    settings.EMQ = {"DEAD_MAX": 1000, "DEAD_TTL": 1}
    client = connections.client()
    start = client.raw.info("memory")["used_memory"]
    assert die(client, queue, 10_000, megabyte()) == 1000
    assert client.raw.info("memory")["used_memory"] - start < 40e6
    assert rows(client, queue) == 1000
    (job_id,) = client.raw.zrange(queue_keys(queue).dead, 0, 0)
    row = inspector.row(client, queue, job_id.decode())
    error = row["last_error"]
    assert max(len(error.encode()), len(row["traceback"].encode())) <= 16 * 1024
    assert error.startswith("ValueError: head xxx")
    assert error.endswith("xxx tail")
    books_balance(client, queue)

    reaper = Reaper(client, (queue,), interval=0.1)
    ends = time.monotonic() + 2

    def swept():
        time.sleep(reaper.run_once())
        return not client.raw.zcard(queue_keys(queue).dead)

    wait_until(swept, seconds=max(ends - time.monotonic(), 0.1) + 1)
    assert rows(client, queue) == 0


def unique_one(key, conflict="reject", until="finish"):
    """A job with a unique key."""
    return wire.new()._replace(unique=UniqueKey(digest(key), until, 50, conflict, 100))


# The keys of a queue, and of the deployment, that live as long as it does.
STANDING = {"pending", "active", "schedule", "dead", "done", "wake", "meta", "metrics", "trail"}
STANDING_FACTS = {"{emq}:version", "{emq}:queues", "{emq}:workers"}


def test_B62_side_keys_without_expiry(client, redis, queue):
    """Three queues, 5,500 jobs: at most 20 keys each, and only the standing ones have no end.

    Results are kept for half a second, not for 5. 500 jobs of each of the first two queues have a
    unique key of their own. Ticks are in `test_schedules.py`.
    """
    queues = [f"{queue}-{n}" for n in range(3)]
    redis.hset(queue_keys(queues[2]).meta, mapping={"max": 250, "duration": 20})
    for name, count in zip(queues, (2500, 2500, 500), strict=True):
        for start in range(0, count, 500):
            if start == 1000:
                only = [unique_one(f"{n}") for n in range(500)]
                scripts.enqueue_unique(client, name, only, request="only", producer="p")
            else:
                enqueue_some(client, name, 500, due="+1" if start == 500 else "")
        left = count
        while left:
            jobs = claim_some(client, name, 500)
            items = [(job.id, job.token, "1") for job in jobs]
            scripts.complete(client, name, items, keep_ms=500)
            left -= len(jobs)
    scripts.beat(client, "w", ttl_ms=30_000, facts={"pid": 1})
    pass_ms(client, 500)
    Reaper(client, tuple(queues), interval=1).run_once()

    for name in queues:
        base = queue_keys(name).base
        keys = {key.decode(): redis.ttl(key) for key in redis.scan_iter(base + "*", count=1000)}
        assert len(keys) <= 20, sorted(keys)
        endless = {key.removeprefix(base) for key, ttl in keys.items() if ttl == -1}
        assert endless <= STANDING
    facts = {key.decode(): redis.ttl(key) for key in redis.scan_iter("{emq}:*", count=1000)}
    assert {key for key, ttl in facts.items() if ttl == -1} <= STANDING_FACTS
    assert len(facts) <= 4


def meddle(queues, number):
    """Random verbs, one after the other, until somebody kills this process."""
    client, dice = connect(), random.Random(number)
    held = []

    def claim(queue):
        options = {"lease_ms": dice.randint(1, 60), "worker": f"w{number}"}
        held.extend(wire.claim_some(client, queue, dice.randint(1, 3), **options))

    def settle(queue):
        if held:
            job = held.pop(dice.randrange(len(held)))
            verbs = [wire.complete, wire.release, wire.bury, wire.discard, prolong]
            dice.choice(verbs)(client, job.queue, job.id.decode(), job.token)

    def prolong(*job):
        wire.extend(*job, lease_ms=20)

    def fail(queue):
        if held:
            job = held.pop()
            maximum = dice.randint(1, 5)  # somebody changes the setting all the time
            wire.retry(client, job.queue, job.id.decode(), job.token, maximum=maximum)

    def any_of(queue, name):
        return [i.decode() for i in client.raw.zrange(getattr(queue_keys(queue), name), 0, 9)]

    def operate(queue):
        name = dice.choice(wire.SETS)
        ids = any_of(queue, name)[: dice.randint(0, 3)]
        dice.choice(
            [
                lambda: scripts.remove(client, queue, ids),
                lambda: scripts.requeue(client, queue, ids),
                lambda: scripts.cancel(client, queue, ids),
                lambda: scripts.reprocess(client, queue, ids),
            ]
        )()

    def clear(queue):
        if dice.random() < 0.1:
            scripts.drain(client, queues[0], dice.choice(["pending", "schedule", "dead"]))

    def unique(queue):
        modes = [("reject", "finish"), ("replace", "start"), ("keep_last", "finish")]
        jobs = [unique_one(dice.choice("abc"), *dice.choice(modes)) for _ in range(2)]
        scripts.enqueue_unique(client, queue, jobs, request=jobs[0].id, producer=f"u{number}")

    verbs = [
        unique,
        lambda q: wire.admit(client, q, *(wire.new() for _ in range(dice.randint(1, 4)))),
        lambda q: wire.admit(client, q, wire.new(due=f"+{dice.randint(1, 50)}")),
        *(claim, claim, claim, settle, settle, fail, operate, clear),
        lambda q: scripts.reap(client, q, max_stalls=3, batch=dice.randint(1, 9)),
        lambda q: scripts.promote(client, q, batch=dice.randint(1, 9)),
        lambda q: scripts.trim(client, q, dead_max=50, dead_ttl_ms=1000, batch=5),
    ]
    while True:
        with contextlib.suppress(EmqError):  # refused, as many of these must be
            dice.choice(verbs)(dice.choice(queues))
        client.raw.incr("operations")


def test_B63_orphans_after_mixed_work(client, redis, queue, capsys):
    """10,000 random operations from eight processes that are killed at random: books balance.

    `emq_fsck` finds nothing then, and finds an orphan of each kind that is planted.
    """
    queues = [f"{queue}-{n}" for n in range(3)]
    scripts.register(client, queues)
    redis.set("operations", 0)
    dice, numbers = random.Random(63), iter(range(10_000))
    crowd: list[ExitStack] = []
    try:
        kills = 0
        while int(redis.get("operations")) < 10_000:
            while len(crowd) < 8:
                stack = ExitStack()
                number = next(numbers)
                stack.enter_context(forked(lambda number=number: meddle(queues, number)))
                crowd.append(stack)
            time.sleep(dice.random() * 0.1)  # a random moment
            crowd.pop(dice.randrange(8)).close()
            kills += 1
    finally:
        for stack in crowd:
            stack.close()
    assert kills >= 8
    pass_ms(client, 60)
    for name in queues:
        while scripts.reap(client, name, max_stalls=3).returned:
            pass
        books_balance(client, name)
        assert inspector.counts(client, name)["active"] == 0
    call_command("emq_fsck", *queues)  # exits with 1 when something is wrong
    capsys.readouterr()
    lone_id, lone_row = mint(), mint()
    redis.zadd(queue_keys(queues[0]).pending, {lone_id: 0})
    redis.hset(queue_keys(queues[0]).job(lone_row), mapping={"attempts": 1, "payload": "{}"})
    with pytest.raises(SystemExit) as caught:
        call_command("emq_fsck", *queues)
    assert caught.value.code == 1
    said = capsys.readouterr().out
    assert lone_id in said
    assert lone_row in said
    assert sum(inspector.totals(client, name).get("completed", 0) for name in queues) > 50


def test_B64_one_connection_per_call(client, redis, admin_client):
    """Eight threads with 2,000 enqueues and status reads each, 200 pages: no connection a call."""
    tasks.mark.enqueue("known")
    page = url("queue_changelist")
    admin_client.get(page)
    before = redis.info("stats")["total_connections_received"]
    clients = redis.info("clients")["connected_clients"]

    def work(number):
        for i in range(2000):
            job = tasks.mark.enqueue(f"{number} {i}")
            assert inspector.state(client, QUEUE, job.id) == "pending"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    for _ in range(200):
        assert admin_client.get(page).status_code == 200
    assert redis.info("stats")["total_connections_received"] - before <= 20
    assert redis.info("clients")["connected_clients"] - clients <= 10
    assert inspector.counts(client, QUEUE)["pending"] == 16_001
    connections.reset()
    client = connections.client()
    assert client.raw.info("clients")["connected_clients"] <= clients + 10
