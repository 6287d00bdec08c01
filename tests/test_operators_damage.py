"""The operators' verbs where something else has damaged rows and keys: nobody's job is lost."""

from collections.abc import Callable

import pytest

from django_emq import scripts
from django_emq.exceptions import JobGone, ServerError
from django_emq.keys import queue_keys
from tests.conformance import wire
from tests.conformance.wire import books_balance, claim_some, enqueue_some, members, row
from tests.operator_cases import HOLDERS, VERBS, ask, everything, job_in, kinds

# What is no token: a script that only sees digits would fail when it adds one.
NO_TOKENS = ["abc", "", "-1", "1.5", "007", "9" * 20, str(2**63 - 1)]


@pytest.mark.parametrize("token", NO_TOKENS)
@pytest.mark.parametrize("verb", ["requeue", "cancel"])
def test_a_damaged_token_costs_nobody_else(client, redis, queue, verb, token):
    """Its job is left where it is, and the sweep buries it; the others of the call are moved."""
    first, bad, last = enqueue_some(client, queue, 3)
    claim_some(client, queue, 3)
    redis.hset(queue_keys(queue).job(bad), "attempts", token)
    before = row(client, queue, bad)
    assert kinds(VERBS[verb](client, queue, [first, bad, last])) == [1, JobGone, 1]
    assert list(members(client, queue, "active")) == [bad]
    assert row(client, queue, bad) == before
    redis.zadd(queue_keys(queue).active, {bad: 1})
    scripts.reap(client, queue, max_stalls=9)
    assert bad in members(client, queue, "dead")
    assert row(client, queue, bad)["last_error"].startswith("damaged row: ")


@pytest.mark.parametrize("priority", ["abc", "", "nan", "inf", "1e400", "0x10", "9" * 20])
@pytest.mark.parametrize(("verb", "state"), [("reprocess", "dead"), ("requeue", "active")])
def test_a_nonsense_priority_stops_nothing(client, redis, queue, verb, state, priority):
    """It counts as none."""
    job_id = job_in(client, queue, state)
    redis.hset(queue_keys(queue).job(job_id), "priority", priority)
    assert ask(client, queue, verb, job_id) == 1
    assert members(client, queue, "pending") == {job_id: 0}
    books_balance(client, queue)


@pytest.mark.parametrize("verb", ["reprocess", "requeue", "cancel", "update", "progress", "log"])
@pytest.mark.parametrize("kind", ["string", "list"])
def test_a_row_that_is_none(client, redis, queue, verb, kind):
    """For those who would write in it, it is not there; nothing is changed."""
    job_id = job_in(client, queue, "dead" if verb == "reprocess" else "active")
    key = queue_keys(queue).job(job_id)
    redis.delete(key)
    redis.set(key, "x") if kind == "string" else redis.rpush(key, "x")
    before = everything(client)
    args = (client, queue, job_id, 1) if verb in HOLDERS else (client, queue, verb, job_id)
    with pytest.raises(JobGone):
        HOLDERS.get(verb, ask)(*args)
    assert everything(client) == before


@pytest.mark.parametrize("name", ["pending", "schedule", "dead", "done"])
@pytest.mark.parametrize("stranger", ["", "x" * 64, "a b:c", "*", "é\n"])
def test_a_stranger_can_be_removed(client, redis, queue, name, stranger):
    """What is no job id, and has no row, can be taken out of its set."""
    redis.zadd(getattr(queue_keys(queue), name), {stranger: 1})
    assert ask(client, queue, "remove", stranger) == 1
    assert not any(wire.snapshot(client, queue).values())


def test_an_id_in_several_sets_is_removed_from_all(client, redis, queue):
    """Whatever has put it there."""
    job_id = job_in(client, queue, "pending")
    for name in ("schedule", "dead", "done"):
        redis.zadd(getattr(queue_keys(queue), name), {job_id: 1})
    assert ask(client, queue, "remove", job_id) == 1
    assert not any(wire.snapshot(client, queue).values())


# -- keys of the wrong type -------------------------------------------------------------------

CALLS: dict[str, tuple[Callable[..., object], str, str]] = {
    "reprocess": (VERBS["reprocess"], "dead", "dead pending wake"),
    "requeue": (VERBS["requeue"], "active", "active pending wake"),
    "requeue scheduled": (VERBS["requeue"], "scheduled", "active schedule pending wake"),
    "cancel": (VERBS["cancel"], "active", "active dead"),
    "cancel pending": (VERBS["cancel"], "pending", "active schedule pending dead"),
    "remove": (VERBS["remove"], "done", "pending active schedule dead done"),
    "drain": (lambda c, q, ids: scripts.drain(c, q, "pending"), "pending", "pending"),
    "update": (lambda c, q, ids: scripts.update(c, q, ids[0], "new"), "dead", "active"),
    "progress": (lambda c, q, ids: wire.progress(c, q, ids[0], 1, "5"), "active", "active"),
    "log": (lambda c, q, ids: wire.log(c, q, ids[0], 1, "line"), "active", "active logs"),
    "obliterate": (lambda c, q, ids: scripts.obliterate(c, q), "pending", "meta"),
}
WRONG = [(verb, name) for verb, (_, _, names) in CALLS.items() for name in names.split()]


@pytest.mark.parametrize(("verb", "name"), WRONG)
def test_a_key_of_the_wrong_type_changes_nothing(client, redis, queue, verb, name):
    """The call fails as a whole: a script looks at all that it will touch before it writes."""
    act, state, _ = CALLS[verb]
    ids = [job_in(client, queue, state), job_in(client, queue, state)]
    keys = queue_keys(queue)
    key = keys.logs(ids[0]) if name == "logs" else getattr(keys, name)
    redis.delete(key)
    redis.set(key, "x")
    before = everything(client)
    with pytest.raises(ServerError, match="WRONGTYPE|wrong kind"):
        act(client, queue, ids)
    assert everything(client) == before


@pytest.mark.parametrize("verb", CALLS)
def test_damaged_counters_stop_nothing(client, redis, queue, verb):
    """Counting is the least of it."""
    act, state, _ = CALLS[verb]
    job_id = job_in(client, queue, state)
    scripts.pause(client, queue)
    for key in redis.keys(queue_keys(queue).metrics + "*"):
        redis.delete(key)
        redis.set(key, "x")
    verdicts = act(client, queue, [job_id])
    assert verdicts == [1] or not isinstance(verdicts, list)
    books_balance(client, queue)
