"""The trail: what each transition writes there, what each refusal, and that it stops neither."""

from collections.abc import Callable, Iterator

import pytest
from private_server import private_server

from django_emq import connections, inspector, scripts
from django_emq.connections import Client
from django_emq.exceptions import JobGone, ServerRefused, StaleToken
from django_emq.keys import queue_keys
from tests.conformance import wire
from tests.conformance.wire import (
    books_balance,
    bury,
    claim_one,
    claim_some,
    complete,
    enqueue_one,
    enqueue_some,
    extend,
    lapse,
    release,
    retry,
    snooze,
)
from tests.operator_cases import HOLDERS, VERBS

Act = Callable[[Client, str, str], object]
SECRET = "4711-secret"


def made(event: str, token: str = "1", note: str = "") -> dict[str, str]:
    """What a transition that a worker or a sweep made writes."""
    return {"event": event, "token": token, "note": note, "yours": ""}


def asked(event: str, token: str = "1") -> dict[str, str]:
    """What an operator's act writes."""
    return {"event": event, "token": token, "by": "anna"}


def requeue_scheduled(client: Client, queue: str, job_id: str) -> None:
    snooze(client, queue, job_id, 1)
    scripts.requeue(client, queue, [job_id], by="anna")


def reprocess_dead(client: Client, queue: str, job_id: str) -> None:
    bury(client, queue, job_id, 1)
    scripts.reprocess(client, queue, [job_id], by="anna")


def update_released(client: Client, queue: str, job_id: str) -> None:
    release(client, queue, job_id, 1)
    scripts.update(client, queue, job_id, SECRET, by="anna")


def stall(client: Client, queue: str, job_id: str) -> None:
    extend(client, queue, job_id, 1, lease_ms=0)
    scripts.reap(client, queue, max_stalls=1)


def damage(client: Client, queue: str, job_id: str) -> None:
    release(client, queue, job_id, 1)
    client.raw.hdel(queue_keys(queue).job(job_id), "payload")
    claim_one(client, queue)


# Each begins with a job that is held with token 1, and tells the last entries, but for their id.
NOTABLE: dict[str, tuple[Act, list[dict[str, str]]]] = {
    "retry": (lambda c, q, i: retry(c, q, i, 1), [made("failed", note="boom")]),
    "death": (lambda c, q, i: retry(c, q, i, 1, maximum=1), [made("died", note="boom")]),
    "bury": (lambda c, q, i: bury(c, q, i, 1), [made("buried", note="no use")]),
    "release": (lambda c, q, i: release(c, q, i, 1), [made("released")]),
    "reap": (
        lambda c, q, i: lapse(c, q, i, 1),
        [made("reaped", note="lease of w lapsed, stall 1")],
    ),
    "stall": (stall, [made("died", note="lease of w lapsed, stall 1")]),
    "damage": (
        damage,
        [made("released"), made("died", "", "damaged row: payload is missing")],
    ),
    "requeue": (lambda c, q, i: scripts.requeue(c, q, [i], by="anna"), [asked("requeued", "2")]),
    "requeue scheduled": (requeue_scheduled, [asked("requeued")]),
    "cancel": (lambda c, q, i: scripts.cancel(c, q, [i], by="anna"), [asked("cancelled", "2")]),
    "reprocess": (reprocess_dead, [made("buried", note="no use"), asked("reprocessed")]),
    "remove": (
        lambda c, q, i: scripts.remove(c, q, [i], by="anna", force=True),
        [asked("removed")],
    ),
    "update": (update_released, [made("released"), asked("updated")]),
}
# What happens to every job, and is only noted with TRAIL = "all".
USUAL: dict[str, tuple[Act, list[dict[str, str]]]] = {
    "claim": (lambda c, q, i: None, []),
    "complete": (lambda c, q, i: complete(c, q, i, 1), [made("completed")]),
    "kept": (lambda c, q, i: complete(c, q, i, 1, keep_ms=9000), [made("completed")]),
}
# What no trail tells: a job that is put off, one that is dropped without a trace, and small talk.
SILENT: dict[str, Act] = {
    "snooze": lambda c, q, i: snooze(c, q, i, 1),
    "discard": lambda c, q, i: wire.discard(c, q, i, 1),
    "extend": lambda c, q, i: extend(c, q, i, 1),
    "progress": lambda c, q, i: wire.progress(c, q, i, 1, "50"),
    "log": lambda c, q, i: wire.log(c, q, i, 1, "line"),
}
ACTS: dict[str, Act] = {
    **{name: act for name, (act, _) in (NOTABLE | USUAL).items()},
    **SILENT,
    "drain": lambda c, q, i: (release(c, q, i, 1), scripts.drain(c, q, "pending")),
    "pause": lambda c, q, i: scripts.pause(c, q),
    "resume": lambda c, q, i: (scripts.pause(c, q), scripts.resume(c, q)),
}


