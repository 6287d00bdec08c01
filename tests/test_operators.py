"""The operators' verbs on single jobs: where each may act, what it moves, and whom it shuts out.

Those on sets and queues are in test_operators_queue.py, races with a holder in
test_operators_fence.py.
"""

import pytest

from django_emq import scripts
from django_emq.exceptions import InvalidOption, JobGone, JobHeld, NotInState, UnknownSet
from django_emq.ids import mint
from django_emq.keys import queue_keys
from tests.conformance import wire
from tests.conformance.wire import (
    books_balance,
    bury,
    claim_one,
    complete,
    enqueue_one,
    extend,
    given,
    lapse,
    members,
    reap,
    retry,
    row,
)
from tests.operator_cases import VERBS, ask, counter, everything, job_in, kinds

# By state: the verdicts of these verbs in turn, and of update. A job is swept when its lease has
# lapsed and nobody has claimed it again; a ghost is an id in pending without a row.
OUTCOMES: dict[str, tuple[object, ...]] = {
    "pending": (NotInState, NotInState, 1, 1, 1, None),
    "swept": (NotInState, NotInState, 1, 1, 1, None),
    "active": (NotInState, 1, 1, JobHeld, 1, JobHeld),
    "lapsed": (NotInState, 1, 1, JobHeld, 1, JobHeld),
    "scheduled": (NotInState, 1, 1, 1, 1, None),
    "dead": (1, NotInState, NotInState, 1, 1, None),
    "done": (NotInState, NotInState, NotInState, 1, 1, NotInState),
    "row alone": (NotInState, NotInState, NotInState, 1, 1, None),
    "ghost": (JobGone, JobGone, JobGone, 1, 1, JobGone),
    "absent": (JobGone, JobGone, JobGone, JobGone, JobGone, JobGone),
}
TABLE = [
    pytest.param(state, verb, outcome, id=f"{verb} {state}")
    for state, outcomes in OUTCOMES.items()
    for verb, outcome in zip((*VERBS, "update"), outcomes, strict=True)
]
# Where each verb puts the job; absent for those that delete it.
GOALS = {"reprocess": "pending", "requeue": "pending", "cancel": "dead"}
# A job in this state, and one in which the verb is refused.
FITS = {"reprocess": "dead", "requeue": "active", "cancel": "active", "remove": "pending"}
MISFITS = {"reprocess": "pending", "requeue": "dead", "cancel": "dead", "remove": "active"}

COUNTERS = {
    "reprocess": "reprocessed",
    "requeue": "requeued",
    "cancel": "cancelled",
    "remove": "removed",
}
each_verb = pytest.mark.parametrize("verb", FITS)


# -- all states, all verbs --------------------------------------------------------------------


@pytest.mark.parametrize(("state", "verb", "outcome"), TABLE)
def test_each_verb_in_each_state(client, queue, state, verb, outcome):
    """Where it may act the job is moved or gone, and the books balance; else nothing changes."""
    job_id, rest = job_in(client, queue, state), enqueue_one(client, queue)
    before, books = everything(client), wire.snapshot(client, queue)
    if isinstance(outcome, type):
        with pytest.raises(outcome):
            ask(client, queue, verb, job_id)
        assert everything(client) == before
    elif verb == "update":
        ask(client, queue, verb, job_id)
        after = wire.snapshot(client, queue)
        for fields in (books["rows"][job_id], after["rows"][job_id]):
            fields.pop(b"settled", None)  # an older run cannot stand for the new payload
        assert after["rows"][job_id].pop(b"payload") == b"new"
        assert books["rows"][job_id].pop(b"payload") == b"work"
        assert after == books
    else:
        assert ask(client, queue, verb, job_id) == outcome
        assert scripts.state(client, queue, job_id) == GOALS.get(verb, "absent")
        assert scripts.state(client, queue, rest) == "pending"
        books_balance(client, queue, {rest: 0})


