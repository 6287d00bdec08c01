"""Why a transition is one script: the two races that separate commands lose, and the script wins.

And what the scripts cost: one load each on a cold server, however busy the run.
"""

import threading

import pytest

import django_emq as emq
from django_emq import connections, scripts
from django_emq.batches import Batch
from django_emq.exceptions import StaleToken
from django_emq.keys import queue_keys
from tests.conformance import wire
from tests.conformance.wire import (
    admit,
    claim_one,
    claims,
    complete,
    enqueue_one,
    enqueue_some,
    extend,
    given,
    new,
    reap,
    row,
)


def race(pick, workers: int = 2) -> list[str]:
    """Let all workers pick at once; the names of those who got the job."""
    winners: list[str] = []
    threads = [
        threading.Thread(target=lambda name=f"w{n}": winners.append(name) if pick(name) else None)
        for n in range(workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return winners


# -- the finish against a sweep ---------------------------------------------------------------


@pytest.fixture
def lapsed(client, queue) -> str:
    """A job whose holder (token 1) is still at work while its lease has just ended."""
    job_id = enqueue_one(client, queue)
    claim_one(client, queue)
    extend(client, queue, job_id, 1, lease_ms=0)
    return job_id


def finish_in_commands(redis, queue, job_id: str, token: int, between=lambda: None) -> bool:
    """Read, decide, write: a finish as three round trips, with a gap after the first."""
    keys = queue_keys(queue)
    found = redis.hget(keys.job(job_id), "attempts")
    between()
    if found != str(token).encode():
        return False
    redis.zrem(keys.active, job_id)
    redis.delete(keys.job(job_id))
    return True


def test_a_finish_in_separate_commands_is_handled_twice(client, redis, queue, lapsed):
    """A sweep comes between read and write: the job goes to a second worker, and both finish it."""
    finishes = []

    def sweep_and_second_worker() -> None:
        assert reap(client, queue) == [lapsed]
        assert given(claim_one(client, queue)) == (lapsed, "work", 2)
        finishes.append(finish_in_commands(redis, queue, lapsed, 2))

    finishes.append(finish_in_commands(redis, queue, lapsed, 1, sweep_and_second_worker))
    assert finishes == [True, True]


def test_a_finish_in_one_script_is_handled_once(client, queue):
    """Three hundred times at once: a finish, and a sweep with a second worker behind it."""
    for _ in range(300):
        job_id = enqueue_one(client, queue)
        claim_one(client, queue)
        extend(client, queue, job_id, 1, lease_ms=0)
        start = threading.Barrier(2)

        def finish(name: str, job_id: str = job_id, start: threading.Barrier = start) -> bool:
            token = 1 if name == "w0" else 2
            start.wait(10)
            if token == 2:
                reap(client, queue)
                if claim_one(client, queue) is None:
                    return False
            return scripts.complete(client, queue, [(job_id, token, "")]) == [1]

        assert len(race(finish)) == 1
        assert not any(wire.snapshot(client, queue).values())


def test_a_late_finish_in_one_script_is_refused(client, queue, lapsed):
    """Claimed by another since: token 1 is stale and the job untouched, token 2 retires it."""
    reap(client, queue)
    claim_one(client, queue)
    before = wire.snapshot(client, queue)
    with pytest.raises(StaleToken, match=r"token mismatch \(yours 1, row 2\)"):
        complete(client, queue, lapsed, 1)
    assert wire.snapshot(client, queue) == before
    assert complete(client, queue, lapsed, 2) == 1


# -- two workers and one job ------------------------------------------------------------------


def test_get_and_set_pick_a_job_twice(redis, queue):
    """Both workers read `pending` before either writes `active`."""
    key = queue_keys(queue).base + "seed"
    redis.set(key, "pending")
    both_have_read = threading.Barrier(2)

    def pick(worker: str) -> bool:
        state = redis.get(key)
        both_have_read.wait(10)
        if state != b"pending":
            return False
        redis.set(key, "active")
        return True

    assert sorted(race(pick)) == ["w0", "w1"]


def test_a_script_picks_a_job_once(client, queue):
    """A hundred times: of eight workers at once one gets the job, with token 1."""
    for _ in range(100):
        job_id = enqueue_one(client, queue)
        winners = race(lambda name: claim_one(client, queue, worker=name), workers=8)
        assert len(winners) == 1
        assert row(client, queue, job_id)["worker"] == winners[0]
        assert complete(client, queue, job_id, 1) == 1


# -- compare and set --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "expected", "written"),
    [(b"open", "open", True), (b"locked", "open", False), (None, "open", False)],
    ids=["matches", "changed", "absent"],
)
def test_cas(redis, queue, found, expected, written):
    """A match writes and answers 1; a changed value or an absent key is left, and answers 0."""
    key = queue_keys(queue).base + "door"
    if found is not None:
        redis.set(key, found)
    assert emq.cas(key, expected, "closed") is written
    assert redis.get(key) == (b"closed" if written else found)


def test_cas_has_one_winner(redis, queue):
    """Of many that saw the same value, one writes."""
    key = queue_keys(queue).base + "door"
    redis.set(key, "open")
    winners = race(lambda name: emq.cas(key, "open", name), workers=8)
    assert [redis.get(key).decode()] == winners


# -- the script cache -------------------------------------------------------------------------


@pytest.fixture
def loads(client, redis):
    """How often a script was loaded since the test began, on a server that knew none."""
    redis.script_flush()
    redis.config_resetstat()
    return lambda: wire.calls(client, "script|load")


def test_script_loads_are_one_each(client, queue, loads):
    """A thousand jobs, one at a time: each script is loaded once."""
    for _ in range(1000):
        job_id = enqueue_one(client, queue)
        assert given(claim_one(client, queue)) == (job_id, "work", 1)
        assert complete(client, queue, job_id, 1) == 1
    assert loads() == 3
    assert wire.calls(client, "evalsha") == 3000 + 3


def test_script_loads_are_one_each_in_a_pipeline(client, redis, queue, loads):
    """A thousand jobs in batches: one load each too, and what a cold server refused runs once."""
    for _ in range(10):
        batch = Batch(client)
        for _ in range(10):
            admit(batch, queue, *[new() for _ in range(10)])
        claims(batch, queue, 100)
        *verdicts, claimed = batch.send()
        assert verdicts == [[1] * 10] * 10
        assert len(claimed.jobs) == 100
        batch = Batch(client)
        for job in claimed.jobs:
            scripts.complete(batch, queue, [(job.id, job.token, "")])
        assert batch.send() == [[1]] * 100
    assert loads() == 3
    assert not any(wire.snapshot(client, queue).values())
    assert int(redis.hget(queue_keys(queue).metrics, "completed")) == 1000


def test_a_flush_costs_one_more_load(client, redis, queue, loads):
    """SCRIPT FLUSH in the middle of a run, before a call and before a pipeline."""
    enqueue_some(client, queue, 4)
    redis.script_flush()
    first, second = (claim_one(client, queue) for _ in range(2))
    batch = Batch(client)
    redis.script_flush()
    scripts.complete(batch, queue, [(first.id, 1, "")])
    scripts.complete(batch, queue, [(second.id, 1, "")])
    claims(batch, queue, 5)
    one, two, rest = batch.send()
    assert (one, two, len(rest.jobs)) == ([1], [1], 2)
    assert loads() == 1 + 1 + 2  # enqueue, claim; then complete and claim


@pytest.fixture
def newcomer():
    """A client that has never used a script."""
    newcomer = connections.connect()
    yield newcomer
    newcomer.close()


def mixed_batch(client, queue) -> list:
    """Two jobs, a claim, one more job, in one round trip; the answers."""
    batch = Batch(client)
    admit(batch, queue, new(), new())
    claims(batch, queue, 5)
    admit(batch, queue, new())
    return batch.send()


def test_a_newcomers_pipeline_runs_in_order(client, newcomer, queue, loads):
    """On a server that knows one of two scripts, the other is loaded before the batch."""
    enqueue_one(client, queue)
    first, claimed, last = mixed_batch(newcomer, queue)
    assert (first, last, len(claimed.jobs)) == ([1, 1], [1], 3)
    assert loads() == 2


def test_a_half_cold_pipeline(newcomer, redis, queue, loads):
    """When the server has forgotten a script: what ran is not sent again, the rest runs late."""
    mixed_batch(newcomer, queue)
    redis.script_flush()
    enqueue_one(newcomer, queue)
    first, claimed, last = mixed_batch(newcomer, queue)
    assert (first, last) == ([1, 1], [1])
    assert int(redis.hget(queue_keys(queue).metrics, "enqueued")) == 3 + 1 + 3
    assert len(claimed.jobs) == 5  # all that was left: the claim ran after the last enqueue
    assert loads() == 4
