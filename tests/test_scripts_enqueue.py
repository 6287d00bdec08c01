"""enqueue.lua: what is admitted, once each, and where it goes; and the fence in front of it."""

import pytest

from django_emq import inspector, scripts
from django_emq.exceptions import DamagedRow, KindRefused, ServerError, VersionFence
from django_emq.ids import mint
from django_emq.jobs import NewJob
from django_emq.keys import queue_keys, reserve_keys
from tests.conformance import wire
from tests.conformance.wire import (
    admit,
    books_balance,
    claim_one,
    claim_some,
    complete,
    enqueue_one,
    extend,
    members,
    new,
    pass_ms,
    reap,
    release,
    retry,
    row,
    snooze,
)

PRIORITIES = [0, 100, -100, 1, -1, 99, 0, -99, 7]


def test_verdicts_come_in_order(client, redis, queue):
    """Enqueued, duplicate of a row, refused kind, damaged row, duplicate within the call."""
    known = enqueue_one(client, queue, "once")
    fresh, stranger, taken = new("fresh"), NewJob("ORD" + mint()[3:], "x"), new("never")
    redis.set(queue_keys(queue).job(taken.id), "somebody's")
    verdicts = admit(client, queue, fresh, NewJob(known, "twice"), stranger, taken, fresh)
    assert [type(v) for v in verdicts] == [int, int, KindRefused, DamagedRow, int]
    assert [verdicts[i] for i in (0, 1, 4)] == [1, 0, 0]
    assert str(verdicts[2]) == "Job id must start with JOB"
    assert str(verdicts[3]) == "The key of this row holds something else"
    assert redis.get(queue_keys(queue).job(taken.id)) == b"somebody's"
    assert list(members(client, queue, "pending")) == [known, fresh.id]
    assert row(client, queue, known)["payload"] == "once"


def test_the_same_request_is_answered_from_memory(client, redis, queue):
    """Sent again after a lost reply: the same verdicts, also when the job is long finished."""
    job, stranger = new(), NewJob("ORD" + mint()[3:], "x")

    def send() -> list[object]:
        return scripts.enqueue(client, queue, [job, stranger, job], request="r", producer="p")

    first = send()
    again = send()
    assert [str(v) for v in again] == [str(v) for v in first]
    assert [type(v) for v in again] == [int, KindRefused, int]
    claim_one(client, queue)
    complete(client, queue, job.id, 1)
    before = wire.snapshot(client, queue)
    assert [str(v) for v in send()] == [str(v) for v in first]
    assert wire.snapshot(client, queue) == before
    assert before["rows"] == {}
    assert int(redis.hget(queue_keys(queue).metrics, "enqueued")) == 1
    assert 0 < redis.pttl(queue_keys(queue).sent("p")) <= scripts.SENT_MS


def test_another_request_is_carried_out(client, queue):
    """The memory is of one producer's last request, by its whole name."""
    job = new()
    calls = [("r1", "p"), ("r", "p"), ("r12", "p"), ("r12", "other")]
    verdicts = [
        scripts.enqueue(client, queue, [job], request=request, producer=producer)
        for request, producer in calls
    ]
    assert verdicts == [[1], [0], [0], [0]]


@pytest.mark.parametrize("way", ["enqueue", "promote", "claim's promote", "release", "reap"])
def test_priority_orders_what_is_ready(client, queue, way):
    """Higher first, equal ones in mint order; whichever way a job came to be ready."""
    delayed = "promote" in way
    jobs = [new(priority=p, due="+1" if delayed else "") for p in PRIORITIES]
    assert admit(client, queue, *jobs) == [1] * len(jobs)
    if delayed:
        pass_ms(client, 5)
        if way == "promote":
            assert scripts.promote(client, queue) == len(jobs)
    elif way != "enqueue":
        held = claim_some(client, queue, len(jobs))
        for job in held:
            if way == "release":
                release(client, queue, job.id, 1)
            else:
                extend(client, queue, job.id, 1, lease_ms=0)
        if way == "reap":
            reap(client, queue)
    expected = [job.id for job in sorted(jobs, key=lambda job: -job.priority)]
    assert [job.id.decode() for job in claim_some(client, queue, 50)] == expected
    books_balance(client, queue)


def test_priority_survives_retry_and_snooze(client, queue):
    """A job that comes back by the schedule stands where it stood."""
    low, high = enqueue_one(client, queue), enqueue_one(client, queue, priority=50)
    claim_some(client, queue, 2)
    retry(client, queue, high, 1, delay_ms=0)
    snooze(client, queue, low, 1, 0)
    assert scripts.promote(client, queue) == 2
    assert members(client, queue, "pending") == {high: -50, low: 0}


