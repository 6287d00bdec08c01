"""Section 6.8, batches: scenarios 62 to 67 and 71 to 73.

The contract shapes its batches by a depth and a time-out and gives them to one handler. Here a
batch is what one claim brings, the worker's appetite says how many, and each job is run alone.
"""

import time

import pytest

from django_emq import inspector, scripts
from django_emq.exceptions import JobGone, StaleToken
from django_emq.ids import mint
from django_emq.worker.appetite import Appetite
from django_emq.worker.child import make_page
from django_emq.worker.courier import Courier
from django_emq.worker.options import WINDOW, WorkerOptions

from . import wire
from .wire import (
    claim_one,
    claim_some,
    complete,
    enqueue_one,
    enqueue_some,
    given,
    members,
    pass_ms,
    retry,
    row,
    snooze,
)


@pytest.fixture
def courier(client, queue):
    """A worker's courier that has not begun to run."""
    options = WorkerOptions(queues=(queue,), lease=15)
    courier = Courier(client, options, make_page(options), leave=lambda status: None)
    yield courier
    courier.bell.close()


def appetite(courier: Courier, *, mean: float) -> Appetite:
    """The appetite of that worker after ten jobs of `mean` seconds each."""
    (runner,) = courier.runners
    runner.busy, runner.jobs = 10 * mean, 10
    return Appetite(courier.runners, courier.loop, courier.inbox)


def test_62_batch_claim(client, queue):
    """Given 8, when 4 are claimed, then the 4 oldest in order, tokens 1, one common lease."""
    ids = enqueue_some(client, queue, 8)
    batch = claim_some(client, queue, 4)
    assert [given(job) for job in batch] == [(i, "work", 1) for i in ids[:4]]
    leases = members(client, queue, "active")
    assert set(leases) == set(ids[:4])
    assert len(set(leases.values())) == 1
    assert {row(client, queue, i)["state"] for i in ids[:4]} == {"active"}


def test_63_batch_claim_short(client, queue):
    """Given 3, and a paused queue with 1, when 7, 5 and 5 are claimed, then 3, none, none."""
    ids = enqueue_some(client, queue, 3)
    paused = queue + ".paused"
    enqueue_one(client, paused)
    scripts.pause(client, paused)
    assert [given(job) for job in claim_some(client, queue, 7)] == [(i, "work", 1) for i in ids]
    assert claim_some(client, queue, 5) == []
    assert claim_some(client, paused, 5) == []
    assert inspector.counts(client, paused)["pending"] == 1


def test_64_batch_partial_failure(client, queue):
    """Given 3 claimed, when the first fails and the others complete, then it alone comes back."""
    ids = enqueue_some(client, queue, 3)
    claim_some(client, queue, 3)
    with pytest.raises(StaleToken):
        complete(client, queue, ids[0], 99)
    assert retry(client, queue, ids[0], 1, delay_ms=5, error="poison") == "scheduled"
    assert scripts.complete(client, queue, [(i, 1, "") for i in ids[1:]]) == [1, 1]
    fields = row(client, queue, ids[0])
    assert (fields["state"], fields["last_error"]) == ("scheduled", "poison")
    assert row(client, queue, ids[1]) == row(client, queue, ids[2]) == {}
    pass_ms(client, 30)
    assert scripts.promote(client, queue, batch=10) == 1
    assert [given(job) for job in claim_some(client, queue, 5)] == [(ids[0], "work", 2)]


def test_65_batch_shaping_floor(client, queue, courier):
    """Given 6, when the batch is shaped and claimed, then all in order, tokens 1, rows go.

    The contract waits below its floor of 4. Ours has none: a worker that knows nothing takes
    one job at once, and one whose jobs take 5 ms as many as fill its window.
    """
    ids = enqueue_some(client, queue, 6)
    unknown = Appetite(courier.runners, courier.loop, courier.inbox)
    assert unknown.want(time.monotonic()) == 1
    want = appetite(courier, mean=WINDOW / 10).want(time.monotonic())
    assert want == 10
    batch = claim_some(client, queue, want)
    assert [given(job) for job in batch] == [(i, "work", 1) for i in ids]
    assert scripts.complete(client, queue, [(j.id, j.token, "") for j in batch]) == [1] * 6
    assert wire.snapshot(client, queue)["rows"] == {}


def test_66_batch_shaping_timeout(client, queue, courier):
    """Given 2, when a batch of more is wanted, then exactly the 2 in order, without a time-out.

    The contract waits for 5 until 200 ms are over. Ours never waits for more: what is there is
    taken, and an empty queue answers at once with nothing.
    """
    ids = enqueue_some(client, queue, 2)
    want = appetite(courier, mean=WINDOW / 5).want(time.monotonic())
    assert want == 5
    batch = claim_some(client, queue, want)
    assert claim_some(client, queue, want) == []
    assert [given(job) for job in batch] == [(i, "work", 1) for i in ids]
    assert scripts.complete(client, queue, [(j.id, j.token, "") for j in batch]) == [1, 1]


