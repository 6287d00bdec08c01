"""The settlements and extend: fenced by the token, repeatable, and each without a side door."""

from collections.abc import Callable
from hashlib import sha256

import pytest

from django_emq import scripts
from django_emq.exceptions import JobGone, ServerError, StaleToken
from django_emq.ids import mint
from django_emq.keys import queue_keys
from tests.conformance import wire
from tests.conformance.wire import (
    books_balance,
    bury,
    claim_one,
    claim_some,
    complete,
    discard,
    enqueue_one,
    enqueue_some,
    extend,
    given,
    lapse,
    members,
    pass_ms,
    release,
    retry,
    row,
    snooze,
)

Verb = Callable[..., object]
SETTLEMENTS: dict[str, Verb] = {
    "complete": lambda *args: complete(*args, keep_ms=60_000),
    "retry": lambda *args: retry(*args, delay_ms=60_000),
    "snooze": lambda *args: snooze(*args, 60_000),
    "release": release,
    "bury": bury,
    "discard": discard,
}
VERBS = {**SETTLEMENTS, "extend": extend}
# The N-forms: what a call of these (id, token) pairs looks like.
MANY: dict[str, Callable[..., list[object]]] = {
    "complete": lambda c, q, pairs: scripts.complete(c, q, [(i, t, "") for i, t in pairs]),
    "retry": lambda c, q, pairs: scripts.retry(
        c, q, [(i, t, 9, "boom", "") for i, t in pairs], max_attempts=3
    ),
    "snooze": lambda c, q, pairs: scripts.snooze(c, q, [(i, t, "+9") for i, t in pairs]),
    "release": scripts.release,
    "bury": lambda c, q, pairs: scripts.bury(c, q, [(i, t, "no use", "") for i, t in pairs]),
    "discard": scripts.discard,
    "extend": lambda c, q, pairs: scripts.extend(c, q, pairs, lease_ms=60_000),
}
each_verb = pytest.mark.parametrize("name", VERBS)
each_settlement = pytest.mark.parametrize("name", SETTLEMENTS)


@pytest.fixture
def job_id(client, queue) -> str:
    """A job that is held with token 1."""
    job_id = enqueue_one(client, queue)
    claim_one(client, queue)
    return job_id


def refused(client, queue, name: str, job_id: str, token: int) -> str:
    """The text of the refusal, which changed nothing."""
    before = wire.snapshot(client, queue)
    with pytest.raises(StaleToken) as refusal:
        VERBS[name](client, queue, job_id, token)
    assert wire.snapshot(client, queue) == before
    return str(refusal.value)


# -- the fence --------------------------------------------------------------------------------


@each_verb
@pytest.mark.parametrize("token", [0, 1, 3, 20])
def test_another_token_is_refused(client, queue, name, token):
    """Only the newest token moves a job: neither an older one, nor one nobody was given."""
    job_id = enqueue_one(client, queue)
    claim_one(client, queue)
    lapse(client, queue, job_id, 1)
    claim_one(client, queue)
    words = f"{name.capitalize()} token mismatch (yours {token}, row 2)"
    assert refused(client, queue, name, job_id, token) == words
    # A supervisor extends what a child has settled meanwhile: those refusals are not counted.
    counted = client.raw.hget(queue_keys(queue).metrics, "stale")
    assert int(counted or 0) == (name != "extend")


@each_verb
def test_a_job_nobody_claimed_is_refused(client, queue, name):
    """The token of a fresh row is 0, and 0 holds nothing."""
    job_id = enqueue_one(client, queue)
    assert name.capitalize() in refused(client, queue, name, job_id, 0)


@each_verb
def test_a_job_that_is_gone(client, queue, name):
    """Complete answers 0, the others JobGone; nothing is made of it."""
    if name == "complete":
        assert complete(client, queue, mint(), 1) == 0
    else:
        with pytest.raises(JobGone, match=f"^{name.capitalize()} job gone$"):
            VERBS[name](client, queue, mint(), 1)
    assert not any(wire.snapshot(client, queue).values())


