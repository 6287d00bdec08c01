"""Chains on the wire: what a settlement admits, once, byte for byte, and what is handed onward."""

import json

import pytest

import django_emq
from django_emq import chains, inspector, onward, scripts
from django_emq.keys import queue_keys
from django_emq.reaper import Reaper
from tests.conformance import wire
from tests.conformance.wire import claim_one, members, row


def ids(jobs):
    return [job.id for job in jobs]


PAYLOADS = [
    '{"task":"t","args":[9007199254740993,1.0,[],{}]}',
    '{"task":"t","args":["\\u00e4\\n","quote \\" and \\\\"]}',
    "not JSON at all, 7:with numbers 12:",
    "ü" * 300,
]


def hang(client, queue, *payloads, field="on_success", **options):
    """A held job on which these payloads hang; its id and theirs."""
    hung = [wire.new(payload, **options) for payload in payloads]
    text = chains.packed(
        chains.packed(("", one.id, one.payload, one.priority, one.due, *one.fields)) for one in hung
    )
    job_id = wire.enqueue_one(client, queue, **{field: text, "ties": 1})
    claim_one(client, queue)
    return job_id, ids(hung)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_payloads_of_chains_are_opaque(client, queue, payload):
    """A payload that waited inside of a row comes out byte for byte, before what is left to it."""
    job_id, (next_id,) = hang(client, queue, payload)
    scripts.complete(client, queue, [(job_id, 1, '{"n":[9007199254740993,1.0,[]]}')])
    first, _, left = claim_one(client, queue).payload.partition(b"\n")
    assert first.decode() == payload
    assert left.decode() == f'{{"id":"{job_id}","value":{{"n":[9007199254740993,1.0,[]]}}}}'
    assert row(client, queue, next_id)["after"] == job_id


def test_a_repeated_settlement_admits_once(client, queue):
    """The reply was lost, or two were sent: the same verdict, and one next job."""
    for keep_ms, verdict in ((60_000, 1), (0, 0)):
        job_id, (next_id,) = hang(client, queue, "{}")
        items = [(job_id, 1, "1"), (job_id, 1, "1")]
        assert scripts.complete(client, queue, items, keep_ms=keep_ms) == [1, 1]
        claimed = claim_one(client, queue)
        assert claimed.id.decode() == next_id
        scripts.complete(client, queue, [(next_id, 1, "")])
        assert scripts.complete(client, queue, items, keep_ms=keep_ms) == [verdict, verdict]
        assert claim_one(client, queue) is None
    wire.books_balance(client, queue)


ERROR = 'a "bad"\n\ttext ä'
DEATHS = {
    "retry": lambda c, q, i, t: wire.retry(c, q, i, t, maximum=1, error=ERROR),
    "bury": lambda c, q, i, t: wire.bury(c, q, i, t, ERROR),
    "reap": lambda c, q, i, t: (
        wire.extend(c, q, i, t, lease_ms=0) and scripts.reap(c, q, max_stalls=1)
    ),
}


@pytest.mark.parametrize("verb", DEATHS)
def test_a_death_admits_once(client, queue, verb):
    """Not again when the answer was lost, nor when the job has another life and dies again."""
    job_id, (next_id,) = hang(client, queue, "{}", field="on_failure")
    DEATHS[verb](client, queue, job_id, 1)
    if verb != "reap":
        DEATHS[verb](client, queue, job_id, 1)
    claimed = claim_one(client, queue)
    assert claimed.id.decode() == next_id
    left = json.loads(claimed.payload.partition(b"\n")[2])
    assert left["id"] == job_id
    assert left["error"] == ERROR or (verb == "reap" and left["error"].startswith("stalled: "))
    assert (row(client, queue, job_id)["state"], row(client, queue, job_id)["next"]) == (
        "dead",
        next_id,
    )
    scripts.complete(client, queue, [(next_id, 1, "")])
    scripts.reprocess(client, queue, [job_id])
    assert claim_one(client, queue).id.decode() == job_id
    DEATHS[verb](client, queue, job_id, 2)
    assert row(client, queue, job_id)["state"] == "dead"
    assert claim_one(client, queue) is None
    assert inspector.totals(client, queue)["enqueued"] == 2
    wire.books_balance(client, queue)


def test_an_id_that_is_there_is_left_alone(client, queue):
    """A server that went back in time may have the next job already: it is not made anew."""
    job_id, (next_id,) = hang(client, queue, "{}")
    client.raw.hset(queue_keys(queue).job(next_id), mapping={"state": "dead", "attempts": 3})
    client.raw.zadd(queue_keys(queue).dead, {next_id: wire.now_ms(client)})
    before = row(client, queue, next_id)
    assert scripts.complete(client, queue, [(job_id, 1, "1")]) == [1]
    assert row(client, queue, next_id) == before
    wire.books_balance(client, queue)


def test_a_late_run_admits_nothing(client, queue):
    """Who lost its lease is refused, and the next job is admitted by who holds the job."""
    job_id, (next_id,) = hang(client, queue, "{}")
    wire.lapse(client, queue, job_id, 1)
    claim_one(client, queue)
    (verdict,) = scripts.complete(client, queue, [(job_id, 1, "1")])
    assert isinstance(verdict, django_emq.StaleToken)
    assert wire.row(client, queue, next_id) == {}
    scripts.complete(client, queue, [(job_id, 2, "2")])
    assert claim_one(client, queue).payload.endswith(b'"value":2}')


def test_a_next_job_wakes_a_worker(client, redis, queue):
    """One token, as for any job that comes; and none too many."""
    wake = queue_keys(queue).wake
    job_id, _ = hang(client, queue, "{}", "{}")
    redis.delete(wake)
    scripts.complete(client, queue, [(job_id, 1, "")])
    assert redis.llen(wake) == 1
    assert len(members(client, queue, "pending")) == 2


