"""The operators' verbs on sets and queues, and what a holder tells people: progress and log."""

import json
from collections.abc import Callable

import pytest

import django_emq as emq
from django_emq import inspector, scripts
from django_emq.exceptions import JobGone, NotInState, StaleToken, UnknownSet
from django_emq.keys import queue_keys, reserve_keys
from tests.conformance import wire
from tests.conformance.wire import (
    books_balance,
    bury,
    claim_one,
    claim_some,
    complete,
    enqueue_one,
    enqueue_some,
    extend,
    given,
    members,
    pass_ms,
    retry,
    row,
)
from tests.operator_cases import HOLDERS, VERBS, counter, everything, job_in
from tests.probe.tasks import mark

DRAINABLE = ("pending", "schedule", "dead", "done")
each_set = pytest.mark.parametrize("name", DRAINABLE)


def fill(client, queue, name: str, count: int) -> None:
    """Put so many jobs into a set, each with a line in its log."""
    redis, keys = client.raw, queue_keys(queue)
    for start in range(0, count, 1000):
        size = min(1000, count - start)
        ids = enqueue_some(client, queue, size, due="+3600000" if name == "schedule" else "")
        if name in ("active", "dead", "done"):
            jobs = claim_some(client, queue, size)
            assert len(jobs) == size
            pairs = [(job.id, job.token) for job in jobs]
            if name == "dead":
                scripts.bury(client, queue, [(*pair, "no use", "") for pair in pairs])
            elif name == "done":
                scripts.complete(client, queue, [(*pair, "") for pair in pairs], keep_ms=3600_000)
        pipeline = redis.pipeline(transaction=False)
        for job_id in ids:
            pipeline.rpush(keys.logs(job_id), "line")
        pipeline.execute()


def job_keys(client, queue) -> int:
    """How many rows and logs there are."""
    return len(client.raw.keys(queue_keys(queue).jobs + "*"))


# -- drain ------------------------------------------------------------------------------------


@each_set
def test_drain_empties_one_set(client, queue, name):
    """Rows and logs go with the entries; held jobs and the other sets are as they were."""
    for other in ("dead", "done", "active", "schedule", "pending"):
        fill(client, queue, other, 3)
    before, counters = wire.snapshot(client, queue), counter(client, queue, "removed")
    doomed = before.pop(name)
    assert scripts.drain(client, queue, name) == 3
    after = wire.snapshot(client, queue)
    assert after.pop(name) == {}
    for job_id in doomed:
        del before["rows"][job_id]
    assert after == before
    assert counter(client, queue, "removed") == counters + 3
    assert job_keys(client, queue) == 4 * 3 * 2
    books_balance(client, queue)
    assert scripts.drain(client, queue, name) == 0


@pytest.mark.parametrize("name", ["active", "wake", "meta", "jobs", "", "queue", "nonsense"])
def test_drain_knows_its_sets(client, queue, name):
    """Held jobs are not drained, and no other key is."""
    enqueue_one(client, queue)
    before = everything(client)
    with pytest.raises(UnknownSet, match="pending, schedule, dead or done"):
        scripts.drain(client, queue, name)
    assert everything(client) == before


@each_set
def test_drain_takes_the_first_of_the_set(client, queue, name):
    """A batch at a time, in the order of the set, and each step is whole."""
    fill(client, queue, name, 7)
    ids = list(members(client, queue, name))
    sizes = []
    for _ in range(3):
        sizes.append(scripts.drain(client, queue, name, batch=3))
        assert list(members(client, queue, name)) == ids[sum(sizes) :]
        assert job_keys(client, queue) == 2 * (7 - sum(sizes))
        books_balance(client, queue)
    assert sizes == [3, 3, 1]


def test_drain_of_many(client, queue):
    """20,000 jobs in steps of at most a thousand, none of which breaks the script."""
    fill(client, queue, "pending", 20_000)
    steps = []
    while steps[-1:] != [0]:
        steps.append(scripts.drain(client, queue, "pending", batch=1_000_000))
    assert steps == [1000] * 20 + [0]
    assert job_keys(client, queue) == 0


@pytest.mark.parametrize("batch", [0, -1, -1000])
def test_a_batch_is_at_least_one(client, queue, batch):
    """None, or less, is no way to say all at once."""
    fill(client, queue, "pending", 5)
    assert scripts.drain(client, queue, "pending", batch=batch) == 1
    scripts.pause(client, queue)
    assert scripts.obliterate(client, queue, batch=batch) is True
    assert len(members(client, queue, "pending")) == 3
    books_balance(client, queue)


