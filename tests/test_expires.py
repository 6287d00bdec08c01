"""Jobs that are not worth running late: no worker is given one whose time is over."""

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

import django_emq as emq
from django_emq import connections, inspector, scripts
from django_emq.ids import mint
from django_emq.jobs import NewJob, UniqueKey
from django_emq.keys import queue_keys
from django_emq.testing import Sandbox
from tests.conformance import wire
from tests.conformance.wire import (
    books_balance,
    claim_one,
    claims,
    enqueue_one,
    members,
    pass_ms,
    row,
)
from tests.probe import tasks

PAST = "1000"


@pytest.fixture
def box(settings):
    with Sandbox() as box:
        yield box


def late(client, queue, **options):
    """A job whose time is over."""
    return enqueue_one(client, queue, expires_at=PAST, ties=1, **options)


def assert_expired(client, queue, job_id, *, token="0"):
    assert job_id in members(client, queue, "dead")
    fields = row(client, queue, job_id)
    assert (fields["state"], fields["settled"], fields["attempts"]) == ("dead", "expire", token)
    assert fields["last_error"].startswith("expired: its time was over ")
    (entry, *_) = inspector.trail(client, queue)
    assert (entry.event, entry.id, entry.note) == ("died", job_id, fields["last_error"][:200])
    totals = inspector.totals(client, queue)
    assert (totals["expired"], totals["dead"]) == (1, 1)


# -- in each state ----------------------------------------------------------------------------


def test_a_waiting_job_expires(client, queue):
    """It goes to the morgue when a worker asks for work, and the next one is served."""
    job_id, sound = late(client, queue), enqueue_one(client, queue)
    assert [job.id.decode() for job in claims(client, queue, 2).jobs] == [sound]
    assert_expired(client, queue, job_id)
    books_balance(client, queue)


def test_a_scheduled_job_expires_when_it_is_due(client, queue):
    job_id = late(client, queue, due="+1")
    pass_ms(client, 3)
    assert not claims(client, queue).jobs
    assert_expired(client, queue, job_id)


@pytest.mark.parametrize("verb", ["retry", "snooze", "release"])
def test_a_job_that_comes_back_expires(client, redis, queue, verb):
    """After a failure, a snooze or a hand-back; the error of the failed run is kept."""
    job_id = enqueue_one(client, queue, expires_at="+60000", ties=1)
    claim_one(client, queue)
    options = {"retry": {"delay_ms": 0}, "snooze": {"delay_ms": 0}}.get(verb, {})
    getattr(wire, verb)(client, queue, job_id, 1, **options)
    redis.hset(queue_keys(queue).job(job_id), "expires_at", PAST)
    pass_ms(client, 2)
    assert not claims(client, queue).jobs
    assert_expired(client, queue, job_id, token="1")
    error = row(client, queue, job_id)["last_error"]
    assert ("The last error was: " in error) is (verb == "retry")


def test_a_lost_job_expires(client, redis, queue):
    """The lease lapsed, the sweep gave it back; the late run cannot settle it any more."""
    job_id = late(client, queue)
    redis.hset(queue_keys(queue).job(job_id), "expires_at", "9" * 13)
    claim_one(client, queue)
    wire.lapse(client, queue, job_id, 1)
    redis.hset(queue_keys(queue).job(job_id), "expires_at", PAST)
    assert not claims(client, queue).jobs
    assert_expired(client, queue, job_id, token="1")
    (verdict,) = scripts.complete(client, queue, [(job_id, 1, "")])
    assert "settled before by expire" in str(verdict)


def test_a_held_job_does_not_expire(client, redis, queue):
    """The time ends the waiting, not the run: that one settles as any other."""
    job_id = enqueue_one(client, queue, expires_at="+60000", ties=1)
    claim_one(client, queue)
    redis.hset(queue_keys(queue).job(job_id), "expires_at", PAST)
    assert scripts.complete(client, queue, [(job_id, 1, "")]) == [1]


def test_another_life_has_no_end(client, queue):
    """Who gives an expired job back wants it to run."""
    job_id = late(client, queue)
    claims(client, queue)
    assert scripts.reprocess(client, queue, [job_id]) == [1]
    assert claim_one(client, queue).id.decode() == job_id


def test_a_job_within_its_time_runs(client, queue):
    job_id = enqueue_one(client, queue, expires_at="+60000", ties=1, fence_key="a")
    job = claim_one(client, queue)
    assert job.id.decode() == job_id
    assert job.fence


def test_the_morgue_keeps_its_cap(settings, queue):
    """Many that expire at once push out the oldest, as all that die do."""
    settings.EMQ = {**settings.EMQ, "DEAD_MAX": 2}
    client = connections.client()
    ids = [late(client, queue) for _ in range(5)]
    claims(client, queue)
    assert sorted(members(client, queue, "dead")) == ids[3:]
    assert [client.raw.exists(queue_keys(queue).job(i)) for i in ids] == [0, 0, 0, 1, 1]


def test_a_long_error_is_cut_between_characters(client, redis, queue):
    job_id = late(client, queue, last_error="é" * 5000)
    claims(client, queue)
    error = row(client, queue, job_id)["last_error"]
    assert error.endswith("éé …")
    assert len(error.encode()) < 2200


@pytest.mark.parametrize("text", ["", "soon", "-", "1" * 20])
def test_what_is_no_time_never_ends(client, queue, text):
    """A stranger may have written it."""
    enqueue_one(client, queue, expires_at=text, ties=1)
    claim_one(client, queue)