@pytest.fixture
def keep(settings) -> Callable[[str], Client]:
    """Set TRAIL; the client that keeps to it."""

    def set_to(trail: str) -> Client:
        settings.EMQ = {**settings.EMQ, "TRAIL": trail}
        connections.reset()
        return connections.client()

    return set_to


def entries(client: Client, queue: str) -> list[dict[str, str]]:
    """The whole trail, oldest first."""
    found = client.raw.xrange(queue_keys(queue, client.prefix).trail)
    return [{k.decode(): v.decode() for k, v in fields.items()} for _, fields in found]


def held(client: Client, queue: str) -> str:
    """A job that worker w holds with token 1."""
    job_id = enqueue_one(client, queue, SECRET)
    claim_one(client, queue)
    return job_id


# -- what is written --------------------------------------------------------------------------


@pytest.mark.parametrize("name", NOTABLE)
def test_what_is_notable(client, queue, name):
    """By default: what is out of the ordinary, with the row's token and who did it."""
    act, told = NOTABLE[name]
    job_id = held(client, queue)
    act(client, queue, job_id)
    assert entries(client, queue) == [{**entry, "id": job_id} for entry in told]


@pytest.mark.parametrize("name", USUAL | SILENT)
def test_what_is_usual(client, queue, name):
    """By default nothing is noted of jobs that do what they should."""
    ACTS[name](client, queue, held(client, queue))
    assert client.raw.exists(queue_keys(queue).trail) == 0


@pytest.mark.parametrize("name", NOTABLE | USUAL | SILENT)
def test_all(keep, queue, name):
    """With all, each claim and each completion is there too, the claim with its worker."""
    act, told = (NOTABLE | USUAL).get(name, (SILENT.get(name), []))
    client = keep("all")
    job_id = held(client, queue)
    act(client, queue, job_id)
    told = [made("claimed", note="w"), *told]
    assert entries(client, queue) == [{**entry, "id": job_id} for entry in told]


@pytest.mark.parametrize("name", ACTS)
def test_off(keep, queue, name):
    """With off nothing is, also no refusal."""
    client = keep("off")
    job_id = held(client, queue)
    ACTS[name](client, queue, job_id)
    with pytest.raises(StaleToken):
        complete(client, queue, held(client, queue), 99)
    assert client.raw.exists(queue_keys(queue).trail) == 0


@pytest.mark.parametrize("name", ["pending", "schedule", "dead", "done"])
def test_a_drain_is_one_entry(client, queue, name):
    """How many, of which set, and by whom; none where there was nothing."""
    scripts.drain(client, queue, name, by="anna")
    assert entries(client, queue) == []
    client.raw.zadd(getattr(queue_keys(queue), name), {"a": 1, "b": 2})
    scripts.drain(client, queue, name, by="anna")
    assert entries(client, queue) == [{"event": "drained", "count": "2", "set": name, "by": "anna"}]


def test_pause_and_resume(client, queue):
    """Each is noted when it changed something, with who and why."""
    scripts.resume(client, queue, by="ben")
    scripts.pause(client, queue, by="anna", why="mail server down")
    scripts.pause(client, queue, by="ben", why="other")
    scripts.resume(client, queue, by="ben")
    scripts.resume(client, queue, by="anna")
    assert entries(client, queue) == [
        {"event": "paused", "by": "anna", "note": "mail server down"},
        {"event": "resumed", "by": "ben"},
    ]


