"""Rows that something else has damaged: they end in the morgue with a reason, and cost nobody else.

And keys of the wrong type: a script looks at all it will touch before it writes.
"""

from collections.abc import Callable

import pytest

from django_emq import scripts
from django_emq.exceptions import ServerError
from django_emq.ids import mint
from django_emq.keys import queue_keys
from tests.conformance import wire
from tests.conformance.wire import (
    admit,
    books_balance,
    claim_some,
    claims,
    enqueue_one,
    enqueue_some,
    given,
    members,
    new,
    pass_ms,
    row,
)

# What is done to the row of a job, and what the reason says.
DAMAGE: dict[str, tuple[Callable[..., object], str]] = {
    "no row": (lambda r, key: r.delete(key), "it is missing"),
    "a string": (lambda r, key: r.delete(key) and r.set(key, "x"), "the key holds a string"),
    "a list": (lambda r, key: r.delete(key) and r.rpush(key, "x"), "the key holds a list"),
    "attempts abc": (lambda r, key: r.hset(key, "attempts", "abc"), "attempts"),
    "attempts empty": (lambda r, key: r.hset(key, "attempts", ""), "attempts"),
    "attempts -1": (lambda r, key: r.hset(key, "attempts", "-1"), "attempts"),
    "attempts 1.5": (lambda r, key: r.hset(key, "attempts", "1.5"), "attempts"),
    "attempts 007": (lambda r, key: r.hset(key, "attempts", "007"), "attempts"),
    "attempts 2**63": (lambda r, key: r.hset(key, "attempts", 2**63), "attempts"),
    "no attempts": (lambda r, key: r.hdel(key, "attempts"), "attempts|it is missing"),
    "no payload": (lambda r, key: r.hdel(key, "payload"), "payload is missing"),
    "another hash": (lambda r, key: r.delete(key) and r.hset(key, "x", "y"), "it is missing"),
}
# Fields that are read as numbers; a job with nonsense there may run, but must harm nobody.
NONSENSE = ["abc", "", "nan", "inf", "-inf", "1e400", "0x10", "-5"]
paths = pytest.mark.parametrize("path", ["claim", "promote", "claim's promote", "reap"])


def lead_to_claim(client, queue, path: str) -> None:
    """Do what brings the jobs of this path into reach of a claim."""
    if path == "promote":
        while scripts.promote(client, queue):
            pass
    elif path == "reap":
        scripts.reap(client, queue, max_stalls=9)


def seed(client, queue, path: str, count: int) -> list[str]:
    """So many jobs where this path begins: ready, due, or held with a lease that is over."""
    ids = enqueue_some(client, queue, count, due="+1" if "promote" in path else "")
    if path == "reap":
        claim_some(client, queue, count, lease_ms=1)
    pass_ms(client, 5)
    return ids


@paths
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_row_goes_to_the_morgue(client, redis, queue, path, damage):
    """The good jobs before and behind it are served once each, and the books balance."""
    harm, reason = DAMAGE[damage]
    first, bad, last = seed(client, queue, path, 3)
    harm(redis, queue_keys(queue).job(bad))
    lead_to_claim(client, queue, path)
    token = 2 if path == "reap" else 1
    served = claim_some(client, queue, 10)
    assert {given(job) for job in served} == {(i, "work", token) for i in (first, last)}
    assert claim_some(client, queue, 10) == []
    fields = row(client, queue, bad)
    assert fields["last_error"].startswith("damaged row: ")
    assert any(words in fields["last_error"] for words in reason.split("|"))
    assert list(members(client, queue, "dead")) == [bad]
    assert set(members(client, queue, "active")) == {first, last}
    if damage.startswith("attempts"):
        assert fields["payload"] == "work"  # what is left of it is kept
    else:
        books_balance(client, queue)


@paths
@pytest.mark.parametrize("value", NONSENSE)
@pytest.mark.parametrize("field", ["priority", "lease_ms", "stalls", "failures", "max_stalls"])
def test_a_nonsense_number_loses_nothing(client, redis, queue, path, field, value):
    """Whatever the row says, each job stays in one place, and its neighbours are served."""
    first, bad, last = seed(client, queue, path, 3)
    redis.hset(queue_keys(queue).job(bad), field, value)
    lead_to_claim(client, queue, path)
    served = {job.id.decode() for job in claim_some(client, queue, 10)}
    assert served >= {first, last}
    books_balance(client, queue)
    # A lease without an end would keep the job for ever when its worker dies.
    assert max(members(client, queue, "active").values()) < wire.now_ms(client) + 1e9


@pytest.mark.parametrize("value", NONSENSE)
@pytest.mark.parametrize(
    ("verb", "field"), [("release", "priority"), ("extend", "lease_ms"), ("retry", "failures")]
)
def test_a_nonsense_number_stops_no_settlement(client, redis, queue, verb, field, value):
    """One bad row in a call: the others get their verdicts, and no job leaves all sets."""
    ids = enqueue_some(client, queue, 3)
    claim_some(client, queue, 3)
    redis.hset(queue_keys(queue).job(ids[1]), field, value)
    if verb == "release":
        verdicts = scripts.release(client, queue, [(i, 1) for i in ids])
    elif verb == "extend":
        verdicts = scripts.extend(client, queue, [(i, 1) for i in ids], lease_ms=60_000)
        assert max(members(client, queue, "active").values()) < wire.now_ms(client) + 1e9
    else:
        items = [(i, 1, 9, "boom", "") for i in ids]
        verdicts = scripts.retry(client, queue, items, max_attempts=3)
    assert verdicts[0] == verdicts[2] == ("scheduled" if verb == "retry" else 1)
    books_balance(client, queue)


