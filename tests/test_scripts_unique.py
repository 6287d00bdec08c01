"""enqueue_unique, and what every end of a job does with its key: on the server, in every order."""

from __future__ import annotations

import re

import pytest

from django_emq import inspector, scripts
from django_emq.calls import SCRIPTS
from django_emq.exceptions import KeyHeld
from django_emq.ids import mint
from django_emq.jobs import Conflict, NewJob, UniqueKey
from django_emq.keys import digest, queue_keys
from tests.conformance import wire
from tests.conformance.wire import books_balance, claim_one, members, row

HOUR = 3_600_000
DAY = 24 * HOUR


def new(conflict="reject", *, key="k", until="finish", hold=0, wait=DAY, due="", payload="work"):
    """A job with a unique key."""
    if conflict == "debounce":
        until, due = "start", due or f"+{HOUR}"
    unique = UniqueKey(digest(key), until, hold, conflict, wait)
    return NewJob(mint(), payload, 0, due, (), unique)


def send(client, queue, *jobs, request=None, producer="p"):
    return scripts.enqueue_unique(
        client, queue, jobs, request=request or jobs[0].id, producer=producer
    )


def admit(client, queue, conflict="reject", **options):
    """Enqueue one; its verdict and its id."""
    job = new(conflict, **options)
    (verdict,) = send(client, queue, job)
    return verdict, job.id


def holder(client, queue, key="k"):
    return inspector.unique(client, queue, key)


# -- what a conflict leads to -----------------------------------------------------------------


@pytest.mark.parametrize("place", ["pending", "schedule", "active"])
def test_reject(client, queue, place):
    """While a job waits or runs, the same call answers with its id and changes nothing else."""
    _, first = admit(client, queue, due=f"+{HOUR}" if place == "schedule" else "")
    if place == "active":
        claim_one(client, queue)
    assert admit(client, queue)[0] == Conflict("duplicate", first)
    assert list(members(client, queue, place)) == [first]
    assert holder(client, queue) == first
    assert row(client, queue, first)["duplicates"] == "1"
    assert inspector.totals(client, queue)["duplicates"] == 1
    books_balance(client, queue)


def test_another_key_is_another_job(client, queue):
    assert [admit(client, queue, key=key)[0] for key in "ab"] == [1, 1]


@pytest.mark.parametrize("due", ["", f"+{HOUR}"])
def test_replace(client, queue, due):
    """The job that waits is gone, and the new one has its own payload, time and id."""
    _, first = admit(client, queue, due=f"+{2 * HOUR}")
    verdict, second = admit(client, queue, "replace", due=due, payload="newer")
    assert verdict == Conflict("replaced", first)
    assert row(client, queue, first) == {}
    assert row(client, queue, second)["payload"] == "newer"
    assert list(members(client, queue, "schedule" if due else "pending")) == [second]
    assert holder(client, queue) == second
    assert [e.event for e in inspector.job(client, queue, first).trail] == ["replaced"]
    books_balance(client, queue)


def test_replace_leaves_a_running_job_alone(client, queue):
    """It is not touched: the answer is as with reject."""
    _, first = admit(client, queue, "replace")
    claim_one(client, queue)
    assert admit(client, queue, "replace")[0] == Conflict("duplicate", first)


def test_keep_last(client, queue):
    """One runs, and only the newest waits behind it; it is due when that one has ended."""
    _, first = admit(client, queue, "keep_last", payload="1")
    verdict, second = admit(client, queue, "keep_last", payload="2")
    assert verdict == Conflict("replaced", first)  # it had not begun
    assert claim_one(client, queue).id.decode() == second
    verdict, third = admit(client, queue, "keep_last", payload="3")
    assert verdict == Conflict("behind", second)
    verdict, fourth = admit(client, queue, "keep_last", payload="4")
    assert verdict == Conflict("replaced", third)
    assert claim_one(client, queue) is None
    assert scripts.promote(client, queue) == 0
    assert (holder(client, queue), list(members(client, queue, "schedule"))) == (second, [fourth])
    client.raw.delete(queue_keys(queue).wake)
    wire.complete(client, queue, second, 1)
    assert holder(client, queue) == fourth
    assert client.raw.llen(queue_keys(queue).wake) == 1
    job = claim_one(client, queue)
    assert (job.id.decode(), job.payload) == (fourth, b"4")
    wire.complete(client, queue, fourth, 1)
    assert holder(client, queue) is None
    books_balance(client, queue)