@pytest.mark.parametrize("verb", VERBS)
def test_one_entry_for_each_job_that_moved(client, queue, verb):
    """What was refused to an operator is not noted, nor what was named twice."""
    ids = enqueue_some(client, queue, 3)
    claim_some(client, queue, 2)
    if verb == "reprocess":
        scripts.bury(client, queue, [(i, 1, "no use", "") for i in ids[:2]])
    elif verb == "remove":
        scripts.release(client, queue, [(i, 1) for i in ids[:2]])
    client.raw.delete(queue_keys(queue).trail)
    verdicts = VERBS[verb](client, queue, [ids[0], "gone", ids[1], ids[0]], by="anna")
    assert [isinstance(v, int) for v in verdicts] == [True, False, True, False]
    assert [entry["id"] for entry in entries(client, queue)] == ids[:2]


# -- refusals ---------------------------------------------------------------------------------

SETTLEMENTS = ["complete", "retry", "snooze", "release", "bury", "discard"]


@pytest.mark.parametrize("name", SETTLEMENTS)
def test_a_refusal_names_both_tokens(client, queue, name):
    """The row's and the caller's, with the verb and the reason."""
    job_id = held(client, queue)
    lapse(client, queue, job_id, 1)
    claim_one(client, queue)
    with pytest.raises(StaleToken):
        HOLDERS[name](client, queue, job_id, 1)
    refusal = {"event": "refused", "id": job_id, "token": "2", "yours": "1"}
    assert entries(client, queue)[1:] == [{**refusal, "note": f"{name} token mismatch"}]


# The same verdict again is no news, and late work may be completed: those are not refused.
SETTLED = [
    (name, act)
    for name in SETTLEMENTS
    for act in ("requeue", "cancel", "reprocess", "release", "bury", "reap")
    if name != act and (name, act) != ("complete", "reap")
]


@pytest.mark.parametrize(("name", "act"), SETTLED)
def test_a_refusal_says_why(client, queue, name, act):
    """Also where the caller's token is the row's: who has settled it, or that nobody holds it."""
    job_id = held(client, queue)
    NOTABLE[act][0](client, queue, job_id)
    token = entries(client, queue)[-1]["token"]
    with pytest.raises(StaleToken):
        HOLDERS[name](client, queue, job_id, int(token))
    note = f"{name} not held"
    if act != "reap":
        note += f", settled before by {act}"
    refusal = {"event": "refused", "id": job_id, "token": token, "yours": token, "note": note}
    assert entries(client, queue)[-1] == refusal


@pytest.mark.parametrize("name", ["extend", "progress", "log"])
def test_no_refusal_of_small_talk(client, queue, name):
    """A supervisor extends what was settled meanwhile, again and again: that fills no trail."""
    job_id = held(client, queue)
    with pytest.raises(StaleToken):
        HOLDERS[name](client, queue, job_id, 7)
    assert entries(client, queue) == []


def test_each_refusal_of_a_call_is_there(client, queue):
    """In the order of the call, beside what was carried out; a job that is gone is no refusal."""
    one, two, good = enqueue_some(client, queue, 3)
    claim_some(client, queue, 3)
    pairs = [(one, 7), (good, 1), (two, 8), ("gone", 1)]
    verdicts = scripts.release(client, queue, pairs)
    assert [type(v) for v in verdicts] == [StaleToken, int, StaleToken, JobGone]
    told = [(e["event"], e["id"], e["token"], e["yours"]) for e in entries(client, queue)]
    assert told == [
        ("released", good, "1", ""),
        ("refused", one, "1", "7"),
        ("refused", two, "1", "8"),
    ]


# -- its bounds -------------------------------------------------------------------------------


