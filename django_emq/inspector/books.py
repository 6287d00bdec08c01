"""The books of the queues: whether each job is in exactly one place, and each key sound.

Everything is walked in bounded steps, while workers go on. Each step ends with one script that
looks at some jobs at one instant (`upkeep.audit`), so a job in motion is never a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from .. import scripts, upkeep
from ..connections import Client
from ..exceptions import InvalidOption
from ..keys import queue_keys
from ..upkeep import AUDIT_MAX, Fault
from ._read import SETS, ask, text
from .queues import queues

STEP = 1000  # keys or members in one step of a scan
DAY_MS = 86_400_000
MINUTE_MS = 172_800_000  # how long the counters of a minute are kept
TYPES = {
    **dict.fromkeys(SETS, "zset"), "wake": "list", "meta": "hash", "metrics": "hash",
    "trail": "stream", "onward": "hash", "limiter": "string",  # the last one, see `_queue`
}  # fmt: skip
# Keys that there are many of: what they hold, and the time to live that they must have.
FAMILIES = {
    "sent": ("string", DAY_MS), "claims": ("string", DAY_MS), "metrics": ("hash", MINUTE_MS),
    "fence": ("string", DAY_MS), "unique": ("string", 0), "job": ("list", 0),
    "waiter": ("list", DAY_MS),
}  # fmt: skip
# Families whose keys belong to a job, and what is wrong when it is gone.
OWNED = {b"unique": "unique", b"job": "logs"}
FACTS = {
    "no-row": "an id in a set, without a row",
    "no-set": "a row that is in no set: no worker will ever find it",
    "two-sets": "an id that is in more than one set",
    "state": "the row's state does not name the set that the id is in",
    "damaged": "a row that no worker can be given",
    "token": "a held job that was never claimed: nobody can settle it",
    "time": "a score that is no time which this set can have",
    "behind": "a job that waits behind one that has ended",
    "type": "a key that holds something else than the queue keeps there",
    "ttl": "a key that should expire, and never will",
    "logs": "log lines of a job that is gone",
    "unique": "a unique key held by a job that is gone",
    "counter": "a counter that is no number from 0",
    "registry": "keys of a queue that is not in the registry: no sweep of all queues finds it",
}
# Puts one finding right; answers whether there was still anything to do.
Remedy = Callable[[Client], bool]
Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with the books.

    :ivar kind: one of FACTS.
    :ivar id: of the job, or the name of the key.
    :ivar detail: what is there, in short. :ivar remedy: what mending does, in short.
    :ivar sets: the job's score in each set that has it.
    :ivar row: type, state, attempts, bytes of the payload and worker of its row.
    """

    queue: str
    kind: str
    id: str
    detail: str
    remedy: str
    sets: dict[str, float] = field(default_factory=dict)
    row: dict[str, str] = field(default_factory=dict)
    mend: Remedy | None = field(default=None, repr=False, compare=False)


def audit(
    client: Client,
    names: Sequence[str] = (),
    *,
    lease_ms: int = 15_000,
    progress: Progress = lambda what, count: None,
) -> Iterator[Finding]:
    """Walk the books of some queues, or of all: findings as they are met.

    :param lease_ms: what mending gives a job whose lease is no time.
    :param progress: told what is looked at, and how much of it so far.
    """
    registered = queues(client)
    for name in names or registered:
        yield from _queue(client, name, lease_ms, progress)
    yield from _keyspace(client, frozenset(names), set(registered), lease_ms, progress)


def _queue(client: Client, name: str, lease_ms: int, progress: Progress) -> Iterator[Finding]:
    """The keys that each queue has one of: first their types, so that the rest can be read."""
    keys = queue_keys(name, client.prefix)
    fixed = {getattr(keys, suffix): wanted for suffix, wanted in TYPES.items()}
    kinds = ask(client, lambda p: [p.type(key) for key in fixed])
    for (key, wanted), kind in zip(fixed.items(), map(text, kinds), strict=True):
        if kind not in ("none", wanted):
            yield _key(name, "type", key, f"a {kind} in place of a {wanted}", "type", wanted)
    if kinds[-1] == b"string" and upkeep.mend(client, keys.limiter, "ttl", 1, look=True):
        yield _key(name, "ttl", keys.limiter, "", "ttl", 1)
    for kind in SETS:
        yield from _set(client, name, kind, lease_ms, progress)
    yield from _counters(client, name)


def _key(
    queue: str,
    kind: str,
    key: str | bytes,
    detail: str,
    rule: str,
    what: Any,
    value: Any = "",
    row: Any = "",
) -> Finding:
    """A finding about a key, which a script puts right."""
    remedies = {"ttl": "let it expire", "field": "delete the counter"}
    return Finding(
        queue=queue,
        kind=kind,
        id=text(key) if isinstance(key, bytes) else key,
        detail=detail,
        remedy=remedies.get(rule, "delete the key"),
        mend=lambda client: upkeep.mend(client, key, rule, what, value, row=row),
    )


# -- the sets ---------------------------------------------------------------------------------


def _set(
    client: Client, queue: str, name: str, lease_ms: int, progress: Progress
) -> Iterator[Finding]:
    """The ids of one set, whatever else has them."""
    key = getattr(queue_keys(queue, client.prefix), name)
    seen = 0
    cursor = -1
    while cursor:
        step = _step(client, key, max(cursor, 0))
        if isinstance(step, Exception):  # another type, of which `_queue` has told
            return
        cursor, members = step
        for ids in _parts(job_id for job_id, _ in members):
            faults = upkeep.audit(client, queue, ids, found_in=name, lease_ms=lease_ms)
            yield from (_finding(queue, fault, name, lease_ms) for fault in faults)
        seen += len(members)
        progress(f"{queue}: {name}", seen)


