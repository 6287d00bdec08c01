"""Field reports of queues that stand still, as far as they are not among the trials of faults."""

import logging

import pytest

from django_emq import scripts
from django_emq.keys import queue_keys
from django_emq.reaper import Reaper
from tests.conformance.wire import books_balance, calls, claim_some, enqueue_some, pass_ms
from tests.processes import wait_until

# More than `unpack` takes, and as ZADD pairs more than half of that.
LAPSED, DUE, CLEARED = (8001, 20_000), (4001, 20_000), (8001,)


def seed(client, queue, count, **options):
    for start in range(0, count, 1000):
        enqueue_some(client, queue, min(1000, count - start), **options)


def hold(client, queue, count):
    seed(client, queue, count)
    for start in range(0, count, 1000):
        claim_some(client, queue, min(1000, count - start), lease_ms=1)


@pytest.mark.parametrize(
    ("what", "count"),
    [
        *(("lapsed", count) for count in LAPSED),
        *(("due", count) for count in DUE),
        *(("cleared", count) for count in CLEARED),
    ],
)
def test_B27_too_many_results_to_unpack(client, redis, queue, caplog, what, count):
    """Whatever batch is asked for, a call moves 1,000 at most; each id is moved exactly once."""
    caplog.set_level(logging.ERROR, "django_emq")  # a line for each job
    keys, batch = queue_keys(queue), 10**9
    if what == "lapsed":
        hold(client, queue, count)
    else:
        seed(client, queue, count, due="+1" if what == "due" else "")
    pass_ms(client, 5)
    ids = {*redis.zrange(keys.active, 0, -1), *redis.zrange(keys.schedule, 0, -1)}
    if what == "cleared":
        steps = [1]
        while steps[-1]:
            steps.append(scripts.drain(client, queue, "pending", batch=batch))
        assert (sum(steps), max(steps)) == (count + 1, 1000)
    else:
        before = calls(client, "evalsha")
        reaper = Reaper(client, (queue,), interval=60, batch=batch)
        wait_until(lambda: reaper.run_once() and reaper.returned + reaper.promoted == count)
        assert calls(client, "evalsha") - before >= count / 1000
        assert set(redis.zrange(keys.pending, 0, -1)) == ids
    books_balance(client, queue)


def test_a_reaper_that_is_told_a_larger_batch_does_not_stop_half_way(client, queue, caplog):
    """A sweep goes on while a call was full, and a full call is 1,000 whatever was asked for."""
    caplog.set_level(logging.ERROR, "django_emq")
    hold(client, queue, 2500)
    pass_ms(client, 5)
    reaper = Reaper(client, (queue,), interval=60, batch=10**9)
    reaper.sweep(queue, seconds=60)
    assert reaper.returned == 2500
