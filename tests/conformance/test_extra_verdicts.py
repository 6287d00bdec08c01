"""Section 6.9, extra verdicts: G6, G7, G8."""

import time

import pytest

from django_emq.jobs import encode
from django_emq.keys import queue_keys
from tests.probe import tasks
from tests.processes import Worker, wait_until

from . import wire
from .wire import claim_one, complete, enqueue_one


def commands(redis) -> int:
    """Commands that the server has carried out so far, except the question itself."""
    stats = redis.info("commandstats")
    return sum(facts["calls"] for name, facts in stats.items() if name != "cmdstat_info")


@pytest.mark.parametrize("processes", ["0", "1"])
def test_g6_waiting_costs_nothing(redis, queue, probe, processes):
    """Given a parked worker, when 400 ms pass, then 0 commands; a new job runs within 200 ms.

    Its beat is 10 s. Sweeping, which has a beat of its own, is left to emq_reaper here.
    """
    with Worker(queue, "--processes", processes, "--no-sweep") as worker:
        worker.wait_ready()
        wait_until(lambda: redis.info("clients")["blocked_clients"] == 1, what="the blocking pop")
        before = commands(redis)
        time.sleep(0.4)  # nothing must happen, so there is nothing to wait for
        assert commands(redis) == before

        clock = wire.Clock()
        tasks.mark.using(queue=queue).enqueue("a")
        probe.wait_for(1)
        assert clock.seconds < 5


def test_g7_the_loop_alone(client, redis, queue, probe):
    """Given an orphaned 60 ms lease and a flaky job, when a worker runs, then 2 runs of each.

    The orphan's first holder died before it ran, so it leaves one mark: token 2, attempt 1.
    """
    payload = encode(tasks.mark_job.name, (), {}, limit=1000)
    orphan = enqueue_one(client, queue, payload)
    claim_one(client, queue, lease_ms=60, worker="dead")
    flaky = tasks.boom_until.using(queue=queue).enqueue(2, "flaky").id
    keys = queue_keys(queue)

    def all_ran() -> bool:
        redis.zadd(keys.schedule, {flaky: 1}, xx=True)  # spare the test the backoff
        return len(probe.marks()) >= 3

    with Worker(queue, "--lease", "1") as worker:
        wait_until(all_ran, what="both runs of the flaky job")
        wait_until(lambda: not redis.exists(keys.active, keys.job(flaky)), what="the last verdict")
        worker.terminate()
        assert worker.wait() == 0
    assert sorted(probe.marks()) == sorted([f"{orphan} 2 1 {queue}", "flaky", "flaky"])
    state = wire.snapshot(client, queue)
    assert not any(state.values()), state


def test_g8_late_complete(client, queue):
    """Given J reaped and not claimed again, when the old token completes it, then it is gone."""
    job_id = enqueue_one(client, queue)
    claim_one(client, queue, lease_ms=30)
    wire.pass_ms(client, 60)
    assert wire.reap(client, queue) == [job_id]
    assert complete(client, queue, job_id, 1) == 1
    assert not any(wire.snapshot(client, queue).values())
    assert claim_one(client, queue) is None
