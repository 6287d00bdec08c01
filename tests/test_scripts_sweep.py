"""reap, promote and trim: bounded, exact, and harmless when several do it at once."""

import threading

import pytest

from django_emq import scripts
from django_emq.jobs import Reaped
from django_emq.keys import queue_keys
from tests.conformance import wire
from tests.conformance.wire import (
    books_balance,
    claim_one,
    claim_some,
    complete,
    enqueue_one,
    enqueue_some,
    extend,
    members,
    pass_ms,
    row,
)
from tests.processes import wait_until

DAY_MS = 86_400_000


@pytest.fixture
def clock_of(redis):
    """Set the score of an entry, as if its time had come."""

    def shift(key: str, job_id: str, ms: float) -> None:
        redis.zadd(key, {job_id: ms}, xx=True)

    return shift


def lapsed(client, queue, count: int) -> None:
    """So many held jobs whose lease is over."""
    for start in range(0, count, 500):
        enqueue_some(client, queue, min(500, count - start))
    while claim_some(client, queue, 1000, lease_ms=1):
        pass
    assert len(members(client, queue, "active")) == count
    pass_ms(client, 2)


def test_reap_tells_what_it_did(client, queue):
    """Ids that came back, ids that died, and when the next lease may lapse."""
    assert scripts.reap(client, queue, max_stalls=3) == Reaped(-1, [], [])
    back, doomed, held = (enqueue_one(client, queue, max_stalls=n) for n in (2, 1, 9))
    claim_some(client, queue, 3)
    for job_id in (back, doomed):
        extend(client, queue, job_id, 1, lease_ms=0)
    next_ms, returned, dead, *_ = scripts.reap(client, queue, max_stalls=1)
    assert (returned, dead) == ([back], [doomed])
    assert 59_000 < next_ms <= 60_000
    assert list(members(client, queue, "active")) == [held]
    fields = row(client, queue, doomed)
    assert members(client, queue, "dead") == {doomed: float(fields["finished_at"])}
    assert fields["attempts"] == "1"
    books_balance(client, queue)


def test_reap_leaves_what_is_held(client, queue):
    """A lease that has not ended is nobody's business."""
    enqueue_one(client, queue)
    claim_one(client, queue)
    before = wire.snapshot(client, queue)
    assert scripts.reap(client, queue, max_stalls=1).returned == []
    assert wire.snapshot(client, queue) == before


def test_promote_leaves_what_is_not_due(client, queue):
    """Its time has not come."""
    enqueue_one(client, queue, due="+60000")
    before = wire.snapshot(client, queue)
    assert scripts.promote(client, queue) == 0
    assert wire.snapshot(client, queue) == before


@pytest.mark.parametrize("batch", [1000, 20_000])
def test_reap_moves_any_number_in_bounded_steps(client, queue, batch):
    """8,001 lapsed leases: no script fails, no call moves more than 1,000, all come back once."""
    lapsed(client, queue, 8001)
    steps = []
    while step := scripts.reap(client, queue, max_stalls=3, batch=batch).returned:
        steps.append(step)
    assert [len(step) for step in steps] == [1000] * 8 + [1]
    assert {i for step in steps for i in step} == set(members(client, queue, "pending"))
    assert set(books_balance(client, queue).values()) == {1}
    assert int(client.raw.hget(queue_keys(queue).metrics, "reaped")) == 8001


@pytest.mark.parametrize("batch", [1000, 20_000])
def test_promote_moves_any_number_in_bounded_steps(client, queue, batch):
    """4,001 due jobs: no script fails, no call moves more than 1,000."""
    for start in range(0, 4001, 500):
        enqueue_some(client, queue, min(500, 4001 - start), due="+1")
    pass_ms(client, 5)
    steps = []
    while step := scripts.promote(client, queue, batch=batch):
        steps.append(step)
    assert steps == [1000] * 4 + [1]
    assert len(members(client, queue, "pending")) == 4001
    books_balance(client, queue)


