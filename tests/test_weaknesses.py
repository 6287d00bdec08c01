"""Known weaknesses of the contract's scripts: each is shown there, and shown to be gone here.

Every test has two halves. The first drives the contract's own scripts (`contract_scripts`) into
the weakness; the second does the same with ours, and the books balance.
"""

import threading
import time
from collections.abc import Callable

import pytest

from django_emq import scripts
from django_emq.exceptions import StaleToken
from django_emq.ids import mint
from django_emq.keys import queue_keys
from django_emq.reaper import Reaper
from tests.conformance import wire
from tests.conformance.wire import (
    books_balance,
    claim_one,
    claim_some,
    complete,
    enqueue_one,
    enqueue_some,
    extend,
    given,
    lapse,
    members,
    pass_ms,
    reap,
    retry,
    row,
    snooze,
)
from tests.contract_scripts import Contract
from tests.probe import tasks
from tests.processes import Worker, wait_until


@pytest.fixture
def theirs(redis, queue) -> Contract:
    """A queue driven by the contract's scripts."""
    return Contract(redis, queue + ".contract")


@pytest.fixture
def held(theirs) -> str:
    """A job of the contract's queue, claimed with token 1."""
    job_id = mint()
    theirs.enqueue(job_id)
    assert theirs.claim()[2] == 1
    return job_id


@pytest.fixture
def job_id(client, queue) -> str:
    """A job of ours, claimed with token 1."""
    job_id = enqueue_one(client, queue)
    claim_one(client, queue)
    return job_id


def refused(client, queue, words: str, verb: Callable[..., object], *args: object) -> None:
    """The verb is refused as stale, with these words, and changes nothing."""
    before = wire.snapshot(client, queue)
    with pytest.raises(StaleToken, match=words):
        verb(client, queue, *args)
    assert wire.snapshot(client, queue) == before


# -- A: between release and the next claim ----------------------------------------------------


def test_a1_complete_after_own_retry(client, redis, queue, theirs, held, job_id):
    """A holder that has decided on retry cannot complete the same run."""
    theirs.retry(held, 1, 0, 3, "boom")
    assert theirs.complete(held, 1) == 1
    assert theirs.places(held) == ["schedule"]  # an id without a row
    theirs.promote()
    assert theirs.claim() == [held.encode(), None, 1]  # and that reaches a worker

    retry(client, queue, job_id, 1, delay_ms=0)
    words = r"settled before by retry \(yours 1, row 1\)"
    refused(client, queue, words, complete, job_id, 1)
    scripts.promote(client, queue)
    refused(client, queue, words, complete, job_id, 1)
    assert given(claim_one(client, queue)) == (job_id, "work", 2)
    books_balance(client, queue)


def test_a2_complete_of_a_dead_job(client, redis, queue, theirs, held, job_id):
    """What lies in the morgue cannot be completed with its last token."""
    theirs.retry(held, 1, 0, 1, "boom")
    assert theirs.complete(held, 1) == 1
    assert theirs.places(held) == ["dead"]
    assert redis.exists(theirs.key(f"job:{held}")) == 0

    assert retry(client, queue, job_id, 1, maximum=1) == "dead"
    refused(client, queue, r"settled before by retry \(yours 1, row 1\)", complete, job_id, 1)
    books_balance(client, queue)


def test_a3_delay_in_the_reap_window(client, queue, theirs, held, job_id):
    """A job that was swept cannot be put off by its old holder as well."""
    theirs.lapse(held)
    theirs.reap()
    assert theirs.delay(held, 1, 1000) == 1
    assert theirs.places(held) == ["pending", "schedule"]

    lapse(client, queue, job_id, 1)
    refused(client, queue, r"not held \(yours 1, row 1\)", snooze, job_id, 1)
    books_balance(client, queue)


def test_a4_extend_in_the_reap_window(client, redis, queue, theirs, held, job_id):
    """A lease that was swept cannot be prolonged."""
    theirs.lapse(held)
    theirs.reap()
    assert theirs.extend(held, 1) == 1
    assert theirs.places(held) == ["pending", "active"]
    theirs.complete(held, 1)
    assert theirs.places(held) == ["pending"]
    assert redis.exists(theirs.key(f"job:{held}")) == 0

    lapse(client, queue, job_id, 1)
    refused(client, queue, r"not held \(yours 1, row 1\)", extend, job_id, 1)
    assert complete(client, queue, job_id, 1) == 1
    assert not any(wire.snapshot(client, queue).values())