def test_it_is_capped(client, queue):
    """About 10,000 entries; the server trims whole nodes of its stream, so a few more may stay."""
    ids = enqueue_some(client, queue, 1000)
    for _ in range(6):  # each round: released and refused
        jobs = claim_some(client, queue, 1000)
        assert len(jobs) == 1000
        scripts.release(client, queue, [(job.id, job.token) for job in jobs])
        scripts.complete(client, queue, [(job.id, 0, "") for job in jobs])
    assert client.raw.xlen(queue_keys(queue).trail) in range(10_000, 10_500)
    assert entries(client, queue)[-1]["id"] in ids


@pytest.mark.parametrize(
    ("text", "length"), [("x" * 200, 200), ("x" * 1000, 200), ("é" * 500, 99), ("€" * 500, 66)]
)
def test_a_note_is_short(client, queue, text, length):
    """At most 200 bytes of an error, and no half of a character at the end."""
    retry(client, queue, held(client, queue), 1, error=text)
    (entry,) = inspector.trail(client, queue)
    assert entry.note == text[:length]


def test_nothing_of_a_payload(keep, queue):
    """Whatever happens to a job, what it carries is not told."""
    client = keep("all")
    for number, act in enumerate(ACTS.values()):
        name = f"{queue}.{number}"
        act(client, name, held(client, name))
        other = enqueue_one(client, name, SECRET)
        with pytest.raises(StaleToken):
            complete(client, name, other, 99)
        told = entries(client, name)
        assert told[-1]["event"] == "refused"
        assert SECRET not in str(told)


# -- it stops nothing -------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*ACTS, "refusal"])
def test_a_trail_that_is_no_stream(keep, queue, name):
    """Then nothing is noted, and all else is as ever."""
    client, other = keep("all"), queue + ".sound"
    states = []
    for where in (queue, other):
        if where == queue:
            client.raw.set(queue_keys(queue).trail, "x")
        job_id = held(client, where)
        if name == "refusal":
            with pytest.raises(StaleToken):
                complete(client, where, job_id, 99)
        else:
            ACTS[name](client, where, job_id)
        state = wire.snapshot(client, where)
        rows = [
            {k: v for k, v in fields.items() if not k.endswith(b"_at")}
            for fields in state["rows"].values()
        ]
        states.append([rows, *(len(state[part]) for part in wire.SETS)])
        books_balance(client, where)
    assert client.raw.get(queue_keys(queue).trail) == b"x"
    assert states[0] == states[1]


@pytest.fixture(scope="module")
def small() -> Iterator[Client]:
    """A client, with TRAIL = "all", of a server that can be filled up."""
    with private_server(own=True) as server, server.client() as raw:
        yield Client(raw, "emq", "all")


@pytest.fixture
def fill_up(small) -> Iterator[Callable[[], None]]:
    """Have the server refuse whatever needs memory."""
    small.raw.flushall()

    def fill() -> None:
        small.raw.config_set("maxmemory", 1)
        with pytest.raises(ServerRefused):
            enqueue_one(small, "full")

    yield fill
    small.raw.config_set("maxmemory", 0)


# All but what is only said: update, progress and log are refused there, which is right. A claim
# comes first in each, when there is still room; `reap` and `stall` end the lease by an extend.
PASSING = [name for name in ACTS if name not in ("claim", "update", "progress", "log", "damage")]


@pytest.mark.parametrize("name", PASSING)
def test_a_full_server(small, fill_up, queue, name):
    """A verb that frees memory, or needs none, passes on a full server, with a trail or without."""
    job_id = held(small, queue)
    fill_up()
    ACTS[name](small, queue, job_id)
    active = wire.members(small, queue, "active")
    assert list(active) == ([job_id] if name in ("extend", "pause", "resume") else [])
    books_balance(small, queue)


@pytest.mark.parametrize("verb", [*SETTLEMENTS, "extend"])
def test_a_refusal_on_a_full_server(small, fill_up, queue, verb):
    """It is still the refusal, and no error of the server; nothing is changed."""
    job_id = held(small, queue)
    before = wire.snapshot(small, queue)
    fill_up()
    with pytest.raises(StaleToken):
        HOLDERS[verb](small, queue, job_id, 9)
    assert wire.snapshot(small, queue) == before