def test_several_sweepers_at_once(client, queue):
    """Five reapers on 2,000 lapsed leases: each id comes back once, no token changes."""
    lapsed(client, queue, 2000)
    returned: list[str] = []

    def sweep() -> None:
        while step := scripts.reap(client, queue, max_stalls=9, batch=50).returned:
            returned.extend(step)

    threads = [threading.Thread(target=sweep) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(returned) == len(set(returned)) == 2000
    assert {r[b"stalls"] for r in wire.snapshot(client, queue)["rows"].values()} == {b"1"}
    assert set(books_balance(client, queue).values()) == {1}


# -- trim -------------------------------------------------------------------------------------


def trim(client, queue, *, dead_max: int = 1000, batch: int = 500) -> int:
    return scripts.trim(client, queue, dead_max=dead_max, dead_ttl_ms=DAY_MS, batch=batch)


def kill(client, queue, count: int) -> list[str]:
    """So many dead jobs, one after the other, the newest id first."""
    ids = enqueue_some(client, queue, count)
    claim_some(client, queue, count)
    for job_id in reversed(ids):
        wire.bury(client, queue, job_id, 1)
        pass_ms(client, 1.5)
    return ids[::-1]


def test_trim_drops_the_longest_dead(client, redis, queue):
    """Past the cap the oldest deaths go, not the oldest ids, with their rows and logs."""
    deaths = kill(client, queue, 6)
    redis.rpush(queue_keys(queue).job(deaths[0]) + ":logs", "line")
    assert trim(client, queue, dead_max=4) == 2
    assert list(members(client, queue, "dead")) == deaths[2:]
    assert len(redis.keys(queue_keys(queue).jobs + "*")) == 4
    assert trim(client, queue, dead_max=4) == 0
    books_balance(client, queue)


def test_trim_drops_what_is_too_old(client, queue, clock_of):
    """A day and a second goes, a day less a second stays."""
    old, young = kill(client, queue, 2)
    now = wire.now_ms(client)
    clock_of(queue_keys(queue).dead, old, now - DAY_MS - 1000)
    clock_of(queue_keys(queue).dead, young, now - DAY_MS + 1000)
    assert trim(client, queue) == 1
    assert list(members(client, queue, "dead")) == [young]
    books_balance(client, queue)


def test_trim_drops_results_past_their_time(client, queue, clock_of):
    """A finished job goes at the end of the time that it was given, not before."""
    over, kept = enqueue_some(client, queue, 2)
    claim_some(client, queue, 2)
    for job_id in (over, kept):
        complete(client, queue, job_id, 1, keep_ms=60_000)
    clock_of(queue_keys(queue).done, over, wire.now_ms(client) - 1)
    assert trim(client, queue) == 1
    assert row(client, queue, over) == {}
    assert list(members(client, queue, "done")) == [kept]
    books_balance(client, queue)


def test_trim_is_bounded(client, queue):
    """So many of each set in one call, the rest in the next; 0 in the end."""
    kill(client, queue, 5)
    ids = enqueue_some(client, queue, 3)
    claim_some(client, queue, 3)
    scripts.complete(client, queue, [(i, 1, "") for i in ids], keep_ms=1)
    pass_ms(client, 3)
    assert [trim(client, queue, dead_max=0, batch=2) for _ in range(4)] == [4, 3, 1, 0]
    assert not any(wire.snapshot(client, queue).values())


def test_a_dead_job_with_a_shorter_time_of_its_own(client, redis, queue):
    """It goes after that, beside others that stay; and only where the sweep looks for it."""
    own, other, late = enqueue_some(client, queue, 3)
    wire.claim_some(client, queue, 3)
    redis.hset(queue_keys(queue).job(own), "dead_ms", 5)
    redis.hset(queue_keys(queue).job(late), "dead_ms", 60_000)
    redis.hset(queue_keys(queue).job(other), "dead_ms", "nonsense")
    for job_id in (own, other, late):
        wire.bury(client, queue, job_id, 1)
    pass_ms(client, 10)
    limits = {"dead_max": 10, "dead_ttl_ms": 60_000}
    assert scripts.trim(client, queue, **limits) == 0
    assert scripts.trim(client, queue, look=100, **limits) == 1
    assert set(members(client, queue, "dead")) == {other, late}
    assert not redis.exists(queue_keys(queue).job(own))
    books_balance(client, queue)


def test_a_large_morgue_is_looked_at_in_parts(client, redis, queue):
    """Each call looks at another part of it, both ends included, until none is left."""
    ids = enqueue_some(client, queue, 60)
    wire.claim_some(client, queue, 60)
    for job_id in ids:
        redis.hset(queue_keys(queue).job(job_id), "dead_ms", 1)
        wire.bury(client, queue, job_id, 1)
    pass_ms(client, 5)

    def none_is_left():
        trimmed = scripts.trim(client, queue, dead_max=99, dead_ttl_ms=60_000, look=10, batch=7)
        assert trimmed <= 7
        return not members(client, queue, "dead")

    wait_until(none_is_left, what="the morgue to be empty")