def test_keep_last_waits_for_a_job_that_is_tried_again(client, queue):
    """A failure is no end: the job that waits behind it goes on waiting."""
    _, first = admit(client, queue, "keep_last")
    claim_one(client, queue)
    wire.retry(client, queue, first, 1, delay_ms=0)
    verdict, second = admit(client, queue, "keep_last")
    assert verdict == Conflict("behind", first)
    assert claim_one(client, queue).id.decode() == first
    assert wire.retry(client, queue, first, 2, maximum=1) == "dead"
    assert claim_one(client, queue).id.decode() == second


def test_keep_last_has_a_time_of_its_own(client, queue):
    """A job that is to run in an hour does so, also when it had to wait behind another one."""
    _, first = admit(client, queue, "keep_last")
    claim_one(client, queue)
    _, second = admit(client, queue, "keep_last", due=f"+{HOUR}")
    wire.complete(client, queue, first, 1)
    assert claim_one(client, queue) is None
    due = members(client, queue, "schedule")[second]
    assert HOUR - 60_000 < due - wire.now_ms(client) <= HOUR


def test_throttle(client, queue):
    """One in each window, whatever becomes of the job; the next window opens by itself."""
    options = {"until": "time", "hold": HOUR}
    _, first = admit(client, queue, "throttle", **options)
    claim_one(client, queue)
    wire.complete(client, queue, first, 1)
    assert admit(client, queue, "throttle", **options)[0] == Conflict("duplicate", first)
    key = queue_keys(queue).unique("k")
    assert HOUR - 60_000 < client.raw.pttl(key) <= HOUR
    client.raw.pexpire(key, 1)
    wire.pass_ms(client, 2)
    assert admit(client, queue, "throttle", **options)[0] == 1


def test_debounce(client, queue):
    """Each call puts the job off, but not beyond max_wait since the first of them."""
    _, first = admit(client, queue, "debounce", wait=HOUR + 1000)
    verdict, second = admit(client, queue, "debounce", wait=HOUR + 1000, payload="newest")
    assert verdict == Conflict("replaced", first)
    since = float(row(client, queue, second)["unique_since"])
    client.raw.hset(queue_keys(queue).job(second), "unique_since", f"{since - 60_000:.0f}")
    _, third = admit(client, queue, "debounce", wait=HOUR + 1000)
    assert members(client, queue, "schedule") == {third: since - 60_000 + HOUR + 1000}
    client.raw.hset(queue_keys(queue).job(third), "unique_since", f"{since - 2 * HOUR:.0f}")
    _, fourth = admit(client, queue, "debounce", wait=HOUR + 1000)
    assert list(members(client, queue, "pending")) == [fourth]
    claim_one(client, queue)
    verdict, fifth = admit(client, queue, "debounce")  # it runs: a new wait begins
    assert verdict == 1
    assert list(members(client, queue, "schedule")) == [fifth]
    wire.complete(client, queue, fourth, 1)
    assert holder(client, queue) == fifth
    books_balance(client, queue)


def test_until_start(client, queue):
    """The first claim frees the key; a job that comes back after it does not take it again."""
    _, first = admit(client, queue, until="start")
    assert admit(client, queue, until="start")[0] == Conflict("duplicate", first)
    claim_one(client, queue)
    wire.release(client, queue, first, 1)
    verdict, second = admit(client, queue, until="start")
    assert verdict == 1
    wire.claim_some(client, queue, 2)
    wire.complete(client, queue, first, 2)  # a stranger by now
    assert holder(client, queue) == second


# -- one script with the enqueue --------------------------------------------------------------


def test_two_equal_ones_in_one_call(client, queue):
    """They come in one after the other, as if each had a call of its own; plain ones between."""
    first, plain, second = new(), wire.new(), new()
    assert send(client, queue, first, plain, second) == [1, 1, Conflict("duplicate", first.id)]
    third, fourth = new("replace"), new("replace")
    assert send(client, queue, third, fourth) == [
        Conflict("replaced", first.id),
        Conflict("replaced", third.id),
    ]
    assert set(members(client, queue, "pending")) == {plain.id, fourth.id}
    books_balance(client, queue)


