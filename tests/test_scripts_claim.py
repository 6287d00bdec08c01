"""claim.lua: who is served, with what token, under which limits, and who is woken next."""

import pytest

from django_emq import scripts
from django_emq.keys import queue_keys
from tests.conformance import wire
from tests.conformance.wire import (
    books_balance,
    claim_one,
    claim_some,
    claims,
    complete,
    enqueue_one,
    enqueue_some,
    given,
    members,
    pass_ms,
    retry,
    row,
)


def ask(client, queue, *, request="r", worker="w", count=2, lease_ms=60_000, due=200):
    """One claim under a name of the test's choice."""
    return scripts.claim(
        client, queue, worker=worker, request=request, lease_ms=lease_ms, count=count, due=due
    )


@pytest.fixture
def limit(redis, queue):
    """Set a limit of the queue."""
    return lambda **limits: redis.hset(queue_keys(queue).meta, mapping=limits)


# -- the answer -------------------------------------------------------------------------------


def test_claim_notes_holder_and_start(client, queue):
    """The row says who holds the job since when; the answer how often it has failed."""
    job_id = enqueue_one(client, queue)
    claim_one(client, queue)
    retry(client, queue, job_id, 1, delay_ms=0)
    before = wire.now_ms(client)
    (job,) = claim_some(client, queue, 1, worker="w7")
    assert (job.token, job.failures, job.queue) == (2, 1, queue)
    fields = row(client, queue, job_id)
    assert fields["worker"] == "w7"
    assert before - 1 <= int(fields["started_at"]) <= wire.now_ms(client)


def test_lease_is_the_calls_or_the_rows(client, queue):
    """A row with a lease of its own keeps to it."""
    plain, own = enqueue_one(client, queue), enqueue_one(client, queue, lease_ms=5000)
    before = wire.now_ms(client)
    claim_some(client, queue, 2, lease_ms=90_000)
    after = wire.now_ms(client)
    leases = members(client, queue, "active")
    assert before + 89_999 <= leases[plain] <= after + 90_000
    assert before + 4999 <= leases[own] <= after + 5000


def test_the_same_request_gets_the_same_jobs(client, queue):
    """A reply was lost: same jobs, same tokens, same receipt, leases renewed, nothing new taken."""
    ids = enqueue_some(client, queue, 3)
    first = ask(client, queue, lease_ms=1000)
    assert [given(job) for job in first.jobs] == [(i, "work", 1) for i in ids[:2]]
    before = members(client, queue, "active")
    again = ask(client, queue, lease_ms=60_000)
    assert [given(job) for job in again.jobs] == [given(job) for job in first.jobs]
    assert again.receipt == first.receipt
    assert first.receipt == f"r {ids[0]}:1 {ids[1]}:1".encode()
    after = members(client, queue, "active")
    assert set(after) == set(before)
    assert all(after[i] - before[i] > 50_000 for i in after)
    assert members(client, queue, "pending") == {ids[2]: 0}
    books_balance(client, queue)


def test_a_repeat_answers_only_what_is_still_held(client, queue):
    """What was settled or lost since is not given a second time; a pause takes nothing away."""
    ids = enqueue_some(client, queue, 3)
    ask(client, queue, count=3)
    complete(client, queue, ids[0], 1)
    wire.lapse(client, queue, ids[1], 1)
    scripts.pause(client, queue)
    assert [given(job) for job in ask(client, queue, count=3).jobs] == [(ids[2], "work", 1)]
    scripts.resume(client, queue)
    assert given(claim_one(client, queue, worker="other")) == (ids[1], "work", 2)
    assert [given(job) for job in ask(client, queue, count=3).jobs] == [(ids[2], "work", 1)]


@pytest.mark.parametrize("attempts", [1, 10**9, 10**14 - 1])
def test_a_receipt_names_any_token(client, redis, queue, attempts):
    """A large token is written in full: the worker reads it from the receipt."""
    job_id = enqueue_one(client, queue)
    redis.hset(queue_keys(queue).job(job_id), "attempts", attempts)
    answer = ask(client, queue)
    assert answer.receipt == f"r {job_id}:{attempts + 1}".encode()
    assert [given(job) for job in ask(client, queue).jobs] == [given(job) for job in answer.jobs]


@pytest.mark.parametrize(
    "change", [{"request": "r2"}, {"request": ""}, {"worker": "w2"}], ids=["next", "none", "worker"]
)
def test_another_request_gets_other_jobs(client, queue, change):
    """The memory is of one worker's last request."""
    ids = enqueue_some(client, queue, 4)
    ask(client, queue)
    assert [given(job) for job in ask(client, queue, **change).jobs] == [
        (i, "work", 1) for i in ids[2:]
    ]


def test_a_claim_is_bounded(client, queue):
    """No call takes more than 1,000."""
    for _ in range(3):
        enqueue_some(client, queue, 400)
    assert len(claim_some(client, queue, 5000)) == scripts.BATCH_MAX == 1000
    assert len(members(client, queue, "pending")) == 200


# -- what is due ------------------------------------------------------------------------------


