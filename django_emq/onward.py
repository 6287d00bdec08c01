"""Jobs of chains that belong to another queue than the job before them.

That queue may be on another server, so no script can do both. The step that ends the one job puts
the next into a list of its own queue (`onward`), and whoever keeps house for that queue admits it
from there. Anybody may do so at any time, die after any step, or come late: the rules are those of
the outbox, and so is the reasoning (docs/how-it-works.md).
"""

from __future__ import annotations

from typing import Any

from . import connections, scripts
from .admission import introduce
from .batches import Batch
from .chains import unpacked
from .connections import Client
from .context import JobContext
from .exceptions import EmqError, InvalidOption
from .jobs import NewJob
from .keys import check_queue
from .log import get_logger
from .outbox import GRACE_MS, TAKEN_MS, VOID_MS

logger = get_logger("onward")

BATCH = 100  # jobs in one pass
NO_END = {"snooze", "release", "discard"}  # what these settle leaves nothing to admit
Lots = dict[str, list[bytes]]


def admit(client: Client, queue: str) -> int:
    """Admit what the list of a queue has for others; answers how many jobs.

    Raises an EmqError where the server of another queue does not answer, or refuses: the job stays
    in the list.
    """
    admitted = 0
    while True:
        # The server's time is asked for with the jobs: that makes a late admission void.
        now_ms, waiting = scripts.onward(client, queue, batch=BATCH)
        if not waiting:
            return admitted
        done, lost, error = _send(client, queue, waiting, now_ms + VOID_MS)
        ids = [job_id for there in done.values() for job_id in there]
        scripts.onward(client, queue, admitted=[*ids, *lost], batch=0)
        # Only now: as long as a job may be in the list, it may be sent again, and must be known.
        batch = Batch(client)
        for there, those in done.items():
            scripts.forget(batch, there, [job_id.decode() for job_id in those], grace_ms=GRACE_MS)
        if done:
            batch.send()
        admitted += len(ids)
        if error is not None:
            raise error


def _send(
    client: Client, queue: str, waiting: dict[bytes, bytes], void_at: int
) -> tuple[Lots, list[bytes], EmqError | None]:
    """Send each job as one call.

    Answers the ids of those that are there, by queue; those that can never be; the first refusal.
    """
    batch, sent, lost = Batch(client), list[tuple[str, bytes]](), list[bytes]()
    for job_id, text in sorted(waiting.items()):
        try:
            there, named, payload, priority, due, *fields = unpacked(text)
            new = NewJob(named, payload, int(priority), due, tuple(fields))
            check_queue(there, client.prefix)
        except (ValueError, InvalidOption) as damage:
            logger.error("queue %s: next job %s cannot be read: %s", queue, job_id, damage)
            lost.append(job_id)
            continue
        introduce(client, [there])
        scripts.enqueue(
            batch,
            there,
            [new],
            request=named,
            producer=named,
            sent_ms=TAKEN_MS,
            void_at=void_at,
        )
        sent.append((there, job_id))
    done, error = Lots(), None
    for (there, job_id), answer in zip(sent, batch.send() if sent else (), strict=True):
        if isinstance(answer, EmqError):
            error = error or answer
            continue
        done.setdefault(there, []).append(job_id)
        if isinstance(answer[0], EmqError):
            logger.error("queue %s: next job %s was refused: %s", queue, job_id, answer[0])
    return done, lost, error


def after_settlement(context: JobContext, outcome: Any, verdict: Any) -> None:
    """Admit at once what the end of a job has put into the list; a sweep does what this cannot."""
    if isinstance(verdict, EmqError) or verdict in (0, "scheduled") or outcome.verb in NO_END:
        return
    try:
        admit(connections.client(), context.queue)
    except EmqError as error:
        logger.info("queue %s: next jobs are left to the next sweep: %s", context.queue, error)