def test_a_call_that_is_sent_again_is_answered_as_before(client, queue):
    """Also when the holder has ended meanwhile, and the job that came in is done."""
    _, first = admit(client, queue)
    call = [new(), new(key="other"), NewJob("ORD1", "work")]
    verdicts = send(client, queue, *call, request="r")
    assert verdicts[:2] == [Conflict("duplicate", first), 1]
    for job in wire.claim_some(client, queue, 5):
        wire.complete(client, queue, job.id.decode(), 1)
    again = send(client, queue, *call, request="r")
    assert again[:2] == verdicts[:2]
    assert type(again[2]) is type(verdicts[2])
    assert not any(members(client, queue, name) for name in wire.SETS)


def test_an_id_that_is_there_is_no_conflict(client, queue):
    """The same job once more, after its call was forgotten: a duplicate of itself."""
    job = new()
    assert send(client, queue, job, request="1") == [1]
    assert send(client, queue, job, request="2") == [0]


# -- the key goes with its job ----------------------------------------------------------------

ENDS = {
    "complete": lambda c, q, i: wire.complete(c, q, i, 1),
    "complete, kept": lambda c, q, i: wire.complete(c, q, i, 1, keep_ms=HOUR),
    "complete, swept": lambda c, q, i: (wire.lapse(c, q, i, 1), wire.complete(c, q, i, 1)),
    "discard": lambda c, q, i: wire.discard(c, q, i, 1),
    "bury": lambda c, q, i: wire.bury(c, q, i, 1),
    "retry": lambda c, q, i: wire.retry(c, q, i, 1, maximum=1),
    "reap": lambda c, q, i: (
        wire.extend(c, q, i, 1, lease_ms=0),
        scripts.reap(c, q, max_stalls=1),
    ),
    "cancel": lambda c, q, i: scripts.cancel(c, q, [i]),
    "remove": lambda c, q, i: scripts.remove(c, q, [i], force=True),
    "drain": lambda c, q, i: (wire.release(c, q, i, 1), scripts.drain(c, q, "pending")),
    "drain, later": lambda c, q, i: (
        wire.snooze(c, q, i, 1, HOUR),
        scripts.drain(c, q, "schedule", batch=1),
    ),
    "damage": lambda c, q, i: (
        wire.release(c, q, i, 1),
        c.raw.hdel(queue_keys(q).job(i), "payload"),
        wire.claims(c, q),
    ),
    "damage, later": lambda c, q, i: (
        wire.snooze(c, q, i, 1, 0),
        c.raw.hset(queue_keys(q).job(i), "attempts", "x"),
        scripts.promote(c, q, batch=1),
    ),
    "damage, held": lambda c, q, i: (
        wire.extend(c, q, i, 1, lease_ms=0),
        c.raw.hset(queue_keys(q).job(i), "attempts", "x"),
        scripts.reap(c, q, max_stalls=9),
    ),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("until", ["finish", "start"])
def test_every_end_frees_the_key(client, queue, end, until):
    """Nothing is left behind, whichever way a job goes."""
    _, job_id = admit(client, queue, until=until)
    claim_one(client, queue)
    ENDS[end](client, queue, job_id)
    assert holder(client, queue) is None
    assert admit(client, queue)[0] == 1


@pytest.mark.parametrize("end", ENDS)
def test_no_end_frees_the_key_of_a_stranger(client, queue, end):
    _, job_id = admit(client, queue)
    claim_one(client, queue)
    stranger = mint()
    client.raw.set(queue_keys(queue).unique("k"), stranger)
    ENDS[end](client, queue, job_id)
    assert holder(client, queue) == stranger


@pytest.mark.parametrize("end", ENDS)
def test_every_end_lets_the_one_behind_go_on(client, queue, end):
    _, first = admit(client, queue, "keep_last")
    claim_one(client, queue)
    _, second = admit(client, queue, "keep_last")
    ENDS[end](client, queue, first)
    assert holder(client, queue) == second
    assert claim_one(client, queue).id.decode() == second
    assert "behind" not in row(client, queue, second)


@pytest.mark.parametrize("end", ENDS)
def test_no_end_shortens_a_fixed_time(client, queue, end):
    _, job_id = admit(client, queue, until="time", hold=HOUR)
    claim_one(client, queue)
    ENDS[end](client, queue, job_id)
    assert admit(client, queue)[0] == Conflict("duplicate", job_id)


def test_obliterate_frees_keys(client, queue):
    admit(client, queue, "keep_last")
    claim_one(client, queue)
    admit(client, queue, "keep_last")
    admit(client, queue, key="other")
    scripts.pause(client, queue)
    while scripts.obliterate(client, queue, force=True, batch=1):
        pass
    assert client.raw.keys(queue_keys(queue).uniques + "*") == []


def test_a_key_that_was_left_behind_blocks_nothing(client, queue):
    """Of a job that is gone, dead, or has another key: the next call takes it."""
    key = queue_keys(queue).unique("k")
    client.raw.set(key, mint())
    assert admit(client, queue)[0] == 1
    _, dead = admit(client, queue, key="dead")
    scripts.cancel(client, queue, [dead])
    client.raw.set(key, dead)
    assert admit(client, queue)[0] == 1
    client.raw.set(queue_keys(queue).unique("c"), wire.enqueue_one(client, queue))
    assert admit(client, queue, key="c")[0] == 1
    client.raw.delete(key)
    client.raw.lpush(key, "no text")
    assert admit(client, queue)[0] == 1


# -- operators --------------------------------------------------------------------------------


def test_another_life_takes_the_key_again(client, queue):
    _, job_id = admit(client, queue)
    scripts.cancel(client, queue, [job_id])
    assert scripts.reprocess(client, queue, [job_id]) == [1]
    assert holder(client, queue) == job_id
    assert admit(client, queue)[0] == Conflict("duplicate", job_id)


def test_another_life_is_refused_while_another_job_holds_the_key(client, queue):
    """In one call too: of two dead jobs with one key one comes back."""
    ids = []
    for _ in range(2):
        ids.append(admit(client, queue)[1])
        scripts.cancel(client, queue, ids[-1:])
    first, refused = scripts.reprocess(client, queue, ids)
    assert first == 1
    assert isinstance(refused, KeyHeld)
    assert f"Job {ids[0]} holds its unique key" in str(refused)
    (refused,) = scripts.reprocess(client, queue, ids[1:])
    assert isinstance(refused, KeyHeld)
    assert holder(client, queue) == ids[0]
    claim_one(client, queue)
    wire.complete(client, queue, ids[0], 1)
    assert scripts.reprocess(client, queue, ids[1:]) == [1]


def test_another_life_without_the_key(client, queue):
    """A job that held it until its start, or for a time, asks nobody."""
    _, started = admit(client, queue, until="start")
    claim_one(client, queue)
    wire.bury(client, queue, started, 1)
    _, second = admit(client, queue)
    assert scripts.reprocess(client, queue, [started]) == [1]
    assert holder(client, queue) == second


def test_what_waits_behind_another_job_is_not_requeued(client, queue):
    """Both would run at once. It can be cancelled, and then the key is not its own."""
    _, first = admit(client, queue, "keep_last")
    claim_one(client, queue)
    _, second = admit(client, queue, "keep_last")
    (refused,) = scripts.requeue(client, queue, [second])
    assert f"It waits behind job {first}" in str(refused)
    assert scripts.cancel(client, queue, [second]) == [1]
    assert isinstance(scripts.reprocess(client, queue, [second])[0], KeyHeld)
    wire.complete(client, queue, first, 1)
    assert holder(client, queue) is None
    assert scripts.reprocess(client, queue, [second]) == [1]
    assert claim_one(client, queue).id.decode() == second


# -- the scripts themselves -------------------------------------------------------------------


def test_the_key_is_freed_the_same_way_everywhere():
    """Each script stands alone: what several of them need is in each, word for word."""
    found = {}
    for name, script in SCRIPTS.items():
        match = re.search(r"-- Free the unique key.*?\nend\n", script.source.decode(), re.DOTALL)
        if match:
            found[name] = match[0]
    assert len(set(found.values())) == 1
    assert set(found) == {
        "complete", "discard", "bury", "retry", "reap", "promote", "claim", "cancel", "remove",
        "drain", "obliterate",
    }  # fmt: skip