def test_67_batch_shaping_partial_failure(client, queue):
    """Given 3 claimed, when error, ok and no verdict are settled, then first and third come back.

    A missing verdict is the contract's; our runner always has one. The wire is the same.
    """
    ids = enqueue_some(client, queue, 3)
    claim_some(client, queue, 3)
    failed = [(ids[0], 1, 1, "poison", ""), (ids[2], 1, 1, "missing verdict", "")]
    assert scripts.retry(client, queue, failed, max_attempts=5) == ["scheduled", "scheduled"]
    assert complete(client, queue, ids[1], 1) == 1
    rows = wire.snapshot(client, queue)["rows"]
    assert {i: fields[b"last_error"] for i, fields in rows.items()} == {
        ids[0]: b"poison",
        ids[2]: b"missing verdict",
    }
    pass_ms(client, 30)
    assert scripts.promote(client, queue, batch=10) == 2
    assert {given(job) for job in claim_some(client, queue, 5)} == {
        (ids[0], "work", 2),
        (ids[2], "work", 2),
    }


def test_71_batch_partition(client, queue):
    """Given 5 claimed, when each has another verdict, then the scripts sort them into 4 buckets.

    The contract compares attempts with the cap; ours compares `failures`, here 1 too.
    """
    ids = enqueue_some(client, queue, 5)
    claim_some(client, queue, 5)
    # In the order of the contract's handler: ok, error of 9, error of 1, delay, none at all.
    verdicts: list[object] = [
        *scripts.complete(client, queue, [(ids[0], 1, "")]),
        *scripts.retry(client, queue, [(ids[1], 1, 30, "boom", "")], max_attempts=9),
        *scripts.retry(client, queue, [(ids[2], 1, 30, "gave up", "")], max_attempts=1),
        *scripts.snooze(client, queue, [(ids[3], 1, "+30")]),
        *scripts.retry(client, queue, [(ids[4], 1, 30, "missing verdict", "")], max_attempts=9),
    ]
    assert verdicts == [1, "scheduled", "dead", 1, "scheduled"]
    state = wire.snapshot(client, queue)
    assert list(state["dead"]) == [ids[2]]
    assert set(state["schedule"]) == {ids[1], ids[3], ids[4]}
    assert state["pending"] == state["active"] == {}
    states = [row(client, queue, i).get("state") for i in ids]
    assert states == [None, "scheduled", "dead", "scheduled", "scheduled"]
    # Delayed and retried stand in one set; only a failure tells them apart.
    failures = [row(client, queue, i).get("failures") for i in ids[1:]]
    assert failures == ["1", "1", None, "1"]


def test_72_batch_delay(client, queue):
    """Given J with token 1, when delayed for 40 ms, then none, and after 60 it has token 2.

    Ten times as long here: on a busy machine 40 ms are over before the next line.
    """
    job_id = enqueue_one(client, queue, "later")
    claim_one(client, queue)
    assert snooze(client, queue, job_id, 1, 400) == 1
    fields = row(client, queue, job_id)
    assert (fields["state"], fields["attempts"]) == ("scheduled", "1")
    assert list(members(client, queue, "schedule")) == [job_id]
    assert members(client, queue, "active") == {}
    assert claim_one(client, queue) is None
    pass_ms(client, 600)
    assert scripts.promote(client, queue) == 1
    assert given(claim_one(client, queue)) == (job_id, "later", 2)
    assert complete(client, queue, job_id, 2) == 1


def test_73_batch_delay_stale(client, redis, queue):
    """Given J with token 2 on a cold server, when 1, 2 and a stranger delay, then stale, ok, gone.

    The contract's refusal of a missing job is EMQSTALE, which it maps to gone; ours is EMQGONE.
    """
    job_id = enqueue_one(client, queue)
    claim_one(client, queue, lease_ms=30)
    pass_ms(client, 60)
    wire.reap(client, queue)
    assert given(claim_one(client, queue)) == (job_id, "work", 2)
    lease = members(client, queue, "active")
    redis.script_flush()
    with pytest.raises(StaleToken, match=r"token mismatch \(yours 1, row 2\)"):
        snooze(client, queue, job_id, 1)
    assert members(client, queue, "active") == lease
    assert snooze(client, queue, job_id, 2) == 1
    assert row(client, queue, job_id)["state"] == "scheduled"
    assert members(client, queue, "active") == {}
    with pytest.raises(JobGone):
        snooze(client, queue, mint(), 1)
