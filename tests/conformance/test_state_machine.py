"""Section 6.1, state machine: scenarios 1 to 11, 15, 17, and J4."""

import pytest

from django_emq import inspector, scripts
from django_emq.backoff import Exponential
from django_emq.exceptions import KindRefused, StaleToken
from django_emq.ids import mint
from django_emq.jobs import NewJob
from django_emq.keys import queue_keys, reserve_keys

from . import wire
from .wire import (
    admit,
    claim_one,
    complete,
    enqueue_one,
    enqueue_some,
    given,
    members,
    pass_ms,
    retry,
    row,
)


def test_01_fence(client, redis, queue):
    """Given a connected client, when the version key is read, then it is the client's own value.

    Ours differs from the contract's, for our rows do.
    """
    scripts.register(client, [queue])
    assert redis.get(reserve_keys().version) == scripts.VERSION.encode()


def test_02_mint(client, queue):
    """Given an empty queue, when J is enqueued, then its row is exactly the three fields."""
    job = NewJob(mint(), "cargo")
    assert admit(client, queue, job) == [1]
    assert row(client, queue, job.id) == {"state": "pending", "attempts": "0", "payload": "cargo"}


def test_03_duplicate(client, queue):
    """Given J with `once`, when J is enqueued again with `twice`, then 0, and it says `once`."""
    job_id = enqueue_one(client, queue, "once")
    assert admit(client, queue, NewJob(job_id, "twice")) == [0]
    assert row(client, queue, job_id)["payload"] == "once"


def test_04_kind(client, redis, queue):
    """Given an ORD id, when it is enqueued, then EMQKIND, and it has no row."""
    job_id = "ORD" + mint()[3:]
    with pytest.raises(KindRefused):
        scripts.one(admit(client, queue, NewJob(job_id, "cargo")))
    assert redis.exists(queue_keys(queue).job(job_id)) == 0


def test_05_order(client, queue):
    """Given three J in mint order, when pending is read backwards by bytes, then newest first.

    Ids are wider than the contract's; their byte order is mint order all the same. The scores
    are -priority, so they are equal here.
    """
    ids = [enqueue_one(client, queue) for _ in range(3)]
    assert inspector.newest(client, queue) == ids[::-1]
    assert set(members(client, queue, "pending").values()) == {0.0}


def test_06_claim(client, queue):
    """Given J, when it is claimed, then (J, `work`, 1), and its row is active."""
    job_id = enqueue_one(client, queue, "work")
    assert given(claim_one(client, queue)) == (job_id, "work", 1)
    assert row(client, queue, job_id)["state"] == "active"


def test_07_stale(client, redis, queue):
    """Given a claimed J and a cold server, when 99 completes it, then 1, then EMQSTALE, then 1."""
    redis.script_flush()
    job_id = enqueue_one(client, queue)
    claim_one(client, queue)
    redis.script_flush()
    with pytest.raises(StaleToken, match=r"token mismatch \(yours 99, row 1\)"):
        complete(client, queue, job_id, 99)
    assert complete(client, queue, job_id, 1) == 1


def test_08_complete(client, queue):
    """Given a claimed J, when 1 completes it, then its row is gone and active is empty."""
    job_id = enqueue_one(client, queue)
    claim_one(client, queue)
    assert complete(client, queue, job_id, 1) == 1
    assert row(client, queue, job_id) == {}
    assert members(client, queue, "active") == {}


def test_09_retry(client, queue):
    """Given J with token 1, when it is retried in 10 ms of 3, then it runs again with token 2.

    The contract compares attempts with the cap; ours is `failures`.
    """
    job_id = enqueue_one(client, queue)
    claim_one(client, queue)
    assert retry(client, queue, job_id, 1, delay_ms=10, maximum=3, error="boom") == "scheduled"
    fields = row(client, queue, job_id)
    assert (fields["state"], fields["last_error"], fields["failures"]) == ("scheduled", "boom", "1")
    pass_ms(client, 30)
    assert scripts.promote(client, queue, batch=10) == 1
    assert given(claim_one(client, queue)) == (job_id, "work", 2)
    assert complete(client, queue, job_id, 2) == 1


def test_10_dead(client, queue):
    """Given J with token 1, when it is retried of 1, then dead, with the error, in the morgue.

    The morgue is scored by time of death; the contract's score is 0.
    """
    job_id = enqueue_one(client, queue)
    claim_one(client, queue)
    before = wire.now_ms(client)
    assert retry(client, queue, job_id, 1, maximum=1, error="gave up") == "dead"
    fields = row(client, queue, job_id)
    assert (fields["state"], fields["last_error"]) == ("dead", "gave up")
    morgue = members(client, queue, "dead")
    assert list(morgue) == [job_id]
    assert before - 1 <= morgue[job_id] <= wire.now_ms(client)


def test_11_reap(client, queue):
    """Given J leased for 30 ms, when 60 have passed and it is reaped, then token 2 completes it."""
    job_id = enqueue_one(client, queue)
    claim_one(client, queue, lease_ms=30)
    pass_ms(client, 60)
    assert wire.reap(client, queue) == [job_id]
    assert row(client, queue, job_id)["state"] == "pending"
    assert given(claim_one(client, queue)) == (job_id, "work", 2)
    assert complete(client, queue, job_id, 2) == 1


def test_15_schedule(client, queue):
    """Given J due in 30 ms, when 50 have passed, then promote answers 1 and it is claimed.

    Our claim promotes what is due by itself too; here promote comes first. Ten times as long here:
    on a busy machine 30 ms are over before the next line.
    """
    job_id = enqueue_one(client, queue, "later", due="+300")
    assert row(client, queue, job_id)["state"] == "scheduled"
    assert claim_one(client, queue) is None
    pass_ms(client, 500)
    assert scripts.promote(client, queue, batch=10) == 1
    assert given(claim_one(client, queue)) == (job_id, "later", 1)
    assert complete(client, queue, job_id, 1) == 1


def test_17_backoff(client, queue):
    """Given `poison` and exponential(1, 10) of 3, when it always fails, then dead at attempt 3."""
    job_id = enqueue_one(client, queue, "poison")
    policy = Exponential(0.001, factor=2, cap=0.010, jitter=False)
    verdicts = []
    for n in (1, 2, 3):
        assert given(claim_one(client, queue)) == (job_id, "poison", n)
        delay_ms = int(policy(n) * 1000)
        error = f"boom {n}"
        verdicts.append(retry(client, queue, job_id, n, delay_ms=delay_ms, maximum=3, error=error))
        pass_ms(client, delay_ms + 5)
        scripts.promote(client, queue)
    assert verdicts == ["scheduled", "scheduled", "dead"]
    fields = row(client, queue, job_id)
    assert (fields["state"], fields["last_error"]) == ("dead", "boom 3")
    assert list(members(client, queue, "dead")) == [job_id]


def test_j4_browse(client, queue):
    """Given 301 ids, when 5 are browsed, then the last five minted, reversed; the first is head."""
    ids = enqueue_some(client, queue, 301)
    assert inspector.newest(client, queue, 5) == ids[:-6:-1]
    assert next(iter(members(client, queue, "pending"))) == ids[0]