# -- obliterate -------------------------------------------------------------------------------


def small_memories(client, queue) -> set[str]:
    """The keys that remember a last call: they go by themselves, after 2 and 10 minutes."""
    names = {key.decode() for key in client.raw.keys(queue_keys(queue).base + "*")}
    base = queue_keys(queue).base
    assert all(name.startswith((base + "sent:", base + "claims:")) for name in names), names
    assert all(0 < client.raw.ttl(name) <= 600 for name in names)
    return names


@pytest.fixture
def full_queue(client, redis, queue) -> list[str]:
    """A paused queue with something under every key that there is; the ids of its held jobs."""
    keys = queue_keys(queue)
    for name in ("dead", "done", "active", "schedule", "pending"):
        fill(client, queue, name, 3)
    redis.hset(keys.meta, mapping={"max": 1000, "duration": 60_000, "concurrency": 100})
    fill(client, queue, "active", 1)  # with a limit, so that there is a limiter
    held = list(members(client, queue, "active"))
    scripts.pause(client, queue, by="anna")
    redis.hset(keys.onward, "JOB1", "a job for another queue")
    for key in (keys.meta, keys.wake, keys.metrics, keys.limiter, keys.trail, keys.onward):
        assert redis.exists(key), key
    assert redis.keys(keys.metrics + ":*")
    return held


@pytest.mark.parametrize("batch", [1, 4, 500])
def test_obliterate_leaves_nothing(client, queue, full_queue, batch):
    """In bounded steps until nothing is left but what a producer and a worker last asked for."""
    calls = 1
    while scripts.obliterate(client, queue, force=True, batch=batch):
        calls += 1
        assert calls < 50
    assert calls == 16 // batch + 1
    assert len(small_memories(client, queue)) == 2  # one producer, one worker


@pytest.mark.parametrize("batch", [3, 5])
def test_obliterate_can_be_broken_off(client, queue, full_queue, batch):
    """After each step the queue is paused and in order, and what is left can be had again."""
    before = job_keys(client, queue)
    assert scripts.obliterate(client, queue, force=True, batch=batch) is True
    assert job_keys(client, queue) == before - 2 * batch
    books_balance(client, queue)
    assert claim_one(client, queue) is None
    scripts.resume(client, queue)
    with pytest.raises(NotInState, match="^Not paused$"):
        scripts.obliterate(client, queue, force=True)
    scripts.pause(client, queue)
    while scripts.obliterate(client, queue, force=True, batch=batch):
        books_balance(client, queue)
    small_memories(client, queue)


def test_obliterate_asks_for_force(client, queue, full_queue):
    """Held jobs stop it before it has deleted anything."""
    before = everything(client)
    with pytest.raises(NotInState, match="^Active jobs present$"):
        scripts.obliterate(client, queue)
    assert everything(client) == before
    for job_id in full_queue:
        wire.release(client, queue, job_id, 1)
    assert scripts.obliterate(client, queue) is False
    small_memories(client, queue)


def test_obliterate_of_many(client, queue):
    """20,000 jobs in steps of at most a thousand."""
    fill(client, queue, "pending", 15_000)
    fill(client, queue, "schedule", 5_000)
    scripts.pause(client, queue)
    steps = 1
    while scripts.obliterate(client, queue, batch=1_000_000):
        assert job_keys(client, queue) == 2 * (20_000 - 1000 * steps)
        steps += 1
    assert steps == 21
    small_memories(client, queue)


@pytest.mark.parametrize("name", HOLDERS)
def test_nothing_comes_back(client, queue, full_queue, name):
    """Whatever the run of a held job says of it: there is nothing it could write."""
    scripts.obliterate(client, queue, force=True)
    before = everything(client)
    if name == "complete":
        assert complete(client, queue, full_queue[0], 1) == 0
    else:
        with pytest.raises(JobGone):
            HOLDERS[name](client, queue, full_queue[0], 1)
    assert claim_one(client, queue) is None
    assert scripts.promote(client, queue) == 0
    assert wire.reap(client, queue) == []
    assert everything(client) == before


def test_obliterate_of_a_damaged_queue(client, redis, queue, full_queue):
    """Whatever lies under the key of a set, it can be cleared."""
    for name in ("schedule", "done"):
        redis.delete(getattr(queue_keys(queue), name))
        redis.set(getattr(queue_keys(queue), name), "x")
    while scripts.obliterate(client, queue, force=True):
        pass
    left = members(client, queue, "pending") | members(client, queue, "active")
    assert left == {}
    assert not redis.exists(queue_keys(queue).schedule, queue_keys(queue).meta)


