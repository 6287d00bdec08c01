"""Jobs: one in full, a page of a set, a walk along a set. Nothing here reads a whole set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from .. import scripts
from ..connections import Client
from ..exceptions import JobGone
from ..ids import is_job_id, minted_at
from ..jobs import Call, read
from ..keys import queue_keys
from ..notes import Progress, read_progress
from ._read import SETS, ask, instant, number, text, texts, to_ms
from .queues import check_set
from .trail import Entry, entries, read_trail

PAYLOAD_MAX = 64 * 1024  # bytes: what is larger is shown on the job's own page only
LOG_LINES = 1000  # of LOG_MAX, the most that can be set
STATES = {"schedule": "scheduled"}  # what a row calls the state of a set, where it differs

# The fields that a list shows; payload is read apart, when its size is known.
_LISTED = (
    "attempts", "failures", "stalls", "max_attempts", "max_stalls", "priority", "last_error",
    "worker", "started_at", "finished_at", "progress", "settled",
)  # fmt: skip
_WITH_PAYLOAD = (*_LISTED, "payload")


class Mark(NamedTuple):
    """A place in a set: between the entries before it and those after it, whatever moves."""

    score: float
    id: str


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as a list shows it.

    :ivar set: where it is, one of SETS, or '' for a row that is in no set.
    :ivar score: in that set: end of lease, due time, time of death or end of retention, in ms.
    :ivar payload: None when it is too large for a list, or not there.
    :ivar now_ms: the server's clock when it was read.
    """

    queue: str
    id: str
    set: str
    score: float | None
    fields: dict[str, str]
    payload: bytes | None
    payload_size: int
    now_ms: int

    @property
    def token(self) -> int:
        """The newest token: how often the job has been claimed."""
        return number(self.fields.get("attempts"))

    @property
    def failures(self) -> int:
        """Failures in this life."""
        return number(self.fields.get("failures"))

    @property
    def stalls(self) -> int:
        """Lost leases in this life."""
        return number(self.fields.get("stalls"))

    @property
    def worker(self) -> str:
        """Who has, or had, the newest token."""
        return self.fields.get("worker", "")

    @property
    def error(self) -> str:
        """The last error."""
        return self.fields.get("last_error", "")

    @property
    def error_line(self) -> str:
        """The last line of it that says something."""
        lines = [line for line in self.error.splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""

    @property
    def error_class(self) -> str:
        """What comes before the first colon of the last error: 'ValueError', 'stalled', …"""
        first = self.error.split("\n", 1)[0]
        return first.partition(":")[0].strip()[:100]

    @property
    def call(self) -> Call | None:
        """Task and arguments, where the payload was read and is one."""
        if self.payload is None:
            return None
        try:
            return read(self.payload)
        except ValueError:
            return None

    @property
    def task(self) -> str:
        """Path of the task; '' when it is not known."""
        call = self.call
        return call.task if call else ""

    @property
    def progress(self) -> Progress | None:
        """How far it has come, as its task says."""
        return read_progress(self.fields.get("progress", ""))

    @property
    def left_s(self) -> float | None:
        """Seconds until the lease ends, the job is due, or its row goes; negative when past."""
        if self.score is None or self.set not in ("active", "schedule", "done"):
            return None
        return (self.score - self.now_ms) / 1000

    @property
    def enqueued_at(self) -> datetime | None:
        """When the id was minted, by the clock of who enqueued it."""
        return minted_at(self.id) if is_job_id(self.id) else None

    @property
    def ended_at(self) -> datetime | None:
        """When it died or was finished."""
        at = number(self.fields.get("finished_at"))
        if self.set == "dead" and self.score:
            return instant(self.score)
        return instant(at) if at else None

    @property
    def started_at(self) -> datetime | None:
        """When it was last claimed."""
        at = number(self.fields.get("started_at"))
        return instant(at) if at else None

    @property
    def age_s(self) -> float | None:
        """Seconds since it ended, or since it was enqueued when it has not."""
        since = self.ended_at if self.set in ("dead", "done") else self.enqueued_at
        return max(self.now_ms / 1000 - since.timestamp(), 0.0) if since else None


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of a set. Pages count from 1; one beyond the end is the last."""

    queue: str
    set: str
    rows: list[JobRow]
    total: int
    number: int
    pages: int


@dataclass(frozen=True, slots=True)
class JobDetail:
    """Everything about one job, read at one instant."""

    row: JobRow
    state: str  # as `state` answers it
    logs: list[str]
    trail: list[Entry]
    ahead: int | None  # jobs before it, where it is pending
    meta: dict[str, str] = field(default_factory=dict)  # of its queue
    running: int = 0  # jobs of its queue that are held


def state(client: Client, queue: str, job_id: str) -> str:
    """'pending', 'active', 'scheduled', 'dead', 'done', 'unknown' (a row in no set) or 'absent'."""
    return scripts.state(client, queue, job_id)


def row(client: Client, queue: str, job_id: str) -> dict[str, str]:
    """All fields of a job's row. Raises JobGone when there is none."""
    key = queue_keys(queue, client.prefix).job(job_id)
    fields = client.read(lambda raw: raw.hgetall(key))
    if not fields:
        raise JobGone(f"Queue {queue!r} has no job {job_id!r}.")
    return texts(fields)


def newest(client: Client, queue: str, count: int = 50) -> list[str]:
    """Ids of waiting jobs of priority 0, the newest first."""
    pending = queue_keys(queue, client.prefix).pending
    ids = client.read(
        lambda raw: raw.zrange(pending, "+", "-", bylex=True, desc=True, offset=0, num=count)
    )
    return [job_id.decode() for job_id in ids]


def locate(client: Client, job_id: str, names: Sequence[str]) -> list[str]:
    """Those of the queues that have a row of this id; one round trip."""
    found = ask(
        client, lambda p: [p.exists(queue_keys(q, client.prefix).job(job_id)) for q in names]
    )
    return [name for name, there in zip(names, found, strict=True) if there]


def first_row(
    client: Client, job_id: str, names: Sequence[str], fields: Sequence[str]
) -> tuple[str, dict[str, bytes]] | None:
    """Fields of a job's row, and the first of the queues that has one; one round trip.

    :param fields: the first of them is one that every row has that is meant.
    Raises a ServerError for what is no answer; a key that holds no row is passed over.
    """
    keys = [queue_keys(name, client.prefix).job(job_id) for name in names]
    replies = ask(client, lambda p: [p.hmget(key, fields) for key in keys], loose=True)
    for name, values in zip(names, replies, strict=True):
        if isinstance(values, Exception) and not str(values).startswith("WRONGTYPE"):
            raise client.failed(values)
        if isinstance(values, list) and values[0] is not None:
            return name, {n: v for n, v in zip(fields, values, strict=True) if v is not None}
    return None


def among(client: Client, queue: str, name: str, ids: Sequence[str]) -> list[str]:
    """Those of the ids that are in a set, whatever their rows; one round trip."""
    key = getattr(queue_keys(queue, client.prefix), check_set(name))
    scores = ask(client, lambda p: [p.zscore(key, one) for one in ids])
    return [one for one, score in zip(ids, scores, strict=True) if score is not None]


def page(
    client: Client, queue: str, name: str, number: int = 1, *, size: int = 50, newest: bool = False
) -> JobPage:
    """A page of a set in its order, or the other way round with `newest`: three round trips."""
    key = getattr(queue_keys(queue, client.prefix), check_set(name))
    start = (max(number, 1) - 1) * size

    def build(pipeline: Any) -> None:
        pipeline.time()
        pipeline.zcard(key)
        pipeline.zrange(key, start, start + size - 1, desc=newest, withscores=True)
        # Should that be beyond the end: the last entries, of which the last page has some.
        pipeline.zrange(key, 0, size - 1, desc=not newest, withscores=True)

    time, total, here, tail = ask(client, build)
    pages = max((total + size - 1) // size, 1)
    if not here and total:
        number = pages
        here = tail[: total - (pages - 1) * size][::-1]
    marks = [Mark(score, text(job_id)) for job_id, score in here]
    rows = load(client, queue, name, marks, now_ms=to_ms(time))
    return JobPage(queue, name, rows, total, min(max(number, 1), pages), pages)


def load(
    client: Client, queue: str, name: str, marks: Sequence[Mark], *, now_ms: int
) -> list[JobRow]:
    """The rows of entries of a set, in two round trips; one that is gone has no fields."""
    return load_places(client, name, [(queue, mark) for mark in marks], now_ms=now_ms)


def load_places(
    client: Client, name: str, places: Sequence[tuple[str, Mark]], *, now_ms: int
) -> list[JobRow]:
    """`load` for entries of the same set of several queues, in two round trips as well."""
    keys = [queue_keys(queue, client.prefix).job(mark.id) for queue, mark in places]

    replies = ask(client, lambda p: [p.hstrlen(key, "payload") for key in keys], loose=True)
    sizes = [size if isinstance(size, int) else 0 for size in replies]

    def build(pipeline: Any) -> None:
        for key, size in zip(keys, sizes, strict=True):
            pipeline.hmget(key, _WITH_PAYLOAD if 0 < size <= PAYLOAD_MAX else _LISTED)

    rows = []
    replies = ask(client, build, loose=True)
    for (queue, mark), size, values in zip(places, sizes, replies, strict=True):
        listed = values if isinstance(values, list) else []
        fields = {n: text(v) for n, v in zip(_LISTED, listed, strict=False) if v is not None}
        payload = listed[-1] if len(listed) > len(_LISTED) else None
        rows.append(JobRow(queue, mark.id, name, mark.score, fields, payload, size, now_ms))
    return rows


def follow(
    client: Client,
    queue: str,
    name: str,
    mark: Mark | None,
    *,
    size: int = 500,
    newest: bool = False,
) -> list[Mark]:
    """The next `size` entries after a place, wherever its rank is by now.

    Ranks shift while workers take jobs and operators move them; a place is kept by score and id,
    and found again by bisection.
    """
    key = getattr(queue_keys(queue, client.prefix), check_set(name))
    if newest:
        before = _below(client, key, mark) if mark else client.read(lambda raw: raw.zcard(key))
        start, stop = max(before - size, 0), before - 1
        if stop < 0:
            return []
    else:
        start = _below(client, key, mark, inclusive=True) if mark else 0
        stop = start + size - 1
    found = client.read(lambda raw: raw.zrange(key, start, stop, withscores=True))
    marks = [Mark(score, text(job_id)) for job_id, score in found]
    return marks[::-1] if newest else marks


def _below(client: Client, key: str, mark: Mark, *, inclusive: bool = False) -> int:
    """How many entries of a sorted set come before a place (or stand on it)."""

    def before(entry: tuple[bytes, float]) -> bool:
        there, here = (entry[1], entry[0]), (mark.score, mark.id.encode())
        return there <= here if inclusive else there < here

    def build(pipeline: Any) -> None:
        pipeline.zcard(key)
        pipeline.zrange(key, 0, 0, withscores=True)
        pipeline.zrank(key, mark.id)
        pipeline.zscore(key, mark.id)

    high, first, rank, score = ask(client, build)
    if not first or not before(first[0]):
        return 0
    if rank is not None and score == mark.score:
        return int(rank) + inclusive
    low = 1
    while low < high:
        middle = (low + high) // 2
        entry = _at(client, key, middle)
        if entry and before(entry[0]):
            low = middle + 1
        else:
            high = middle
    return low


def _at(client: Client, key: str, rank: int) -> list[tuple[bytes, float]]:
    found: list[Any] = client.read(lambda raw: raw.zrange(key, rank, rank, withscores=True))
    return found


def job(client: Client, queue: str, job_id: str) -> JobDetail:
    """One job with log and trail, in one round trip. Raises JobGone when nothing of it is left.

    A job whose row is gone but of which the trail still speaks is answered with an empty row.
    """
    keys = queue_keys(queue, client.prefix)

    def build(pipeline: Any) -> None:
        pipeline.time()
        pipeline.hgetall(keys.job(job_id))
        for name in SETS:
            pipeline.zscore(getattr(keys, name), job_id)
        pipeline.zrank(keys.pending, job_id)
        pipeline.lrange(keys.logs(job_id), -LOG_LINES, -1)
        pipeline.hgetall(keys.meta)
        pipeline.zcard(keys.active)
        read_trail(pipeline, keys, job_id)

    time, fields, *scores, ahead, logs, meta, running, stream = ask(client, build, loose=True)
    where = next((i for i, score in enumerate(scores) if isinstance(score, float)), None)
    trail = entries(stream, job_id)
    if not fields and where is None and not trail:
        raise JobGone(f"Queue {queue!r} has no job {job_id!r}.")
    if isinstance(fields, Exception):
        fields = {b"last_error": f"damaged row: {fields}".encode()}
    payload = fields.pop(b"payload", None)
    name, score = ("", None) if where is None else (SETS[where], scores[where])
    row = JobRow(
        queue, job_id, name, score, texts(fields), payload, len(payload or b""), to_ms(time)
    )
    known = "unknown" if fields or payload else "absent"
    return JobDetail(
        row=row,
        state=STATES.get(name, name) or known,
        logs=[text(line) for line in logs] if isinstance(logs, list) else [],
        trail=trail,
        ahead=ahead if isinstance(ahead, int) else None,
        meta=texts(meta),
        running=running if isinstance(running, int) else 0,
    )