DAMAGED = [
    "", "x", "5:abc", "99999999999:a", "3:1:a",
    chains.packed([chains.packed(["", "JOB1", "{}", "x", ""])]),
    "999:" + chains.packed(["", "JOB1", "{}", "0", ""]),
    chains.packed([chains.packed(["", "a b", "{}", "0", ""])]),
    chains.packed([chains.packed(["", "JOB1", "{}", "0", "", *map(str, range(200))])]),
]  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED)
@pytest.mark.parametrize("verb", ["complete", "bury"])
def test_a_damaged_field_costs_no_job(client, queue, text, verb):
    """A stranger wrote there: the job is settled, and nothing comes after it."""
    field = "on_success" if verb == "complete" else "on_failure"
    job_id = wire.enqueue_one(client, queue, **{field: text, "ties": 1})
    claim_one(client, queue)
    assert getattr(wire, verb)(client, queue, job_id, 1) == 1
    assert members(client, queue, "pending") == {}
    wire.books_balance(client, queue)


def test_packed_is_read_back():
    texts = ["", "a", "ü" * 9, '5:"\n', "x" * 100_000]
    assert chains.unpacked(chains.packed(texts).encode()) == texts
    for bad in (b"x", b"5:abc", b"-1:a", b":", b"3"):
        with pytest.raises(ValueError, match="no list|invalid literal"):
            chains.unpacked(bad)


# -- other queues -----------------------------------------------------------------------------


def onward_one(client, queue, due=""):
    """A job in the list of a queue for another one; the id, and that other queue."""
    there = f"{queue}-there"
    new = wire.new("{}", priority=7, due=due, max_attempts=3)
    text = chains.packed((there, new.id, new.payload, new.priority, new.due, *new.fields))
    job_id = wire.enqueue_one(client, queue, on_success=chains.packed([text]), ties=1)
    claim_one(client, queue)
    scripts.complete(client, queue, [(job_id, 1, "5")])
    return new.id, there


@pytest.mark.parametrize(
    "crash", ["before the list is shortened", "before it is forgotten", "never"]
)
def test_a_crash_of_who_admits_onward(client, queue, crash, monkeypatch):
    """The job is run and gone when somebody else admits it again: once is enough."""
    next_id, there = onward_one(client, queue)
    real, forget = scripts.onward, scripts.forget

    class Died(Exception):
        pass

    def onward_dies(*args, batch=100, **kwargs):
        if not batch:
            raise Died
        return real(*args, batch=batch, **kwargs)

    def forget_dies(*args, **kwargs):
        raise Died

    with monkeypatch.context() as patch:
        if crash == "before the list is shortened":
            patch.setattr(scripts, "onward", onward_dies)
        elif crash == "before it is forgotten":
            patch.setattr(scripts, "forget", forget_dies)
        if crash == "never":
            assert onward.admit(client, queue) == 1
        else:
            with pytest.raises(Died):
                onward.admit(client, queue)
    assert scripts.forget is forget
    claimed = claim_one(client, there)
    assert claimed.id.decode() == next_id
    fields = row(client, there, next_id)
    assert (fields["priority"], fields["max_attempts"]) == ("7", "3")
    scripts.complete(client, there, [(next_id, 1, "")])
    onward.admit(client, queue)
    assert claim_one(client, there) is None
    assert inspector.totals(client, there)["enqueued"] == 1
    assert real(client, queue)[1] == {}
    assert client.raw.pttl(queue_keys(there).sent(next_id)) > 0


def test_who_admits_onward_too_late_changes_nothing(client, queue, monkeypatch):
    """It read the list, was suspended, and another one did all: what it sends is void."""
    next_id, there = onward_one(client, queue)
    _, seen = scripts.onward(client, queue)
    assert onward.admit(client, queue) == 1
    claim_one(client, there)
    scripts.complete(client, there, [(next_id, 1, "")])
    client.raw.delete(queue_keys(there).sent(next_id))  # the minute is over
    late = int(wire.now_ms(client)) - 1
    done, lost, error = onward._send(client, queue, seen, late)
    assert (done, lost) == ({}, [])
    assert isinstance(error, django_emq.ServerRefused)
    assert claim_one(client, there) is None


def test_a_sweep_admits_onward(client, queue):
    """What a worker that died has left in the list is there for any sweep; a due time is kept."""
    next_id, there = onward_one(client, queue, due="+60000")
    due = wire.now_ms(client) + 60_000
    Reaper(client, (queue,), interval=1).run_once()
    found = members(client, there, "schedule")
    assert [*found] == [next_id]
    assert due - 10_000 < found[next_id] <= due + 10_000
    assert there in inspector.queues(client)


def test_what_is_damaged_in_the_list_holds_up_nobody(client, queue, caplog):
    next_id, there = onward_one(client, queue)
    client.raw.hset(
        queue_keys(queue).onward,
        mapping={"JOB1": "x", "JOB2": chains.packed(["{", "JOB2", "{}", "0", ""])},
    )
    assert onward.admit(client, queue) == 1
    assert scripts.onward(client, queue)[1] == {}
    assert caplog.text.count("cannot be read") == 2
    assert [*members(client, there, "pending")] == [next_id]


def test_a_refusing_server_keeps_the_job_in_the_list(client, redis, queue):
    """The other queue cannot take it now: nothing is lost, and the next pass tries again."""
    next_id, there = onward_one(client, queue)
    redis.set(queue_keys(there).pending, "no set")
    with pytest.raises(django_emq.EmqError):
        onward.admit(client, queue)
    assert [*scripts.onward(client, queue)[1]] == [next_id.encode()]
    redis.delete(queue_keys(there).pending)
    assert onward.admit(client, queue) == 1