def test_the_name_of_an_obliterated_queue_is_gone(client, queue):
    """With the last step, and not before; the process that did it enters the queue anew."""
    emq.enqueue_many(mark.using(queue=queue).job(n) for n in range(3))
    scripts.register(client, ["other"])
    scripts.pause(client, queue)
    assert scripts.obliterate(client, queue, batch=2) is True
    assert inspector.queues(client) == ["other", queue]
    assert scripts.obliterate(client, queue, batch=2) is False
    assert inspector.queues(client) == ["other"]
    mark.using(queue=queue).enqueue("again")
    assert inspector.queues(client) == ["other", queue]


@pytest.mark.parametrize(
    ("served", "left"),
    [("a {}", True), ("{}", True), ("{} b", True), ("{}x x{} {}-1 -{}", False), ("", False)],
)
def test_a_queue_that_a_worker_serves_stays_listed(client, redis, queue, served, left):
    """Its next beat would enter it again; a worker of queues with similar names does not count."""
    scripts.register(client, [queue])
    scripts.beat(client, "w-7", ttl_ms=60_000, facts={"queues": served.replace("{}", queue)})
    redis.set(reserve_keys().worker("w-8"), "no hash")
    redis.zadd(reserve_keys().workers, {"w-8": 1, "w-9": 2})
    assert scripts.unregister(client, queue) is not left
    assert (queue in inspector.queues(client)) is left


def test_an_obliterated_queue_can_be_used_again(client, queue, full_queue):
    """It is open, and its first job is the first."""
    scripts.obliterate(client, queue, force=True)
    job_id = enqueue_one(client, queue)
    assert given(claim_one(client, queue)) == (job_id, "work", 1)
    assert counter(client, queue, "enqueued") == 1


# -- pause and resume -------------------------------------------------------------------------


def test_pause_twice_keeps_the_first_name(client, redis, queue):
    """Who paused first, since when and why, is not written over."""
    before = wire.now_ms(client)
    assert scripts.pause(client, queue, by="anna", why="mail server down") is True
    first = redis.hgetall(queue_keys(queue).meta)
    assert (first[b"paused_by"], first[b"paused_why"]) == (b"anna", b"mail server down")
    assert before - 1 <= int(first[b"paused"]) <= wire.now_ms(client)
    pass_ms(client, 2)
    assert scripts.pause(client, queue, by="ben", why="other") is False
    assert redis.hgetall(queue_keys(queue).meta) == first


def test_a_paused_queue_goes_on_but_for_claims(client, queue):
    """Admission, settlement, sweeping and operators' acts are as ever."""
    held, lapsed = enqueue_some(client, queue, 2)
    claim_some(client, queue, 2)
    scripts.pause(client, queue)
    late = enqueue_one(client, queue)
    assert complete(client, queue, held, 1) == 1
    extend(client, queue, lapsed, 1, lease_ms=0)
    assert wire.reap(client, queue) == [lapsed]
    assert scripts.cancel(client, queue, [late]) == [1]
    assert claim_one(client, queue) is None
    scripts.resume(client, queue)
    assert given(claim_one(client, queue)) == (lapsed, "work", 2)


def test_resume_wakes_and_forgets(client, redis, queue):
    """One token, also when a worker has eaten those before; limits stay."""
    keys = queue_keys(queue)
    redis.hset(keys.meta, "concurrency", 7)
    scripts.pause(client, queue, by="anna", why="mail server down")
    enqueue_one(client, queue)
    redis.delete(keys.wake)
    assert scripts.resume(client, queue, by="ben") is True
    assert redis.lrange(keys.wake, 0, -1) == [b"1"]
    assert redis.hgetall(keys.meta) == {b"concurrency": b"7"}
    assert scripts.resume(client, queue, by="ben") is False
    assert redis.llen(keys.wake) == 1


# -- progress and log -------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["50", "", '{"done": 3}', 'a "quoted"\n\\ line', "é\u2028"])
def test_progress_is_published_as_json(client, redis, queue, value):
    """One object for each word, on the events channel of its queue alone."""
    job_id = job_in(client, queue, "active")
    with redis.pubsub() as subscriber:
        subscriber.psubscribe("*")
        assert subscriber.get_message(timeout=1)["type"] == "psubscribe"
        wire.progress(client, queue, job_id, 1, value)
        message = subscriber.get_message(timeout=1)
        with pytest.raises(StaleToken):
            wire.progress(client, queue, job_id, 2, "99")
        assert subscriber.get_message(timeout=0.05) is None
    assert message["channel"] == queue_keys(queue).events.encode()
    told = {"event": "progress", "job": job_id, "progress": value}
    assert json.loads(message["data"]) == told
    assert row(client, queue, job_id)["progress"] == value