@each_verb
def test_many_in_one_call(client, queue, verb):
    """Each job has its own verdict, in order; one that is named twice is moved once."""
    one, two = job_in(client, queue, FITS[verb]), job_in(client, queue, FITS[verb])
    misfit, gone = job_in(client, queue, MISFITS[verb], priority=10), mint()
    untouched = wire.snapshot(client, queue)["rows"][misfit]
    tokens = books_balance(client, queue)
    verdicts = VERBS[verb](client, queue, [one, misfit, gone, one, two])
    refusal = JobHeld if verb == "remove" else NotInState
    again = JobGone if verb == "remove" else NotInState
    assert kinds(verdicts) == [1, refusal, JobGone, again, 1]
    goal = GOALS.get(verb, "absent")
    assert [scripts.state(client, queue, i) for i in (one, two)] == [goal, goal]
    assert wire.snapshot(client, queue)["rows"][misfit] == untouched
    assert counter(client, queue, COUNTERS[verb]) == 2
    books_balance(client, queue, tokens if verb != "remove" else {misfit: 1})


@each_verb
def test_no_jobs_no_call(client, queue, verb):
    """Nothing to ask is not asked."""
    before = wire.calls(client, "evalsha")
    assert VERBS[verb](client, queue, []) == []
    assert wire.calls(client, "evalsha") == before


@each_verb
def test_a_call_has_a_bound(client, queue, verb):
    """A thousand jobs in one call; more are refused before anything is sent."""
    job_in(client, queue, FITS[verb])
    ids = [mint() for _ in range(1001)]
    before = everything(client)
    with pytest.raises(InvalidOption, match="at most 1000 jobs"):
        VERBS[verb](client, queue, ids)
    assert kinds(VERBS[verb](client, queue, ids[:1000])) == [JobGone] * 1000
    assert everything(client) == before


# Where a job in each state is, and what takes `only`.
PLACES = {
    "pending": "pending", "swept": "pending", "active": "active", "scheduled": "schedule",
    "dead": "dead", "done": "done", "row alone": "none",
}  # fmt: skip
ONLY = {
    "requeue": ("active", "schedule"),
    "cancel": ("active", "schedule", "pending"),
    "remove by force": ("pending", "active", "schedule", "dead", "done", "none"),
}


@pytest.mark.parametrize("state", [*PLACES, "absent"])
@pytest.mark.parametrize(("verb", "only"), [(v, one) for v in ONLY for one in ONLY[v]])
def test_only_what_is_still_there(client, queue, verb, only, state):
    """A job that has gone elsewhere is left alone, and its verdict is no other one."""
    job_id = job_in(client, queue, state)
    before, books = everything(client), wire.snapshot(client, queue)
    if state == "absent":
        assert kinds(VERBS[verb](client, queue, [job_id], only=only)) == [JobGone]
    elif PLACES[state] == only:
        assert VERBS[verb](client, queue, [job_id], only=only) == [1]
        assert wire.snapshot(client, queue) != books
        return
    else:
        (verdict,) = VERBS[verb](client, queue, [job_id], only=only)
        assert isinstance(verdict, NotInState)
        assert f"Not in {only} but in {PLACES[state]}" in str(verdict) or (
            str(verdict) == "Neither waiting nor held"
        )
    assert everything(client) == before


@pytest.mark.parametrize("verb", ONLY)
@pytest.mark.parametrize("only", ["scheduled", "Dead", "wake", "all"])
def test_only_a_set_of_the_verb(client, queue, verb, only):
    """Another name is refused before anything is sent."""
    job_id = job_in(client, queue, "active")
    before = everything(client)
    with pytest.raises(UnknownSet, match="Use one of: "):
        VERBS[verb](client, queue, [job_id], only=only)
    assert everything(client) == before


# -- what each leaves behind ------------------------------------------------------------------