@pytest.mark.parametrize("stranger", ["x" * 33, "JOB:other", "a b", "../../x", "é"])
@pytest.mark.parametrize("name", ["pending", "schedule"])
def test_a_stranger_in_a_set_never_reaches_a_worker(client, redis, queue, name, stranger):
    """What is no job id is buried, and the next job is served."""
    redis.zadd(getattr(queue_keys(queue), name), {stranger: 1})
    good = enqueue_one(client, queue)
    assert [given(job) for job in claim_some(client, queue, 5)] == [(good, "work", 1)]
    assert row(client, queue, stranger)["last_error"].startswith("damaged ")
    assert list(members(client, queue, "dead")) == [stranger]
    books_balance(client, queue)


def test_many_ghosts_are_passed_in_bounded_steps(client, redis, queue):
    """1,500 ids without rows in front of one job: two claims, and each wakes the next."""
    redis.zadd(queue_keys(queue).pending, {mint(): 0 for _ in range(1500)})
    good = enqueue_one(client, queue)
    assert claims(client, queue).jobs == []
    assert redis.llen(queue_keys(queue).wake) == 1
    assert [given(job) for job in claim_some(client, queue, 1)] == [(good, "work", 1)]
    books_balance(client, queue)


def test_a_damaged_row_can_still_be_settled_nowhere(client, redis, queue):
    """A row that was destroyed while its job ran: gone for everybody, and no error of a script."""
    job_id = enqueue_one(client, queue)
    claim_some(client, queue, 1)
    redis.delete(queue_keys(queue).job(job_id))
    redis.set(queue_keys(queue).job(job_id), "x")
    assert wire.complete(client, queue, job_id, 1) == 0
    (verdict,) = scripts.retry(client, queue, [(job_id, 1, 0, "boom", "")], max_attempts=3)
    assert str(verdict) == "Retry job gone"
    assert redis.get(queue_keys(queue).job(job_id)) == b"x"


# -- keys of the wrong type -------------------------------------------------------------------

Call = Callable[..., object]
CALLS: dict[str, tuple[Call, str]] = {
    "enqueue": (lambda c, q, i: admit(c, q, new(), new(due="+5000")), "pending schedule wake"),
    "claim": (
        lambda c, q, i: claim_some(c, q, 5),
        "pending active schedule dead wake meta limiter",
    ),
    "complete": (lambda c, q, i: wire.complete(c, q, i, 1), "active"),
    "late complete": (lambda c, q, i: wire.complete(c, q, i, 1), "active pending"),
    "kept": (lambda c, q, i: wire.complete(c, q, i, 1, keep_ms=9), "active done"),
    "retry": (lambda c, q, i: wire.retry(c, q, i, 1), "active schedule wake"),
    "death": (lambda c, q, i: wire.retry(c, q, i, 1, maximum=1), "active dead"),
    "snooze": (lambda c, q, i: wire.snooze(c, q, i, 1), "active schedule wake"),
    "release": (lambda c, q, i: wire.release(c, q, i, 1), "active pending wake"),
    "bury": (lambda c, q, i: wire.bury(c, q, i, 1), "active dead"),
    "discard": (lambda c, q, i: wire.discard(c, q, i, 1), "active"),
    "extend": (lambda c, q, i: wire.extend(c, q, i, 1), "active"),
    "promote": (lambda c, q, i: scripts.promote(c, q), "schedule pending dead wake"),
    "reap": (lambda c, q, i: scripts.reap(c, q, max_stalls=9), "active pending dead wake"),
    "trim": (lambda c, q, i: scripts.trim(c, q, dead_max=0, dead_ttl_ms=1), "dead done"),
    "pause": (lambda c, q, i: scripts.pause(c, q), "meta"),
    "resume": (lambda c, q, i: scripts.resume(c, q), "meta wake"),
}
WRONG = [(verb, name) for verb, (_, names) in CALLS.items() for name in names.split()]


@pytest.fixture
def busy(client, redis, queue) -> str:
    """A queue with something in every set; the id of a held job whose lease is over."""
    keys = queue_keys(queue)
    dead, done, held = enqueue_some(client, queue, 3)
    claim_some(client, queue, 3, lease_ms=1)
    wire.bury(client, queue, dead, 1)
    wire.complete(client, queue, done, 1, keep_ms=1)
    enqueue_one(client, queue)
    enqueue_one(client, queue, due="+1")
    redis.hset(keys.meta, mapping={"max": 3, "duration": 1000})
    pass_ms(client, 5)
    return held


@pytest.mark.parametrize(("verb", "name"), WRONG)
def test_a_key_of_the_wrong_type_changes_nothing(client, redis, queue, busy, verb, name):
    """The call fails as a whole: a script that stops half-way would keep what it wrote."""
    if verb == "late complete":
        scripts.reap(client, queue, max_stalls=9)
    key = getattr(queue_keys(queue), name)
    redis.delete(key)
    redis.rpush(key, "x") if name == "limiter" else redis.set(key, "x")
    before = {k: redis.dump(k) for k in redis.keys("*")}
    with pytest.raises(ServerError, match="WRONGTYPE|wrong kind"):
        CALLS[verb][0](client, queue, busy)
    assert {k: redis.dump(k) for k in redis.keys("*")} == before


@pytest.mark.parametrize("verb", CALLS)
def test_damaged_counters_stop_nothing(client, redis, queue, busy, verb):
    """Counting is the least of it: the transition goes through without."""
    keys = queue_keys(queue)
    if verb == "late complete":
        scripts.reap(client, queue, max_stalls=9)
    for key in redis.keys(keys.metrics + "*"):
        redis.delete(key)
        redis.set(key, "x")
    CALLS[verb][0](client, queue, busy)
    books_balance(client, queue)
