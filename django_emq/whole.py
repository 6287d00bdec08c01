"""What people ask of a queue as a whole: of all its partitions, if it has any.

The names are those of the verbs in `scripts`, which take one queue of the server. A queue without
partitions is its own whole, so these may be called for any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import inspector, scripts
from .batches import Batch
from .connections import Client
from .exceptions import EmqError


def pause(client: Client, queue: str, *, by: str = "", why: str = "") -> bool:
    """Stop all claims; whether any partition was open. One round trip for all of them."""
    return any(_each(client, queue, lambda way, part: scripts.pause(way, part, by=by, why=why)))


def resume(client: Client, queue: str, *, by: str = "") -> bool:
    """Let all be claimed again; whether any partition was paused."""
    return any(_each(client, queue, lambda way, part: scripts.resume(way, part, by=by)))


def drain(client: Client, queue: str, name: str, *, by: str = "", batch: int = 500) -> int:
    """Delete up to `batch` jobs of a set, from one partition after the other; how many.

    Call again while that is `batch`.
    """
    done, batch = 0, min(batch, scripts.BATCH_MAX)
    for part in inspector.parts(client, queue):
        done += scripts.drain(client, part, name, by=by, batch=batch - done)
        if done >= batch:
            break
    return done


def obliterate(client: Client, queue: str, *, force: bool = False, batch: int = 500) -> bool:
    """Delete up to `batch` jobs of each partition of a paused queue; whether more is left.

    Raises NotInState, before anything is deleted, when one of them is not paused, or workers hold
    jobs and `force` is not given.
    """
    parts = inspector.parts(client, queue)
    if parts == [queue]:
        return scripts.obliterate(client, queue, force=force, batch=batch)
    # What was never used, or is gone since the last call, is no longer paused either.
    found = [one for one in inspector.overview(client, parts) if one.paused or one.totals]
    # Those that will be refused come first.
    found.sort(key=lambda one: one.paused and (force or not one.counts["active"]))
    left = [scripts.obliterate(client, one.queue, force=force, batch=batch) for one in found]
    return any(left)


def _each(client: Client, queue: str, verb: Callable[[Any, str], Any]) -> list[bool]:
    """Call a verb for each partition, in one round trip; raises the first error."""
    parts = inspector.parts(client, queue)
    if parts == [queue]:
        return [verb(client, queue)]
    scripts.register(client, parts)  # what a partition keeps must be found, also before its jobs
    batch = Batch(client)
    for part in parts:
        verb(batch, part)
    answers = batch.send()
    for answer in answers:
        if isinstance(answer, EmqError):
            raise answer
    return list(map(bool, answers))