def test_a_new_life_is_tried_as_often_as_the_first(client, queue):
    """Failures start anew: with 3 attempts, 3 runs, and after reprocess 3 more; tokens go on."""
    job_id = enqueue_one(client, queue)
    for life in range(3):
        verdicts = []
        for run in range(3):
            token = 3 * life + run + 1
            assert given(claim_one(client, queue)) == (job_id, "work", token)
            verdicts.append(retry(client, queue, job_id, token, delay_ms=0, maximum=3))
        assert verdicts == ["scheduled", "scheduled", "dead"]
        assert row(client, queue, job_id)["failures"] == "3"
        assert ask(client, queue, "reprocess", job_id) == 1
    books_balance(client, queue)


def test_a_new_life_may_stall_as_often_as_the_first(client, queue):
    """So do the leases that it may lose."""
    job_id = enqueue_one(client, queue)
    for life in range(2):
        for run in range(2):
            token = 2 * life + run + 1
            assert given(claim_one(client, queue)) == (job_id, "work", token)
            extend(client, queue, job_id, token, lease_ms=0)
            assert reap(client, queue, max_stalls=2) == ([job_id] if run == 0 else [])
        assert row(client, queue, job_id)["stalls"] == "2"
        assert ask(client, queue, "reprocess", job_id) == 1


def test_reprocess_clears_the_last_life(client, queue):
    """Failures, stalls and the error go; the rest of the row is as it was."""
    job_id = enqueue_one(client, queue, priority=4, max_attempts=2, own="kept")
    claim_one(client, queue)
    lapse(client, queue, job_id, 1)
    claim_one(client, queue)
    wire.progress(client, queue, job_id, 2, "50")
    assert retry(client, queue, job_id, 2, maximum=1, delay_ms=0, traceback="trace") == "scheduled"
    claim_one(client, queue)
    assert retry(client, queue, job_id, 3, maximum=1, traceback="trace") == "dead"
    before = row(client, queue, job_id)
    assert ask(client, queue, "reprocess", job_id) == 1
    for field in ("failures", "stalls", "last_error", "traceback", "finished_at"):
        assert before.pop(field)
    assert row(client, queue, job_id) == {**before, "state": "pending", "settled": "reprocess"}
    assert "failures" not in row(client, queue, job_id)
    # Whoever claims it is told that it has not failed yet.
    assert claim_one(client, queue).failures == 0


def test_requeue_spends_nothing(client, queue):
    """A run that was taken away is neither a failure nor a stall."""
    job_id = enqueue_one(client, queue)
    for token in (1, 3, 5):
        assert given(claim_one(client, queue)) == (job_id, "work", token)
        assert ask(client, queue, "requeue", job_id) == 1
    assert not {"failures", "stalls", "last_error"} & set(row(client, queue, job_id))


@pytest.mark.parametrize("state", ["pending", "active", "scheduled"])
@pytest.mark.parametrize(("by", "error"), [("", "cancelled"), ("Łukasz", "cancelled by Łukasz")])
def test_cancel_says_who(client, queue, state, by, error):
    """In the morgue with a reason and the time, and no failure; reprocess gives it back."""
    job_id, before = job_in(client, queue, state), wire.now_ms(client)
    assert ask(client, queue, "cancel", job_id, by=by) == 1
    fields = row(client, queue, job_id)
    assert (fields["last_error"], fields["settled"]) == (error, "cancel")
    assert "failures" not in fields
    assert members(client, queue, "dead") == {job_id: float(fields["finished_at"])}
    assert before - 1 <= float(fields["finished_at"]) <= wire.now_ms(client)
    assert counter(client, queue, "dead") == 1
    assert ask(client, queue, "reprocess", job_id) == 1
    assert "last_error" not in row(client, queue, job_id)