@pytest.mark.parametrize("due", ["", "+0", "1", "0"], ids=["none", "in 0", "past", "1970"])
def test_due_now_is_ready(client, queue, due):
    """No time, no delay, or a time that has passed."""
    job_id = enqueue_one(client, queue, due=due)
    assert list(members(client, queue, "pending")) == [job_id]
    assert row(client, queue, job_id)["state"] == "pending"
    books_balance(client, queue)


def test_due_later_waits(client, queue):
    """A delay counts on the server's clock; an instant is taken as it is."""
    before = wire.now_ms(client)
    delayed = enqueue_one(client, queue, due="+60000", priority=3)
    at = int(before) + 3_600_000
    dated = enqueue_one(client, queue, due=str(at))
    schedule = members(client, queue, "schedule")
    assert list(schedule) == [delayed, dated]
    assert before + 59_999 <= schedule[delayed] <= wire.now_ms(client) + 60_000
    assert schedule[dated] == at
    assert row(client, queue, delayed)["priority"] == "3"
    assert claim_one(client, queue) is None
    books_balance(client, queue)


def test_further_fields_are_kept(client, queue):
    """What a task sets for its own job is in the row beside the three fields."""
    job_id = enqueue_one(client, queue, max_attempts=9, lease_ms=1000)
    assert row(client, queue, job_id) == {
        "state": "pending",
        "attempts": "0",
        "payload": "work",
        "max_attempts": "9",
        "lease_ms": "1000",
    }


def test_wake_is_pushed_when_there_is_news(client, redis, queue):
    """One token for new work or an earlier due time, and none while one lies there."""
    wake = queue_keys(queue).wake

    def pushed() -> bool:
        return redis.delete(wake) == 1

    job_id = enqueue_one(client, queue)
    enqueue_one(client, queue)
    assert redis.lrange(wake, 0, -1) == [b"1"]
    assert pushed()
    admit(client, queue, NewJob(job_id, "again"))
    assert not pushed()
    enqueue_one(client, queue, due="+60000")
    assert pushed()  # the first that waits
    enqueue_one(client, queue, due="+70000")
    assert not pushed()
    enqueue_one(client, queue, due="+50000")
    assert pushed()  # earlier than all


def test_a_call_of_any_size_is_whole_or_refused(client, queue):
    """More jobs than the server can unpack: all enter, or none."""
    jobs = [new() for _ in range(4001)]
    try:
        verdicts = admit(client, queue, *jobs)
    except (ServerError, ValueError):
        verdicts = []
    books_balance(client, queue)
    assert len(wire.snapshot(client, queue)["rows"]) == sum(verdicts)


# -- the fence and the registry ---------------------------------------------------------------


def test_register_enters_queues_once(client):
    """The answer is how many names were new."""
    assert scripts.register(client, ["mail", "reports"]) == 2
    assert scripts.register(client, ["mail"]) == 0
    assert scripts.register(client, []) == 0
    assert inspector.queues(client) == ["mail", "reports"]


def test_another_version_is_refused(client, redis):
    """The refusal names both versions and changes nothing."""
    key = reserve_keys().version
    redis.set(key, "echomq:3.0.0")
    with pytest.raises(VersionFence) as refusal:
        scripts.register(client, ["mail"])
    assert str(refusal.value).startswith(
        "The keys of this server belong to echomq:3.0.0, and this is django_emq:1: upgrade"
    )
    assert redis.get(key) == b"echomq:3.0.0"
    assert inspector.queues(client) == []


def test_a_worker_is_listed_while_its_word_holds(client, redis):
    """Beat enters it with its facts, a second one replaces them, 0 ms signs it off."""
    scripts.beat(client, "w1", ttl_ms=30_000, facts={"pid": 7, "state": "running"})
    scripts.beat(client, "w1", ttl_ms=30_000, facts={"pid": 8})
    (worker,) = inspector.workers(client)
    assert worker.id == "w1"
    assert {name: worker.facts[name] for name in worker.facts if name != "beat_at"} == {"pid": "8"}
    assert 0 < redis.pttl(reserve_keys().worker("w1")) <= 30_000
    scripts.beat(client, "w1", ttl_ms=0, facts={})
    assert inspector.workers(client) == []
    assert redis.exists(reserve_keys().worker("w1"), reserve_keys().workers) == 0


def test_a_worker_silent_for_a_day_is_forgotten(client, redis):
    """Somebody else's beat drops it from the list."""
    redis.zadd(reserve_keys().workers, {"old": wire.now_ms(client) - 86_400_001})
    scripts.beat(client, "w1", ttl_ms=30_000, facts={})
    assert redis.zrange(reserve_keys().workers, 0, -1) == [b"w1"]
