"""Section 6.2, read plane: scenarios 19 to 23."""

import pytest

from django_emq import inspector, scripts
from django_emq.exceptions import JobGone, RateLimited, UnknownSet
from django_emq.ids import mint
from django_emq.keys import queue_keys

from . import wire
from .wire import claim_one, complete, enqueue_one, enqueue_some


def test_19_counts(client, queue):
    """Given one claimed, three pending, one in 60 s, when counted, then 3, 1, 1, 0; no `wait`."""
    enqueue_one(client, queue)
    claim_one(client, queue)
    enqueue_some(client, queue, 3)
    enqueue_one(client, queue, due="+60000")
    asked = ("pending", "active", "schedule", "dead")
    assert inspector.counts(client, queue, asked) == dict(zip(asked, (3, 1, 1, 0), strict=True))
    with pytest.raises(UnknownSet, match="'wait'"):
        inspector.counts(client, queue, ["wait"])


def test_20_state(client, queue):
    """Given one claimed, one scheduled, one unused id, when asked, then each says where it is."""
    claimed = enqueue_one(client, queue, "s")
    claim_one(client, queue)
    scheduled = enqueue_one(client, queue, due="+60000")
    unused = mint()
    states = [inspector.state(client, queue, i) for i in (claimed, scheduled, unused)]
    assert states == ["active", "scheduled", "absent"]
    fields = inspector.row(client, queue, claimed)
    assert [fields[name] for name in wire.PLAIN] == ["active", "1", "s"]
    with pytest.raises(JobGone):
        inspector.row(client, queue, unused)


def test_21_metrics(client, redis, queue):
    """Given a claimed J, when the counter is read before and after complete, then 0, then 1.

    The contract has a reserved series of points that nobody writes. Ours is the same counter
    for each minute, and goes by itself after two days.
    """
    job_id = enqueue_one(client, queue)
    claim_one(client, queue)
    assert inspector.totals(client, queue).get("completed", 0) == 0
    complete(client, queue, job_id, 1)
    assert inspector.totals(client, queue)["completed"] == 1
    pattern = queue_keys(queue).metrics + ":*"
    minutes = list(redis.scan_iter(pattern))
    assert sum(int(redis.hget(key, "completed") or 0) for key in minutes) == 1
    assert all(0 < redis.ttl(key) <= 172_800 for key in minutes)


def test_22_dedup(client, redis, queue):
    """Given the unique key order-42 of J, when two keys are read, then J, and none."""
    job_id = mint()
    redis.set(queue_keys(queue).unique("order-42"), job_id)
    assert inspector.unique(client, queue, "order-42") == job_id
    assert inspector.unique(client, queue, "never-parked") is None


def test_23_rate(client, redis, queue):
    """Given concurrency 1, when asked before and after a claim, then room, then EMQRATE."""
    redis.hset(queue_keys(queue).meta, "concurrency", 1)
    enqueue_one(client, queue)
    scripts.gate(client, queue)
    claim_one(client, queue)
    with pytest.raises(RateLimited, match="concurrency ceiling"):
        scripts.gate(client, queue)