@pytest.mark.parametrize(
    ("verb", "state"),
    [
        ("reprocess", "dead"),
        ("requeue", "active"),
        ("requeue", "scheduled"),
    ],
)
@pytest.mark.parametrize("priority", [-3, 0, 7])
def test_the_priority_is_kept(client, queue, verb, state, priority):
    """What comes back takes the place that its priority gives it."""
    job_id = enqueue_one(client, queue, priority=priority)
    claim_one(client, queue)
    if state == "scheduled":
        wire.snooze(client, queue, job_id, 1, 60_000)
    elif state == "dead":
        bury(client, queue, job_id, 1)
    low, high = enqueue_one(client, queue, priority=-9), enqueue_one(client, queue, priority=9)
    assert ask(client, queue, verb, job_id) == 1
    assert members(client, queue, "pending") == {high: -9, job_id: -priority, low: 9}


@pytest.mark.parametrize(
    ("verb", "state"),
    [
        ("reprocess", "dead"),
        ("requeue", "active"),
        ("requeue", "scheduled"),
    ],
)
def test_what_comes_back_wakes(client, redis, queue, verb, state):
    """One token for all of one call, unless one lies there; a refusal wakes nobody."""
    wake = queue_keys(queue).wake
    one, two, other = (job_in(client, queue, state) for _ in range(3))
    redis.delete(wake)
    assert VERBS[verb](client, queue, [one, two]) == [1, 1]
    assert redis.lrange(wake, 0, -1) == [b"1"]
    assert ask(client, queue, verb, other) == 1
    assert redis.llen(wake) == 1
    redis.delete(wake)
    assert kinds(VERBS[verb](client, queue, [one])) == [NotInState]
    assert redis.llen(wake) == 0


@pytest.mark.parametrize("state", ["pending", "active", "scheduled", "dead", "done"])
def test_remove_leaves_nothing(client, redis, queue, state):
    """Row and log lines go with the entry, from each set, and not those of another job."""
    job_id = enqueue_one(client, queue, priority=9)
    other = enqueue_one(client, queue)
    for name in (job_id, other):
        redis.rpush(queue_keys(queue).logs(name), "line")
    if state != "pending":
        claim_one(client, queue)
    if state == "scheduled":
        wire.snooze(client, queue, job_id, 1)
    elif state == "dead":
        bury(client, queue, job_id, 1)
    elif state == "done":
        complete(client, queue, job_id, 1, keep_ms=60_000)
    assert ask(client, queue, "remove by force", job_id) == 1
    left = {queue_keys(queue).job(other).encode(), queue_keys(queue).logs(other).encode()}
    assert set(redis.keys(queue_keys(queue).jobs + "*")) == left
    books_balance(client, queue)


PAYLOADS = [
    '{"n":9007199254740993,"f":1.0,"e":[],"o":{},"s":"\u2028\x00é"}',
    "",
    "no JSON at all \x7f",
]


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("state", ["pending", "scheduled", "dead"])
def test_update_keeps_each_byte(client, redis, queue, state, payload):
    """The worker is given what the operator wrote."""
    job_id = job_in(client, queue, state)
    scripts.update(client, queue, job_id, payload)
    assert redis.hget(queue_keys(queue).job(job_id), "payload") == payload.encode()
    if state != "pending":
        ask(client, queue, "reprocess" if state == "dead" else "requeue", job_id)
    assert claim_one(client, queue).payload == payload.encode()


@pytest.mark.parametrize("was", ["work", b"work"])
def test_update_of_what_was_read(client, queue, was):
    """The payload that the author of the change has seen is there: it is replaced."""
    job_id = job_in(client, queue, "pending")
    scripts.update(client, queue, job_id, "new", was=was)
    assert row(client, queue, job_id)["payload"] == "new"


def test_an_update_does_not_undo_another_one(client, queue):
    """Two people have read the same payload: the second one is refused, nothing changed."""
    job_id = job_in(client, queue, "dead")
    scripts.update(client, queue, job_id, "anna's", was="work")
    before = everything(client)
    for was in ("work", "", "anna's "):
        with pytest.raises(NotInState, match="changed since it was read"):
            scripts.update(client, queue, job_id, "bert's", was=was)
    assert everything(client) == before
