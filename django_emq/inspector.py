"""The read side for people: counts, rows, workers. The only module that reads Redis for them.

Nothing here changes the server, reads a whole set, or is called by a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from . import scripts
from .connections import Client
from .exceptions import JobGone, UnknownSet
from .ids import is_job_id, minted_at
from .keys import queue_keys, reserve_keys

SETS = ("pending", "active", "schedule", "dead", "done")


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue at one instant."""

    queue: str
    counts: dict[str, int]  # jobs in each set of SETS
    oldest_s: float | None  # seconds the job at the head has waited since it was minted
    paused: bool
    paused_by: str
    totals: dict[str, int]  # lifetime counters
    per_minute: dict[str, float]  # the same over the last two minutes, jobs a minute


@dataclass(frozen=True, slots=True)
class Worker:
    """What a worker last said of itself."""

    id: str
    beat_at: datetime
    facts: dict[str, str] = field(default_factory=dict)


def queues(client: Client) -> list[str]:
    """Names of all queues ever used on this server."""
    key = reserve_keys(client.prefix).queues
    return sorted(name.decode() for name in client.read(lambda raw: raw.smembers(key)))


def counts(client: Client, queue: str, sets: Sequence[str] = SETS) -> dict[str, int]:
    """How many jobs each set holds, in one round trip. Raises UnknownSet."""
    keys = queue_keys(queue, client.prefix)
    for name in sets:
        if name not in SETS:
            raise UnknownSet(f"There is no set {name!r}. Use one of: {', '.join(SETS)}.")

    def ask(raw: Any) -> list[int]:
        pipeline = raw.pipeline(transaction=False)
        for name in sets:
            pipeline.zcard(getattr(keys, name))
        sizes: list[int] = pipeline.execute()
        return sizes

    return dict(zip(sets, client.read(ask), strict=True))


def state(client: Client, queue: str, job_id: str) -> str:
    """'pending', 'active', 'scheduled', 'dead', 'done', 'unknown' (a row in no set) or 'absent'."""
    return scripts.state(client, queue, job_id)


def row(client: Client, queue: str, job_id: str) -> dict[str, str]:
    """All fields of a job's row. Raises JobGone when there is none."""
    key = queue_keys(queue, client.prefix).job(job_id)
    fields = client.read(lambda raw: raw.hgetall(key))
    if not fields:
        raise JobGone(f"Queue {queue!r} has no job {job_id!r}.")
    return _texts(fields)


def newest(client: Client, queue: str, count: int = 50) -> list[str]:
    """Ids of waiting jobs of priority 0, the newest first."""
    pending = queue_keys(queue, client.prefix).pending
    ids = client.read(
        lambda raw: raw.zrange(pending, "+", "-", bylex=True, desc=True, offset=0, num=count)
    )
    return [job_id.decode() for job_id in ids]


def totals(client: Client, queue: str) -> dict[str, int]:
    """Lifetime counters: enqueued, claimed, completed, failed, retried, dead, reaped, …"""
    key = queue_keys(queue, client.prefix).metrics
    return _numbers(client.read(lambda raw: raw.hgetall(key)))


def unique(client: Client, queue: str, key: str) -> str | None:
    """Id of the job that holds a unique key, if any."""
    name = queue_keys(queue, client.prefix).unique(key)
    job_id: bytes | None = client.read(lambda raw: raw.get(name))
    return job_id.decode() if job_id else None


def stats(client: Client, queue: str) -> QueueStats:
    """Everything about one queue, in two round trips."""
    keys = queue_keys(queue, client.prefix)
    seconds, micros = client.read(lambda raw: raw.time())
    now, minute = seconds + micros / 1e6, int(seconds) // 60

    def ask(raw: Any) -> list[Any]:
        pipeline = raw.pipeline(transaction=False)
        for name in SETS:
            pipeline.zcard(getattr(keys, name))
        pipeline.zrange(keys.pending, 0, 0)
        pipeline.hmget(keys.meta, "paused", "paused_by")
        for key in (keys.metrics, keys.minute(minute), keys.minute(minute - 1)):
            pipeline.hgetall(key)
        replies: list[Any] = pipeline.execute()
        return replies

    *sizes, head, meta, lifetime, this, last = client.read(ask)
    recent: dict[str, float] = {}
    for counters in (_numbers(this), _numbers(last)):
        for name, value in counters.items():
            recent[name] = recent.get(name, 0) + value
    span = 1 + (now % 60) / 60
    return QueueStats(
        queue=queue,
        counts=dict(zip(SETS, sizes, strict=True)),
        oldest_s=_age(head[0].decode(), now) if head else None,
        paused=meta[0] is not None,
        paused_by=(meta[1] or b"").decode(),
        totals=_numbers(lifetime),
        per_minute={name: value / span for name, value in recent.items()},
    )


def workers(client: Client) -> list[Worker]:
    """The workers whose word still holds, the latest beat first."""
    reserve = reserve_keys(client.prefix)
    beats = client.read(lambda raw: raw.zrange(reserve.workers, 0, 999, desc=True, withscores=True))

    def ask(raw: Any) -> list[dict[bytes, bytes]]:
        pipeline = raw.pipeline(transaction=False)
        for worker, _ in beats:
            pipeline.hgetall(reserve.worker(worker.decode()))
        facts: list[dict[bytes, bytes]] = pipeline.execute()
        return facts

    found = []
    for (worker, beat), fields in zip(beats, client.read(ask), strict=True):
        if fields:
            at = datetime.fromtimestamp(float(beat) / 1000, UTC)
            found.append(Worker(worker.decode(), at, _texts(fields)))
    return found


def _age(job_id: str, now: float) -> float:
    return max(now - minted_at(job_id).timestamp(), 0.0) if is_job_id(job_id) else 0.0


def _texts(fields: dict[Any, Any]) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in fields.items()}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _numbers(fields: dict[Any, Any]) -> dict[str, int]:
    return {_text(name): int(value) for name, value in fields.items()}