@each_verb
def test_in_the_reap_window_only_complete_passes(client, queue, job_id, name):
    """Swept and not claimed again: the work may be done, but nothing else may be said of it."""
    lapse(client, queue, job_id, 1)
    if name == "complete":
        assert complete(client, queue, job_id, 1) == 1
    else:
        words = f"{name.capitalize()} not held (yours 1, row 1)"
        assert refused(client, queue, name, job_id, 1) == words
        assert given(claim_one(client, queue)) == (job_id, "work", 2)
    books_balance(client, queue)


@each_settlement
@pytest.mark.parametrize("other", VERBS)
def test_a_settlement_closes_its_token(client, queue, job_id, name, other):
    """After one verdict, every other with the same token is stale; the same again is no news."""
    first = SETTLEMENTS[name](client, queue, job_id, 1)
    if name == other:
        before = wire.snapshot(client, queue)
        if name == "discard":
            with pytest.raises(JobGone):
                discard(client, queue, job_id, 1)
        else:
            assert SETTLEMENTS[name](client, queue, job_id, 1) == first
        assert wire.snapshot(client, queue) == before
    elif name == "discard":
        if other == "complete":
            assert complete(client, queue, job_id, 1) == 0
        else:
            with pytest.raises(JobGone):
                VERBS[other](client, queue, job_id, 1)
    else:
        words = f"not held, settled before by {name} (yours 1, row 1)"
        assert words in refused(client, queue, other, job_id, 1)
    books_balance(client, queue)


@pytest.mark.parametrize("name", ["retry", "snooze", "release"])
@pytest.mark.parametrize("other", VERBS)
def test_a_token_stays_closed_until_the_next_claim(client, queue, job_id, name, other):
    """Back in pending the old token is stale for good; the next one is as good as new."""
    SETTLEMENTS[name](client, queue, job_id, 1)
    if name != "release":
        client.raw.zadd(queue_keys(queue).schedule, {job_id: 1}, xx=True)
        assert scripts.promote(client, queue) == 1
    if other != name:
        assert "settled before by" in refused(client, queue, other, job_id, 1)
    assert given(claim_one(client, queue)) == (job_id, "work", 2)
    assert "settled" not in row(client, queue, job_id)
    assert VERBS[other](client, queue, job_id, 2) in (1, "scheduled")
    books_balance(client, queue)


def test_a_verdict_is_not_lost_twice(client, queue, job_id):
    """A complete that kept no row is told apart by its sender: the repeat finds it gone."""
    assert complete(client, queue, job_id, 1) == 1
    assert complete(client, queue, job_id, 1) == 0
    assert int(client.raw.hget(queue_keys(queue).metrics, "completed")) == 1


# -- N jobs in one call -----------------------------------------------------------------------


@each_verb
def test_verdicts_of_many_come_in_order(client, queue, name):
    """Held, stale, gone, never claimed, held: each has its own verdict, and only two move."""
    held, late, also = enqueue_some(client, queue, 3)
    claim_some(client, queue, 3)
    waiting, gone = enqueue_one(client, queue), mint()
    pairs = [(held, 1), (late, 9), (gone, 1), (waiting, 0), (also, 1)]
    good, stale, none, unheld, last = MANY[name](client, queue, pairs)
    assert good == last == ("scheduled" if name == "retry" else 1)
    assert isinstance(stale, StaleToken)
    assert none == 0 if name == "complete" else isinstance(none, JobGone)
    assert isinstance(unheld, StaleToken)
    active = [held, also] if name == "extend" else []
    assert set(members(client, queue, "active")) == {late, *active}
    assert waiting in members(client, queue, "pending")
    assert row(client, queue, late)["state"] == "active"
    books_balance(client, queue)


@each_verb
@pytest.mark.parametrize("maximum", [1, 3])
def test_a_job_twice_in_one_call(client, queue, name, maximum):
    """It is carried out once, and both get the same verdict."""
    (job_id,) = enqueue_some(client, queue, 1, max_attempts=maximum)
    claim_one(client, queue)
    one, two = MANY[name](client, queue, [(job_id, 1), (job_id, 1)])
    assert one == two
    counters = client.raw.hgetall(queue_keys(queue).metrics)
    counters = {k: v for k, v in counters.items() if k not in (b"enqueued", b"claimed")}
    assert set(counters.values()) <= {b"1"}
    books_balance(client, queue)


