"""Queues as a whole: how many jobs, since when, how fast, and whether paused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

from ..conf import PARTITIONS_MAX, settings
from ..connections import Client
from ..exceptions import UnknownSet
from ..keys import QUEUE_NAME, digest, partition, queue_keys, reserve_keys
from ._read import SETS, age, ask, instant, number, numbers, text, texts, to_ms

CHART_MINUTES = 60
_CHARTED = ("enqueued", "completed", "discarded", "dead", "failed")


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
    paused_why: str = ""
    paused_at: datetime | None = None
    partitions: tuple[str, ...] = ()  # that these figures are the sums of

    @property
    def in_per_minute(self) -> float:
        """Jobs enqueued a minute."""
        return self.per_minute.get("enqueued", 0)

    @property
    def out_per_minute(self) -> float:
        """Jobs that ended a minute, well or not."""
        return sum(self.per_minute.get(name, 0) for name in ("completed", "discarded", "dead"))


@dataclass(frozen=True, slots=True)
class Minute:
    """What happened in one minute of the server's clock."""

    at: datetime
    enqueued: int
    finished: int  # completed, discarded or dead
    failed: int


def queues(client: Client) -> list[str]:
    """Names of all queues ever used on this server."""
    key = reserve_keys(client.prefix).queues
    names = map(text, client.read(lambda raw: raw.smembers(key)))
    return sorted(n for n in names if QUEUE_NAME.match(n) and n != client.prefix)


def is_known(client: Client, queue: str) -> bool:
    """Whether a queue was ever used on this server."""
    key = reserve_keys(client.prefix).queues
    return bool(client.read(lambda raw: raw.sismember(key, queue)))


def parts(client: Client, queue: str, *, busy: bool = False) -> list[str]:
    """The queues on the server that hold the jobs of one: itself, or all its partitions.

    Those of the setting, and what else is in the registry: partitions beyond their number, and the
    queue itself, from before the setting was changed. One round trip, none without partitions.

    :param busy: of the latter only those that have jobs to be run.
    """
    own = settings().parts(queue)
    if own == (queue,):
        return [queue]
    others = [queue, *(partition(queue, n) for n in range(len(own), PARTITIONS_MAX))]
    registry = reserve_keys(client.prefix).queues
    known = ask(client, lambda p: [p.sismember(registry, name) for name in others])
    left = [name for name, there in zip(others, known, strict=True) if there]
    if busy and left:
        keys = [queue_keys(name, client.prefix) for name in left]
        sizes = ask(client, lambda p: [p.zcard(getattr(k, s)) for k in keys for s in SETS[:3]])
        left = [name for at, name in enumerate(left) if any(sizes[3 * at : 3 * at + 3])]
    return [*own, *left]


def counts(client: Client, queue: str, sets: Sequence[str] = SETS) -> dict[str, int]:
    """How many jobs each set holds, in one round trip. Raises UnknownSet."""
    for name in sets:
        check_set(name)
    keys = [queue_keys(part, client.prefix) for part in parts(client, queue)]
    sizes = ask(client, lambda p: [p.zcard(getattr(k, name)) for name in sets for k in keys])
    each = len(keys)
    return {name: sum(sizes[at * each : (at + 1) * each]) for at, name in enumerate(sets)}


def check_set(name: str) -> str:
    """Return the name of a set, or raise UnknownSet."""
    if name not in SETS:
        raise UnknownSet(f"There is no set {name!r}. Use one of: {', '.join(SETS)}.")
    return name


def totals(client: Client, queue: str) -> dict[str, int]:
    """Lifetime counters: enqueued, claimed, completed, failed, retried, dead, reaped, …"""
    return _summed(many_totals(client, parts(client, queue)))


def many_totals(client: Client, names: Sequence[str]) -> list[dict[str, int]]:
    """The lifetime counters of several queues, in one round trip."""
    keys = [queue_keys(name, client.prefix).metrics for name in names]
    return [*map(numbers, ask(client, lambda p: [p.hgetall(key) for key in keys]))]


def unique(client: Client, queue: str, key: str) -> str | None:
    """Id of the job that holds a unique key, if any; for a key as it is, before it is digested."""
    return holder(client, queue, digest(key))