def test_a5_retry_sent_twice_at_the_cap(client, redis, queue, theirs, held, job_id):
    """A death that is told twice is counted once."""
    for _ in range(2):
        assert theirs.retry(held, 1, 0, 1, "boom") == b"dead"
    assert redis.hget(theirs.key("metrics:failed"), "count") == b"2"

    for _ in range(2):
        assert retry(client, queue, job_id, 1, maximum=1) == "dead"
    counters = redis.hgetall(queue_keys(queue).metrics)
    assert (counters[b"dead"], counters[b"failed"]) == (b"1", b"1")
    books_balance(client, queue)


def test_a6_ghosts(client, redis, queue, theirs):
    """An id without a row goes to the morgue, and the next job is served."""
    ghost, good = mint(), mint()
    redis.zadd(theirs.key("pending"), {ghost: 0})
    theirs.enqueue(good)
    assert theirs.claim() == [ghost.encode(), None, 1]
    assert redis.hgetall(theirs.key(f"job:{ghost}")) == {b"attempts": b"1", b"state": b"active"}

    redis.zadd(queue_keys(queue).pending, {ghost: 0})
    good = enqueue_one(client, queue)
    assert [given(job) for job in claim_some(client, queue, 5)] == [(good, "work", 1)]
    assert "it is missing" in row(client, queue, ghost)["last_error"]
    assert list(members(client, queue, "dead")) == [ghost]
    books_balance(client, queue)


# -- D: waking and latency --------------------------------------------------------------------


def test_d2_flat_work_wakes(client, redis, queue, theirs):
    """Enqueue, promote and reap of flat jobs wake a worker."""
    one, two = mint(), mint()
    theirs.enqueue(one)
    theirs.claim()
    theirs.lapse(one)
    theirs.schedule(two, 0)
    assert (theirs.reap(), theirs.promote()) == (1, 1)
    assert redis.llen(theirs.key("wake")) == 0

    wake = queue_keys(queue).wake
    one = enqueue_one(client, queue)
    assert redis.llen(wake) == 1
    claim_one(client, queue)
    assert redis.llen(wake) == 0  # nothing is left to be woken for
    lapse(client, queue, one, 1)
    assert redis.llen(wake) == 1
    redis.delete(wake)
    enqueue_one(client, queue, due="+1")
    redis.delete(wake)
    pass_ms(client, 5)
    assert scripts.promote(client, queue) == 1
    assert redis.llen(wake) == 1


class Waiters:
    """Threads that each wait for one wake and then claim once: 8 parked consumers."""

    COUNT = 8

    def __init__(self, redis, wake: str, claim: Callable[[], object]) -> None:
        self.served = 0
        self._redis, self._wake, self._claim = redis, wake, claim
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._wait) for _ in range(self.COUNT)]
        for thread in self._threads:
            thread.start()
        wait_until(lambda: redis.info("clients")["blocked_clients"] == self.COUNT)

    def _wait(self) -> None:
        if self._redis.blpop(self._wake, 1) and self._claim():
            with self._lock:
                self.served += 1

    def join(self) -> int:
        """How many were served before their second was over."""
        for thread in self._threads:
            thread.join()
        return self.served


def test_d3_a_burst_wakes_all(client, redis, queue, theirs):
    """Eighty jobs at once wake all parked workers: the one that was woken wakes the next."""
    waiters = Waiters(redis, theirs.key("wake"), theirs.gclaim)
    for _ in range(80):
        theirs.genqueue(mint(), "PRT0000000000A")
    assert waiters.join() == 1

    clock = wire.Clock()
    names = iter([f"w{n}" for n in range(Waiters.COUNT)])
    waiters = Waiters(
        redis, queue_keys(queue).wake, lambda: claim_one(client, queue, worker=next(names))
    )
    enqueue_some(client, queue, 80)
    assert waiters.join() == Waiters.COUNT
    assert clock.seconds < 5


def test_d3_real_workers_are_woken(client, redis, queue, probe):
    """Two parked worker processes share a burst long before their beat of 10 s."""
    keys = queue_keys(queue)

    def holders() -> set[bytes]:
        held = redis.zrange(keys.active, 0, -1)
        return {redis.hget(keys.job(i.decode()), "worker") for i in held} - {None}

    with Worker(queue, "--no-sweep") as one, Worker(queue, "--no-sweep") as two:
        one.wait_ready()
        two.wait_ready()
        wait_until(lambda: redis.info("clients")["blocked_clients"] == 2)
        nap = tasks.nap.using(queue=queue)
        clock = wire.Clock()
        for _ in range(80):
            nap.enqueue(30)
        wait_until(lambda: len(holders()) == 2, what="both workers at work")
        assert clock.seconds < 5


def test_d5_resume_wakes(client, redis, queue, theirs):
    """Work that waited for a paused queue is taken up at once."""
    theirs.pause()
    theirs.enqueue(mint())
    theirs.resume()
    assert redis.llen(theirs.key("wake")) == 0

    scripts.pause(client, queue)
    enqueue_one(client, queue)
    redis.delete(queue_keys(queue).wake)  # eaten by a worker while the queue was paused
    scripts.resume(client, queue)
    assert redis.llen(queue_keys(queue).wake) == 1