@each_verb
def test_no_jobs_no_call(client, queue, name):
    """Nothing to say is not said."""
    before = wire.calls(client, "evalsha")
    assert MANY[name](client, queue, []) == []
    assert wire.calls(client, "evalsha") == before


@pytest.mark.parametrize("count", [4001, 8001])
@pytest.mark.parametrize("keep_ms", [0, 60_000])
def test_a_complete_of_any_size_is_whole_or_refused(client, queue, count, keep_ms):
    """More than the server can unpack: all are retired, or none."""
    for start in range(0, count, 500):
        size = min(500, count - start)
        enqueue_some(client, queue, size, logs=1)
        claim_some(client, queue, size)
    ids = list(members(client, queue, "active"))
    items = [(i, 1, "") for i in ids]
    try:
        verdicts = scripts.complete(client, queue, items, keep_ms=keep_ms)
        assert verdicts == [1] * count
    except (ServerError, ValueError):
        assert len(members(client, queue, "active")) == count
    books_balance(client, queue)


# -- what each leaves behind ------------------------------------------------------------------


def test_retry_dies_at_the_queues_maximum(client, queue):
    """Failures count, not claims; the error and its traceback of the last one are kept."""
    job_id = enqueue_one(client, queue)
    verdicts = []
    for token in (1, 2, 3):
        claim_one(client, queue)
        verdicts.append(
            retry(
                client, queue, job_id, token, delay_ms=0, error=f"e{token}", traceback=f"t{token}"
            )
        )
    assert verdicts == ["scheduled", "scheduled", "dead"]
    fields = row(client, queue, job_id)
    assert (fields["failures"], fields["last_error"], fields["traceback"]) == ("3", "e3", "t3")
    morgue = members(client, queue, "dead")
    assert morgue == {job_id: float(fields["finished_at"])}
    books_balance(client, queue)


@pytest.mark.parametrize("own", [1, 2])
def test_retry_dies_at_the_rows_own_maximum(client, queue, own):
    """The job's own number goes before the queue's, be it smaller or larger."""
    job_id = enqueue_one(client, queue, max_attempts=own)
    for token in range(1, own + 1):
        claim_one(client, queue)
        expected = "dead" if token == own else "scheduled"
        assert retry(client, queue, job_id, token, delay_ms=0, maximum=3 - own) == expected


def test_retry_keeps_the_traceback_when_there_is_no_new_one(client, queue, job_id):
    """An empty text says nothing."""
    retry(client, queue, job_id, 1, delay_ms=0, traceback="first")
    claim_one(client, queue)
    retry(client, queue, job_id, 2, delay_ms=0, error="second")
    fields = row(client, queue, job_id)
    assert (fields["last_error"], fields["traceback"]) == ("second", "first")


@pytest.mark.parametrize("name", ["snooze", "release"])
def test_snooze_and_release_spend_nothing(client, queue, name):
    """Neither a failure nor a stall, however often."""
    job_id = enqueue_one(client, queue)
    for token in range(1, 6):
        claim_one(client, queue)
        if name == "snooze":
            snooze(client, queue, job_id, token, 0)
        else:
            release(client, queue, job_id, token)
    fields = row(client, queue, job_id)
    assert fields["attempts"] == "5"
    assert not {"failures", "stalls", "last_error"} & set(fields)
    books_balance(client, queue)


@pytest.mark.parametrize("name", ["retry", "snooze"])
def test_the_delay_is_the_servers(client, queue, job_id, name):
    """Due so many milliseconds from now by the server's clock."""
    before = wire.now_ms(client)
    SETTLEMENTS[name](client, queue, job_id, 1)
    due = members(client, queue, "schedule")[job_id]
    assert before + 59_999 <= due <= wire.now_ms(client) + 60_000


def test_snooze_until(client, queue, job_id):
    """An instant is taken as it is."""
    at = int(wire.now_ms(client)) + 3_600_000
    assert scripts.snooze(client, queue, [(job_id, 1, str(at))]) == [1]
    assert members(client, queue, "schedule") == {job_id: at}


