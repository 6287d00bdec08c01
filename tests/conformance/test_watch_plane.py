"""Section 6.4, watch plane: scenarios 33, 34, 38, 39, 41."""

import pytest

from django_emq import inspector, scripts
from django_emq.exceptions import JobGone, RateLimited, StaleToken
from django_emq.ids import mint
from django_emq.keys import queue_keys

from . import wire
from .wire import claim_one, claim_some, complete, enqueue_one, extend, given, members, row


def test_33_lock_extend(client, queue):
    """Given J leased for 50 ms, when 1 extends it, then 120 ms later a reap leaves it alone."""
    job_id = enqueue_one(client, queue)
    claim_one(client, queue, lease_ms=50)
    assert extend(client, queue, job_id, 1, lease_ms=60_000) == 1
    wire.pass_ms(client, 120)
    assert wire.reap(client, queue) == []
    assert list(members(client, queue, "active")) == [job_id]
    with pytest.raises(StaleToken, match=r"token mismatch \(yours 2, row 1\)"):
        extend(client, queue, job_id, 2)
    with pytest.raises(JobGone):
        extend(client, queue, mint(), 1)


def test_34_stalled(client, queue):
    """Given J whose lease lapses twice, when swept with max 2, then recovered once, then dead.

    The contract counts in the field `stalled` and writes the error `stalled`; ours are `stalls`
    and a sentence that begins so. Our reap is both of the contract's sweeps.
    """
    job_id = enqueue_one(client, queue)
    claim_one(client, queue, lease_ms=30)
    assert "stalls" not in row(client, queue, job_id)
    wire.pass_ms(client, 80)
    _, recovered, dead, *_ = scripts.reap(client, queue, max_stalls=2)
    assert (recovered, dead) == ([job_id], [])
    assert row(client, queue, job_id)["stalls"] == "1"
    assert inspector.state(client, queue, job_id) == "pending"

    assert given(claim_one(client, queue, lease_ms=30)) == (job_id, "work", 2)
    wire.pass_ms(client, 80)
    _, recovered, dead, *_ = scripts.reap(client, queue, max_stalls=2)
    assert (recovered, dead) == ([], [job_id])
    fields = row(client, queue, job_id)
    assert fields["state"] == inspector.state(client, queue, job_id) == "dead"
    assert fields["last_error"].startswith("stalled: ")


def test_38_unknown_state(client, redis, queue):
    """Given J taken out of active by hand, when asked, then unknown; its row says active."""
    job_id = enqueue_one(client, queue)
    claim_one(client, queue)
    redis.zrem(queue_keys(queue).active, job_id)
    assert inspector.state(client, queue, job_id) == "unknown"
    assert row(client, queue, job_id)["state"] == "active"
    assert inspector.state(client, queue, mint()) == "absent"


def test_39_rate_consult(client, redis, queue):
    """Given concurrency 1, one claimed, one waiting, when asked, then no; after complete, yes.

    The contract's limit is advice. Our claim keeps to it by itself too.
    """
    redis.hset(queue_keys(queue).meta, "concurrency", 1)
    job_id = enqueue_one(client, queue)
    claim_one(client, queue)
    enqueue_one(client, queue)
    with pytest.raises(RateLimited):
        scripts.gate(client, queue)
    assert claim_one(client, queue) is None
    assert inspector.counts(client, queue, ("active", "pending")) == {"active": 1, "pending": 1}
    complete(client, queue, job_id, 1)
    scripts.gate(client, queue)
    assert claim_one(client, queue) is not None


def test_41_extend_locks_batch(client, queue):
    """Given live, stale and gone, when all are extended in one call, then two are refused."""
    live, stale = enqueue_one(client, queue), enqueue_one(client, queue)
    claim_some(client, queue, 2)
    gone = mint()
    verdicts = scripts.extend(client, queue, [(live, 1), (stale, 999), (gone, 1)], lease_ms=60_000)
    assert verdicts[0] == 1
    assert [type(v) for v in verdicts[1:]] == [StaleToken, JobGone]