def test_d6_one_pass_takes_all(client, redis, queue, theirs):
    """One pass moves all that lapsed and all that is due, in bounded steps."""
    count = 1201
    theirs_held, theirs_due = [mint() for _ in range(count)], [mint() for _ in range(count)]
    redis.zadd(theirs.key("active"), dict.fromkeys(theirs_held, 1))
    redis.zadd(theirs.key("schedule"), dict.fromkeys(theirs_due, 1))
    assert (theirs.reap(), theirs.promote()) == (100, 100)  # what one beat of a consumer does

    for start in range(0, count, 500):
        size = min(500, count - start)
        enqueue_some(client, queue, size)
        assert len(claim_some(client, queue, size, lease_ms=1)) == size
    for start in range(0, count, 500):
        enqueue_some(client, queue, min(500, count - start), due="+1")
    pass_ms(client, 5)
    reaper = Reaper(client, (queue,), interval=60)
    while reaper.run_once() < 1:  # a busy machine may need a second turn, which follows at once
        pass
    assert (reaper.returned, reaper.promoted) == (count, count)
    state = wire.snapshot(client, queue)
    assert (len(state["pending"]), state["active"], state["schedule"]) == (2 * count, {}, {})


def test_d7_a_paused_queue_does_not_spin(client, redis, queue, theirs, probe):
    """A worker of a paused queue with work in it rests."""
    theirs.enqueue(mint())
    theirs.pause()
    for _ in range(50):  # the batch consumer: deep enough, so flush; empty, so again, and no rest
        assert redis.zcard(theirs.key("pending")) >= 1
        assert theirs.is_paused()

    scripts.pause(client, queue)
    mark = tasks.mark.using(queue=queue)
    mark.enqueue("a")
    with Worker(queue, "--no-sweep") as worker:
        worker.wait_ready()
        wait_until(lambda: redis.info("clients")["blocked_clients"] == 1)
        before = wire.calls(client, "evalsha")
        time.sleep(0.5)  # nothing must happen, so there is nothing to wait for
        assert wire.calls(client, "evalsha") - before <= 1
        assert probe.marks() == []
        scripts.resume(client, queue)
        assert probe.wait_for(1) == ["a"]


# -- F: budgets -------------------------------------------------------------------------------


def test_f3_crash_loops_end(client, queue, theirs):
    """A job that kills its workers ends in the morgue."""
    poison = mint()
    theirs.enqueue(poison)
    for _ in range(20):
        theirs.claim()
        theirs.lapse(poison)
        theirs.reap()
    assert theirs.places(poison) == ["pending"]

    job_id = enqueue_one(client, queue)
    crashes = 0
    while claim_one(client, queue):
        crashes += 1
        extend(client, queue, job_id, crashes, lease_ms=0)
        reap(client, queue, max_stalls=3)
    assert crashes == 3
    fields = row(client, queue, job_id)
    assert (fields["state"], fields["stalls"], fields["attempts"]) == ("dead", "3", "3")
    assert "the worker was lost or its lease lapsed 3 times" in fields["last_error"]
    assert "failures" not in fields
    books_balance(client, queue)


def test_f4_a_snooze_spends_nothing(client, queue, theirs):
    """Two delays and one real failure of 3 allowed: the job lives."""
    tired = mint()
    theirs.enqueue(tired)
    for token in (1, 2):
        theirs.claim()
        theirs.delay(tired, token, 0)
        theirs.promote()
    theirs.claim()
    assert theirs.retry(tired, 3, 0, 3, "boom") == b"dead"

    job_id = enqueue_one(client, queue)
    for token in (1, 2):
        assert given(claim_one(client, queue)) == (job_id, "work", token)
        snooze(client, queue, job_id, token, 0)
    assert given(claim_one(client, queue)) == (job_id, "work", 3)
    assert retry(client, queue, job_id, 3, maximum=3) == "scheduled"
    assert row(client, queue, job_id)["failures"] == "1"
    books_balance(client, queue)


# -- G: races of the host ---------------------------------------------------------------------


def test_g1_nothing_slips_through_a_pause(client, queue, theirs):
    """When pause has returned, no claim takes a job, also one that looked before."""
    theirs.enqueue(mint())
    paused = theirs.is_paused()  # a consumer looks
    theirs.pause()
    assert not paused  # so it goes on
    assert theirs.claim() != []

    enqueue_one(client, queue)
    scripts.pause(client, queue)
    before = wire.snapshot(client, queue)
    assert claim_some(client, queue, 5) == []
    assert wire.snapshot(client, queue) == before