def test_bury_keeps_the_reason(client, queue, job_id):
    """In the morgue at once, with what the task said, and no failure."""
    assert scripts.bury(client, queue, [(job_id, 1, "no such user", "trace")]) == [1]
    fields = row(client, queue, job_id)
    assert (fields["state"], fields["last_error"]) == ("dead", "no such user")
    assert fields["traceback"] == "trace"
    assert "failures" not in fields
    assert members(client, queue, "dead") == {job_id: float(fields["finished_at"])}
    books_balance(client, queue)


@pytest.mark.parametrize("verb", [complete, discard])
def test_nothing_remains(client, redis, queue, job_id, verb):
    """Row and logs go in the same step."""
    keys = queue_keys(queue)
    redis.rpush(keys.job(job_id) + ":logs", "line")
    redis.hset(keys.job(job_id), "ties", 1)
    assert verb(client, queue, job_id, 1) == 1
    assert redis.keys(keys.jobs + "*") == []
    assert not any(wire.snapshot(client, queue).values())


def test_complete_keeps_a_result(client, queue, job_id):
    """The row stays as long as asked, in `done`, with the result."""
    before = wire.now_ms(client)
    assert scripts.complete(client, queue, [(job_id, 1, '{"n":1}')], keep_ms=5000) == [1]
    fields = row(client, queue, job_id)
    assert (fields["state"], fields["result"]) == ("done", '{"n":1}')
    ends = members(client, queue, "done")[job_id]
    assert before + 4999 <= ends <= wire.now_ms(client) + 5000
    assert ends - 5000 == float(fields["finished_at"])
    books_balance(client, queue)


def test_extend_keeps_to_the_rows_own_lease(client, queue):
    """Except for 0, which ends every lease."""
    plain, own = enqueue_one(client, queue), enqueue_one(client, queue, lease_ms=5000)
    claim_some(client, queue, 2, lease_ms=1)
    before = wire.now_ms(client)
    assert scripts.extend(client, queue, [(plain, 1), (own, 1)], lease_ms=90_000) == [1, 1]
    leases = members(client, queue, "active")
    assert before + 89_999 <= leases[plain] <= wire.now_ms(client) + 90_000
    assert before + 4999 <= leases[own] <= wire.now_ms(client) + 5000
    scripts.extend(client, queue, [(plain, 1), (own, 1)], lease_ms=0)
    assert all(end <= wire.now_ms(client) for end in members(client, queue, "active").values())


@pytest.mark.parametrize("name", ["retry", "snooze", "release"])
def test_what_comes_back_wakes(client, redis, queue, job_id, name):
    """One token, unless one lies there; a due time later than others is no news."""
    wake = queue_keys(queue).wake
    redis.delete(wake)
    SETTLEMENTS[name](client, queue, job_id, 1)
    assert redis.llen(wake) == 1
    other = enqueue_one(client, queue, priority=9)
    claim_one(client, queue)
    redis.delete(wake)
    redis.lpush(wake, "1")
    SETTLEMENTS[name](client, queue, other, 1)
    assert redis.llen(wake) == 1


PAYLOAD = (
    '{"tags":[],"o":{},"id":9007199254740993,"big":15947634569000323,'
    '"neg":-130775545883395173,"f":1.0,"d":0.1,"n":null,"s":"\u2028"}'
)


def test_a_payload_is_never_touched(client, redis, queue):
    """The bytes that went in are there after each step, and the worker is given them."""
    job_id = enqueue_one(client, queue, PAYLOAD, due="+1")
    key, digest = queue_keys(queue).job(job_id), sha256(PAYLOAD.encode()).digest()
    steps: list[Callable[[int], object]] = [
        lambda t: retry(client, queue, job_id, t, delay_ms=1),
        lambda t: snooze(client, queue, job_id, t, 1),
        lambda t: release(client, queue, job_id, t),
        lambda t: lapse(client, queue, job_id, t),
        lambda t: bury(client, queue, job_id, t),
    ]
    for token, step in enumerate(steps, 1):
        pass_ms(client, 3)
        scripts.promote(client, queue)
        assert given(claim_one(client, queue)) == (job_id, PAYLOAD, token)
        step(token)
        assert sha256(redis.hget(key, "payload")).digest() == digest
    tokens = books_balance(client, queue)
    assert tokens == {job_id: len(steps)}