# -- options ----------------------------------------------------------------------------------


def test_the_time_counts_from_the_enqueueing_by_the_servers_clock(client, queue):
    before = wire.now_ms(client)
    job = emq.Task(print, "p", queue=queue, expires=timedelta(minutes=1)).enqueue()
    fields = row(client, queue, job.id)
    assert before + 59_999 <= int(fields["expires_at"]) <= wire.now_ms(client) + 60_000
    assert fields["ties"] == "1"


def test_using_goes_before_the_tasks_own(client, queue):
    when = datetime(2050, 1, 1, tzinfo=UTC)
    task = emq.Task(print, "p", queue=queue, expires=1)
    job = task.using(expires=when).enqueue()
    assert int(row(client, queue, job.id)["expires_at"]) == when.timestamp() * 1000
    assert "expires_at" not in row(client, queue, task.using(expires=None).enqueue().id)


@pytest.mark.parametrize("value", [0, -1, True, "60", float("nan"), timedelta(days=400)])
def test_what_is_no_time_is_refused(value):
    with pytest.raises(emq.InvalidOption, match="expires is"):
        emq.Task(print, "p", expires=value)


def test_a_naive_datetime_is_refused():
    with pytest.raises(emq.InvalidOption, match="aware datetime"):
        emq.Task(print, "p", expires=datetime(2050, 1, 1))


@pytest.mark.parametrize("absolute", [False, True])
def test_a_job_that_would_never_run_is_refused(absolute):
    now = timezone.now()
    options = {"run_at": now, "expires": now} if absolute else {"run_in": 60, "expires": 60}
    with pytest.raises(emq.InvalidOption, match="it would never run"):
        emq.Task(print, "p").using(**options)


# -- faces ------------------------------------------------------------------------------------


def test_the_frozen_clock_lets_jobs_expire(box):
    tasks.mark.using(expires=60).enqueue(1)
    box.advance(59)
    assert box.waiting()
    box.advance(2)
    assert not box.run_until_empty()
    assert inspector.totals(connections.client(), "default")["expired"] == 1


def test_people_are_told(client, queue):
    """While it waits, with the time that is left, and when it is over."""

    def told(job_id):
        return " ".join(inspector.why(client, queue, job_id).reasons)

    waits = enqueue_one(client, queue, due="+90000", expires_at="+14400000", ties=1)
    assert "It is given up if it has not begun in 4.0 h." in told(waits)
    job_id = late(client, queue)
    assert "Its time is over: it goes to the morgue when it would be claimed." in told(job_id)
    claims(client, queue)
    (first, *_) = inspector.why(client, queue, job_id).reasons
    assert "expired: its time was over" in first


@pytest.mark.parametrize("end", ["complete", "bury", "retry", "reap"])
def test_the_time_of_a_chained_job_counts_from_its_own_admission(client, queue, end):
    option = "on_success" if end == "complete" else "on_failure"
    after = tasks.mark.using(queue=queue, expires=60).job(2)
    job = tasks.mark.using(queue=queue, max_attempts=1, max_stalls=1, **{option: after}).enqueue(1)
    claimed = claim_one(client, queue)
    before = wire.now_ms(client)
    if end == "reap":
        scripts.extend(client, queue, [(job.id, claimed.token)], lease_ms=0)
        wire.reap(client, queue)
    else:
        getattr(wire, end)(client, queue, job.id, claimed.token)
    (next_id,) = members(client, queue, "pending")
    expires_at = int(row(client, queue, next_id)["expires_at"])
    assert before + 59_999 <= expires_at <= wire.now_ms(client) + 60_000


def test_an_expired_job_starts_nothing(client, queue):
    """It is no failure."""
    job = tasks.mark.using(queue=queue, expires=60, on_failure=tasks.mark.job(2)).enqueue(1)
    client.raw.hset(queue_keys(queue).job(job.id), "expires_at", PAST)
    assert not claims(client, queue).jobs
    assert inspector.counts(client, queue)["pending"] == 0


def test_an_expired_job_frees_its_unique_key(client, queue):
    task = tasks.mark.using(queue=queue, expires=60, unique=True)
    job = task.enqueue(1)
    assert row(client, queue, job.id)["expires_at"].isdigit()
    client.raw.hset(queue_keys(queue).job(job.id), "expires_at", PAST)
    assert not claims(client, queue).jobs
    assert task.enqueue(1).status == "enqueued"


@pytest.mark.parametrize("others", [0, 2])
def test_a_worker_is_woken_once_for_what_waited_behind_an_expired_job(client, redis, queue, others):
    """By the claim that buries it: also when it takes the last ready job, and not twice."""
    keys = queue_keys(queue)
    unique = UniqueKey("ab", "finish", 0, "keep_last", 0)
    first, second = mint(), mint()
    for job_id in (first, second):
        new = NewJob(job_id, "work", 9, "", (), unique)
        scripts.enqueue_unique(client, queue, [new], request=job_id, producer="p")
        claim_one(client, queue)
    wire.release(client, queue, first, 1)
    redis.hset(keys.job(first), "expires_at", PAST)
    for _ in range(others):
        enqueue_one(client, queue)
    if others:
        redis.delete(keys.wake)  # an idle worker has heard it
    claims(client, queue)
    assert list(members(client, queue, "schedule")) == [second]
    assert redis.llen(keys.wake) == 1


def test_who_waits_for_an_expired_job_is_told(client, queue):
    job_id = late(client, queue, waiters="abc")
    claims(client, queue)
    assert "waiters" not in row(client, queue, job_id)