def test_due_jobs_are_served(client, queue):
    """Without a promoter: what is due becomes ready in the claim, within its bound."""
    ids = enqueue_some(client, queue, 5, due="+1")
    pass_ms(client, 5)
    assert len(ask(client, queue, request="r1", count=5, due=2).jobs) == 2
    assert len(members(client, queue, "schedule")) == 3
    assert len(ask(client, queue, request="r2", count=5).jobs) == 3
    assert set(members(client, queue, "active")) == set(ids)
    books_balance(client, queue)


def test_next_ms_tells_when_to_look_again(client, queue):
    """Until the next job falls due; -1 when none waits, or when all that was asked for came."""
    assert claims(client, queue).next_ms == -1
    enqueue_one(client, queue, due="+60000")
    assert 59_000 < claims(client, queue).next_ms <= 60_000
    enqueue_one(client, queue)
    assert claims(client, queue, 1).next_ms == -1
    enqueue_one(client, queue)
    assert 59_000 < claims(client, queue, 2).next_ms <= 60_000


# -- limits -----------------------------------------------------------------------------------


def test_a_pause_holds_everything(client, queue):
    """Nothing is served and nothing moved, not even what is due; who paused is told."""
    enqueue_one(client, queue)
    enqueue_one(client, queue, due="+1")
    pass_ms(client, 5)
    scripts.pause(client, queue, by="olga")
    before = wire.snapshot(client, queue)
    assert claims(client, queue, 5) == (-1, b"", [])
    assert wire.snapshot(client, queue) == before
    assert client.raw.hget(queue_keys(queue).meta, "paused_by") == b"olga"
    assert scripts.resume(client, queue) is True
    assert scripts.resume(client, queue) is False
    assert client.raw.exists(queue_keys(queue).meta) == 0
    assert len(claim_some(client, queue, 5)) == 2


def test_concurrency_is_kept(client, queue, limit):
    """No more jobs are held at once than the limit says; 0 is no limit."""
    ids = enqueue_some(client, queue, 5)
    limit(concurrency=3)
    assert len(claim_some(client, queue, 2)) == 2
    assert len(claim_some(client, queue, 2)) == 1
    assert claim_some(client, queue, 2) == []
    complete(client, queue, ids[0], 1)
    assert [given(job) for job in claim_some(client, queue, 2)] == [(ids[3], "work", 1)]
    limit(concurrency=0)
    assert len(claim_some(client, queue, 2)) == 1


def test_a_limit_below_what_is_held_takes_nothing(client, queue, limit):
    """A limit that was lowered: nobody is served, nothing breaks."""
    enqueue_some(client, queue, 4)
    claim_some(client, queue, 3)
    limit(concurrency=1)
    before = wire.snapshot(client, queue)
    assert claim_some(client, queue, 5) == []
    assert wire.snapshot(client, queue) == before


def test_rate_is_kept(client, redis, queue, limit):
    """Two in each window: two at once, none until it ends, then two; no try is spent."""
    ids = enqueue_some(client, queue, 5)
    limit(max=2, duration=300)
    assert [given(job) for job in claim_some(client, queue, 5)] == [(i, "work", 1) for i in ids[:2]]
    held_back = claims(client, queue, 5)
    assert held_back.jobs == []
    assert 0 < held_back.next_ms <= 300
    assert 0 < redis.pttl(queue_keys(queue).limiter) <= 300
    pass_ms(client, 310)
    assert [given(job) for job in claim_some(client, queue, 5)] == [
        (i, "work", 1) for i in ids[2:4]
    ]


def test_rate_tells_when_the_window_ends(client, queue, limit):
    """The claim that filled the window is told too, else its worker sleeps through the end."""
    enqueue_some(client, queue, 5)
    limit(max=2, duration=1000)
    assert 0 < claims(client, queue, 5).next_ms <= 1000


# -- the next worker --------------------------------------------------------------------------


@pytest.fixture
def wake(redis, queue):
    """The readiness tokens; to be set, and read."""

    class Wake:
        key = queue_keys(queue).wake

        def set(self, tokens: int) -> None:
            redis.delete(self.key)
            if tokens:
                redis.lpush(self.key, *[1] * tokens)

        def count(self) -> int:
            return redis.llen(self.key)

    return Wake()


@pytest.mark.parametrize(("tokens", "left"), [(0, 1), (1, 1), (3, 3)])
def test_a_wake_is_left_while_work_remains(client, queue, wake, tokens, left):
    """Whoever was woken wakes the next one."""
    enqueue_some(client, queue, 3)
    wake.set(tokens)
    claim_one(client, queue)
    assert wake.count() == left


def test_wakes_are_cleared_when_no_work_remains(client, queue, wake):
    """Nobody is woken for nothing."""
    enqueue_one(client, queue)
    wake.set(3)
    claim_one(client, queue)
    assert wake.count() == 0


def test_a_claim_of_none_passes_the_wake_on(client, queue, wake):
    """A busy worker that took the token gives it back by asking for nothing."""
    enqueue_some(client, queue, 2)
    wake.set(0)
    before = wire.snapshot(client, queue)
    assert claims(client, queue, 0).jobs == []
    assert wire.snapshot(client, queue) == before
    assert wake.count() == 1


def test_a_limit_wakes_nobody(client, queue, wake, limit):
    """There is work, but nobody may take it."""
    enqueue_some(client, queue, 3)
    wake.set(0)
    limit(concurrency=1)
    claim_some(client, queue, 2)
    assert wake.count() == 0