def _step(client: Client, key: str, cursor: int) -> Any:
    return ask(client, lambda p: p.zscan(key, cursor, count=STEP), loose=True)[0]


def _parts(ids: Iterable[bytes]) -> Iterator[list[bytes]]:
    there = iter(ids)
    while part := list(islice(there, AUDIT_MAX)):
        yield part


def _finding(queue: str, fault: Fault, found_in: str, lease_ms: int) -> Finding:
    def put_right(client: Client) -> bool:
        left = upkeep.audit(
            client, queue, [fault.id], found_in=found_in, mend=True, lease_ms=lease_ms
        )
        return bool(left)

    places = " and ".join(fault.sets) or "no set"
    row = fault.row
    detail = f"in {places}; row: {row['type']}"
    if row["type"] == "hash":
        detail += f", state {row['state'] or '?'}, attempts {row['attempts'] or '?'}"
        detail += f", payload of {row['bytes']} bytes"
    if fault.reason:
        detail += f"; {fault.reason}"
    remedy = {"drop": "drop the id", "none": "none: the key of that set must be mended first"}
    return Finding(
        queue=queue,
        kind=fault.kind,
        id=text(fault.id),
        detail=detail,
        remedy=remedy.get(fault.remedy, f"to {fault.remedy}"),
        sets=fault.sets,
        row=row,
        mend=None if fault.remedy == "none" else put_right,
    )


def _counters(client: Client, queue: str) -> Iterator[Finding]:
    """The lifetime counters."""
    key = queue_keys(queue, client.prefix).metrics
    (fields,) = ask(client, lambda p: [p.hgetall(key)], loose=True)
    for name, value in fields.items() if isinstance(fields, dict) else ():
        if not value.isdigit() or len(value) > 18:
            detail = f"{text(name)} is {text(value)[:40]!r}"
            yield _key(queue, "counter", key, detail, "field", name, value)


# -- all keys ---------------------------------------------------------------------------------


def _keyspace(
    client: Client,
    names: frozenset[str],
    known: set[str],
    lease_ms: int,
    progress: Progress,
) -> Iterator[Finding]:
    """Every key of the queues: rows that are in no set, keys that nobody needs any more."""
    begin = f"{client.prefix}:{{".encode()
    only = f"{next(iter(names))}}}:" if len(names) == 1 else ""
    cursor, seen = -1, 0
    while cursor:
        cursor, keys = client.scan(max(cursor, 0), STEP, f"{client.prefix}:{{{only}*")
        seen += len(keys)
        rows: dict[str, list[bytes]] = {}
        others: list[tuple[str, bytes, bytes]] = []
        for key in keys:
            name, sep, suffix = key[len(begin) :].partition(b"}:")
            queue = text(name)
            if not sep or (names and queue not in names) or not _is_queue(queue, client.prefix):
                continue
            if queue not in known:
                known.add(queue)
                yield _unregistered(queue)
                yield from _queue(client, queue, lease_ms, progress)
            if suffix.startswith(b"job:") and not suffix.endswith(b":logs"):
                rows.setdefault(queue, []).append(suffix[4:])
            elif b":" in suffix:
                others.append((queue, key, suffix))
        for queue, ids in rows.items():
            for part in _parts(ids):
                faults = upkeep.audit(client, queue, part, lease_ms=lease_ms)
                yield from (_finding(queue, fault, "", lease_ms) for fault in faults)
        yield from _others(client, others)
        progress("all keys", seen)


def _is_queue(name: str, prefix: str) -> bool:
    try:
        queue_keys(name, prefix)
    except InvalidOption:
        return False
    return True


def _unregistered(queue: str) -> Finding:
    def register(client: Client) -> bool:
        return bool(scripts.register(client, [queue]))

    return Finding(queue, "registry", queue, "", "enter it", mend=register)


def _others(client: Client, found: list[tuple[str, bytes, bytes]]) -> Iterator[Finding]:
    """Keys that there are many of, and that are no rows."""

    def build(pipeline: Any) -> None:
        for _, key, _ in found:
            pipeline.type(key)
            pipeline.pttl(key)
            pipeline.getrange(key, 0, 100)

    replies = ask(client, build, loose=True)
    for at, (queue, key, suffix) in enumerate(found):
        kind, ttl, value = replies[3 * at : 3 * at + 3]
        family, _, rest = suffix.partition(b":")
        wanted, lives_ms = FAMILIES.get(text(family), ("", 0))
        if wanted and text(kind) not in ("none", wanted):
            detail = f"a {text(kind)} in place of a {wanted}"
            yield _key(queue, "type", key, detail, "type", wanted)
        elif ttl == -1 and lives_ms:
            yield _key(queue, "ttl", key, "", "ttl", lives_ms)
        elif family in OWNED and ttl < 0:  # what ends by itself may outlive its job
            jobs = queue_keys(queue, client.prefix).jobs.encode()
            holder = value if family == b"unique" else b""
            job_id = holder or rest.removesuffix(b":logs")
            row = jobs + job_id
            if upkeep.mend(client, key, "orphan", holder, row=row, look=True):
                detail = f"of job {text(job_id)}"
                yield _key(queue, OWNED[family], key, detail, "orphan", holder, row=row)