@pytest.mark.parametrize("state", ["pending", "swept", "scheduled", "dead", "done"])
@pytest.mark.parametrize("verb", ["progress", "log"])
def test_only_a_holder_may_say_it(client, queue, state, verb):
    """A job that nobody holds makes no progress."""
    job_id = job_in(client, queue, state)
    before = everything(client)
    with pytest.raises(StaleToken, match="not held"):
        HOLDERS[verb](client, queue, job_id, 0 if state == "pending" else 1)
    assert everything(client) == before


@pytest.mark.parametrize("keep", [1, 3, 100])
def test_log_keeps_the_newest(client, redis, queue, keep):
    """So many lines, in order; the answer says how many there are."""
    job_id = job_in(client, queue, "active")
    counts = [wire.log(client, queue, job_id, 1, f"line {n}", keep=keep) for n in range(120)]
    assert counts == [min(n + 1, keep) for n in range(120)]
    lines = redis.lrange(queue_keys(queue).logs(job_id), 0, -1)
    assert lines == [f"line {n}".encode() for n in range(120 - keep, 120)]


@pytest.mark.parametrize("keep", [0, -3])
def test_log_keeps_at_least_a_line(client, queue, keep):
    """None, or less, is no way to say all."""
    job_id = job_in(client, queue, "active")
    counts = [wire.log(client, queue, job_id, 1, "line", keep=keep) for _ in range(3)]
    assert counts == [1, 1, 1]


Way = Callable[..., object]
WAYS_OUT: dict[str, Way] = {
    "complete": lambda c, q, i: complete(c, q, i, 1),
    "complete, kept, trimmed": lambda c, q, i: (
        complete(c, q, i, 1, keep_ms=1),
        pass_ms(c, 5),
        scripts.trim(c, q, dead_max=9, dead_ttl_ms=9000),
    ),
    "discard": lambda c, q, i: wire.discard(c, q, i, 1),
    "dead, trimmed by number": lambda c, q, i: (
        retry(c, q, i, 1, maximum=1),
        scripts.trim(c, q, dead_max=0, dead_ttl_ms=9000),
    ),
    "dead, trimmed by age": lambda c, q, i: (
        bury(c, q, i, 1),
        pass_ms(c, 5),
        scripts.trim(c, q, dead_max=9, dead_ttl_ms=1),
    ),
    "dead, drained": lambda c, q, i: (bury(c, q, i, 1), scripts.drain(c, q, "dead")),
    "cancelled, removed": lambda c, q, i: (scripts.cancel(c, q, [i]), scripts.remove(c, q, [i])),
    "removed by force": lambda c, q, i: scripts.remove(c, q, [i], force=True),
    "released, drained": lambda c, q, i: (
        wire.release(c, q, i, 1),
        scripts.drain(c, q, "pending"),
    ),
    "another life": lambda c, q, i: (
        bury(c, q, i, 1),
        scripts.reprocess(c, q, [i]),
        claim_one(c, q),
        complete(c, q, i, 2),
    ),
    "swept, completed late": lambda c, q, i: (wire.lapse(c, q, i, 1), complete(c, q, i, 1)),
    "obliterated": lambda c, q, i: (scripts.pause(c, q), scripts.obliterate(c, q, force=True)),
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_the_log_goes_with_the_row(client, queue, way):
    """On each way out, and not before."""
    job_id = job_in(client, queue, "active")
    wire.log(client, queue, job_id, 1, "line")
    assert job_keys(client, queue) == 2
    WAYS_OUT[way](client, queue, job_id)
    assert job_keys(client, queue) == 0


@pytest.mark.parametrize("state", ["snooze", "release", "retry", "bury"])
def test_the_log_outlives_a_run(client, redis, queue, state):
    """The next run writes below the lines of the one before."""
    job_id = job_in(client, queue, "active")
    wire.log(client, queue, job_id, 1, "first")
    HOLDERS[state](client, queue, job_id, 1)
    verb = {"bury": "reprocess", "release": ""}.get(state, "requeue")
    if verb:
        VERBS[verb](client, queue, [job_id])
    claim_one(client, queue)
    assert wire.log(client, queue, job_id, 2, "second") == 2
