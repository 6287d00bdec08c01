"""The outbox: jobs stored in the caller's transaction, and pushed to the server after its commit.

A push is the same everywhere, after a commit and in a relay: ask the server for its time, read
rows, send them, delete them, let the server forget them. It may end at any point and be made again
by anybody, because the server remembers each row that it has taken until nobody can push it any
more. docs/how-it-works.md has the reasoning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from time import monotonic
from typing import Any, NamedTuple
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db import connections as databases
from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from . import connections, registry, scripts
from .admission import CHUNK, introduce, verb_of
from .batches import Batch
from .connections import Client
from .exceptions import EmqError, ServerError
from .ids import uuid_of
from .jobs import Conflict, Job, NewJob, decode
from .log import Outage, get_logger
from .models import Outbox
from .signals import job_enqueued

logger = get_logger("outbox")

ROW_BYTES = 256 * 1024  # of payloads in one row, unless one job alone has more
BATCH = 200  # rows in one push
JOBS = 5000  # jobs on their way at once, about
DAY_MS = 86_400_000
# How long the server remembers a row that it has taken and that nobody has deleted.
TAKEN_MS = 30 * DAY_MS
# A push that reaches the server so much later than its rows were read is void …
VOID_MS = 30_000
# … and until then, and longer, the server remembers a row that has been deleted.
GRACE_MS = 2 * VOID_MS
# Seconds in which this process leaves rows to the relays after the server did not answer: nobody
# who commits shall wait for a time-out that another one has just waited for.
AWAY = 10.0


# -- storing ----------------------------------------------------------------------------------


@dataclass(eq=False)
class Group:
    """The rows of one transaction, which are pushed in their order."""

    id: UUID | None = None  # that of its first row
    closed: bool = False  # its rows have been pushed, or are left to the relays


# A transaction that was rolled back leaves its group here; the next one goes on with it, which
# does no harm: a group only keeps an order, and of the first one nothing is left.
_groups: WeakKeyDictionary[BaseDatabaseWrapper, Group] = WeakKeyDictionary()


def store(database: str, jobs: dict[str, list[NewJob]]) -> None:
    """Store jobs, by queue, in the transaction that is open on a database; push after its commit.

    Where none is open they are committed and pushed at once. Raises what the database raises.
    """
    connection = databases[database]
    group = _groups.setdefault(connection, Group()) if connection.in_atomic_block else Group()
    rows = [_row(queue, part) for queue, new in jobs.items() for part in _parts(new)]
    group.id = group.id or min(row.id for row in rows)
    for row in rows:
        row.batch = group.id
    Outbox.objects.using(database).bulk_create(rows)
    if connection.in_atomic_block or connection.get_autocommit():
        ids = [row.id for row in rows]
        transaction.on_commit(partial(_committed, database, group, ids), using=database)


def _row(queue: str, jobs: list[NewJob]) -> Outbox:
    text = json.dumps(jobs, separators=(",", ":"))
    return Outbox(id=uuid_of(jobs[0].id), queue=queue, count=len(jobs), jobs=text)


def _parts(jobs: list[NewJob]) -> Iterator[list[NewJob]]:
    """Jobs in portions: what one script call takes, and one read of many rows can hold."""
    part: list[NewJob] = []
    size = 0
    for job in jobs:
        if part and (len(part) >= CHUNK or size + len(job.payload) > ROW_BYTES):
            yield part
            part, size = [], 0
        part.append(job)
        size += len(job.payload)
    if part:
        yield part


# -- after the commit -------------------------------------------------------------------------

_outage = Outage(logger, "outbox")
_away_until = 0.0


def _committed(database: str, group: Group, ids: list[UUID]) -> None:
    """Push what a transaction has stored. Raises nothing: the rows are safe, a relay will do it.

    The first hook of a transaction pushes the rows of all. In a test whose transaction never ends
    the hooks stay registered while captured ones are run: then each pushes its own rows.
    """
    global _away_until
    if group.closed:
        return
    connection = databases[database]
    ours: dict[str, Any] = {"id__in": ids}
    if not connection.run_on_commit:
        group.closed = True
        _groups.pop(connection, None)
        ours = {"batch": group.id}
    if monotonic() < _away_until:
        return
    try:
        client = connections.client()
        count = BATCH
        while count == BATCH:
            count = push(client, database, lambda rows: rows.filter(**ours).order_by("id")[:BATCH])
        _outage.over()
    except EmqError as error:
        group.closed = True
        if not isinstance(error, QueueRefused):  # that took no time
            _away_until = monotonic() + AWAY
        _outage.failed(error)
    except Exception:
        group.closed = True
        logger.exception("outbox of %r: a push after a commit failed; left to a relay", database)


# -- pushing ----------------------------------------------------------------------------------

Choice = Callable[["QuerySet[Outbox]"], "Iterable[Outbox]"]


class QueueRefused(ServerError):
    """The server has refused rows of one queue; the others of the push are there.

    :ivar queue: its name.
    """

    def __init__(self, queue: str, error: EmqError) -> None:
        super().__init__(f"Queue {queue!r}: {error}")
        self.queue = queue


def push(client: Client, database: str, choose: Choice, *, locked: bool = False) -> int:
    """Push the rows that `choose` takes from the table, in its order; how many.

    :param locked: whether `choose` locks rows, so that this needs a transaction.
    Raises QueueRefused, another EmqError when the server is away, and what the database raises.
    """
    # The time is asked for before the rows are read: that makes the pushes void in time.
    void_at = _now_ms(client) + VOID_MS
    with transaction.atomic(database, durable=True) if locked else nullcontext():
        rows = list(choose(Outbox.objects.using(database).defer("stored_at")))
        if not rows:
            return 0
        taken, error = _send(client, rows, void_at)
        names = [one.row.id for one in taken]
        Outbox.objects.using(database).filter(id__in=names).delete()
    # Only now: as long as a row may be there, it may be pushed, and must be known.
    batch = Batch(client)
    for queue, ones in groupby(sorted(taken, key=_queue), key=_queue):
        scripts.forget(batch, queue, [one.name for one in ones], grace_ms=GRACE_MS)
    if taken:
        batch.send()
    if job_enqueued.receivers:
        _tell(taken)
    if error is not None:
        raise error
    return len(taken)


class Taken(NamedTuple):
    """A row that was sent under a name: its jobs, and the ids of those that were refused."""

    row: Outbox
    name: str
    jobs: list[NewJob]
    refused: set[str]


def _queue(taken: Taken) -> str:
    return taken.row.queue


def _tell(taken: list[Taken]) -> None:
    """Tell of the jobs that are on the server; once more, where a row had to be pushed again."""
    for one in taken:
        for new in one.jobs:
            if new.id not in one.refused:
                task = decode(new.payload.encode()).task
                job = Job(new.id, one.row.queue, task, "enqueued")
                job_enqueued.tell(registry.find(task), job=job)


def _now_ms(client: Client) -> int:
    seconds, micros = client.read(lambda raw: raw.time())
    return int(seconds) * 1000 + int(micros) // 1000


def _send(
    client: Client, rows: Sequence[Outbox], void_at: int
) -> tuple[list[Taken], QueueRefused | None]:
    """Send each row as one call; those that are on the server, and a refusal.

    What comes after a refusal is not sent, as far as it is not under way with it.
    """
    taken: list[Taken] = []
    batch, sent, jobs = Batch(client), list[Taken](), 0
    for row in rows:
        try:
            new = [NewJob(*parts) for parts in json.loads(row.jobs)]
        except (ValueError, TypeError) as damage:
            logger.error("outbox row %s cannot be read, and stays: %s", row.id, damage)
            continue
        name = new[0].id
        introduce(client, [row.queue])
        verb_of(new)(
            batch,
            row.queue,
            new,
            request=name,
            producer=name,
            sent_ms=TAKEN_MS,
            void_at=void_at,
        )
        sent.append(Taken(row, name, new, set()))
        jobs += len(new)
        if jobs >= JOBS:
            error = _answers(batch, sent, taken)
            if error is not None:
                return taken, error
            batch, sent, jobs = Batch(client), [], 0
    return taken, _answers(batch, sent, taken)


def _answers(batch: Batch, sent: list[Taken], taken: list[Taken]) -> QueueRefused | None:
    """Send a batch; add to `taken` what the server has, and answer the first refusal."""
    refusal: QueueRefused | None = None
    for one, verdicts in zip(sent, batch.send() if sent else (), strict=True):
        if isinstance(verdicts, EmqError):
            refusal = refusal or QueueRefused(one.row.queue, verdicts)
            continue
        taken.append(one)
        for new, verdict in zip(one.jobs, verdicts, strict=True):
            if isinstance(verdict, EmqError):
                one.refused.add(new.id)
                logger.error("outbox row %s: a job was refused: %s", one.name, verdict)
            elif isinstance(verdict, Conflict) and verdict.word == "duplicate":
                one.refused.add(new.id)
                logger.info(
                    "outbox row %s: a job was a duplicate: job %s holds its unique key",
                    one.name,
                    verdict.holder,
                )
    return refusal