def holder(client: Client, queue: str, of: str) -> str | None:
    """Id of the job that holds the unique key with this digest, if any."""
    name = queue_keys(queue, client.prefix).uniques + of
    job_id: bytes | None = client.read(lambda raw: raw.get(name))
    return job_id.decode(errors="replace") if job_id else None


def stats(client: Client, queue: str) -> QueueStats:
    """Everything about one queue, summed over its partitions if it has any; two round trips."""
    found = overview(client, parts(client, queue))
    return found[0] if found[0].queue == queue else together(queue, found)


def together(queue: str, found: Sequence[QueueStats]) -> QueueStats:
    """The figures of a queue from those of its partitions. One that is paused pauses it."""
    paused = [one for one in found if one.paused]
    why = paused[0].paused_why if paused else ""
    if 0 < len(paused) < len(found):
        some = _("Only %(count)d of %(all)d partitions.")
        why = f"{some % {'count': len(paused), 'all': len(found)}} {why}".rstrip()
    return QueueStats(
        queue=queue,
        counts={name: sum(one.counts[name] for one in found) for name in SETS},
        oldest_s=max((one.oldest_s for one in found if one.oldest_s is not None), default=None),
        paused=bool(paused),
        paused_by=paused[0].paused_by if paused else "",
        totals=_summed([one.totals for one in found]),
        per_minute=_summed([one.per_minute for one in found]),
        paused_why=why,
        paused_at=paused[0].paused_at if paused else None,
        partitions=tuple(one.queue for one in found),
    )


def _summed(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    names = dict.fromkeys(name for one in found for name in one)
    return {name: sum(one.get(name, 0) for one in found) for name in names}


def overview(client: Client, names: Sequence[str]) -> list[QueueStats]:
    """Everything about several queues, in two round trips whatever their number.

    A partition is a queue here, and nothing is summed.
    """
    now = to_ms(client.read(lambda raw: raw.time())) / 1000
    minute = int(now) // 60

    def build(pipeline: Any) -> None:
        for name in names:
            keys = queue_keys(name, client.prefix)
            for kind in SETS:
                pipeline.zcard(getattr(keys, kind))
            pipeline.zrange(keys.pending, 0, 0)
            for key in (keys.meta, keys.metrics, keys.minute(minute), keys.minute(minute - 1)):
                pipeline.hgetall(key)

    replies = ask(client, build)
    each = len(SETS) + 5
    return [
        _stats(name, replies[at * each : (at + 1) * each], now) for at, name in enumerate(names)
    ]


def _stats(queue: str, replies: list[Any], now: float) -> QueueStats:
    *sizes, head, meta, lifetime, this, last = replies
    recent: dict[str, float] = {}
    for counters in (numbers(this), numbers(last)):
        for name, value in counters.items():
            recent[name] = recent.get(name, 0) + value
    span = 1 + (now % 60) / 60
    about = texts(meta)
    since = number(about.get("paused"))
    return QueueStats(
        queue=queue,
        counts=dict(zip(SETS, sizes, strict=True)),
        oldest_s=age(text(head[0]), now) if head else None,
        paused="paused" in about,
        paused_by=about.get("paused_by", ""),
        totals=numbers(lifetime),
        per_minute={name: value / span for name, value in recent.items()},
        paused_why=about.get("paused_why", ""),
        paused_at=instant(since) if since > 1 else None,
    )


def last_hour(client: Client, names: Sequence[str]) -> list[Minute]:
    """The counters of the last 60 minutes, summed over queues, oldest first; two round trips."""
    last = to_ms(client.read(lambda raw: raw.time())) // 60_000
    minutes = range(last - CHART_MINUTES + 1, last + 1)
    keys = [queue_keys(name, client.prefix) for name in names]
    replies = ask(
        client,
        lambda p: [p.hmget(key.minute(minute), _CHARTED) for minute in minutes for key in keys],
    )
    found = []
    for at, minute in enumerate(minutes):
        rows = replies[at * len(keys) : (at + 1) * len(keys)]
        enqueued, completed, discarded, dead, failed = (
            sum(number(row[column]) for row in rows) for column in range(len(_CHARTED))
        )
        when = instant(minute * 60_000)
        assert when is not None
        found.append(Minute(when, enqueued, completed + discarded + dead, failed))
    return found
