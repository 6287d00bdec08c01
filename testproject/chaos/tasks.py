"""Jobs that end in every way a job can; the first thing that each run does is to say so."""

from __future__ import annotations

import asyncio
import time

import django_emq as emq

from .ledger import effect

QUEUE = "chaos"
KEEP = 3600  # seconds


@emq.task(queue=QUEUE)
def work(seconds: float = 0) -> None:
    """Take a while, and be done."""
    effect()
    time.sleep(seconds)


@emq.task(queue=QUEUE)
async def awork(seconds: float = 0) -> None:
    """The same on the event loop."""
    effect()
    await asyncio.sleep(seconds)


@emq.task(queue=QUEUE, backoff=0.2, max_attempts=4)
def fail_twice() -> None:
    """Fail, fail, and be done."""
    effect()
    if emq.current_job().attempt < 3:
        raise RuntimeError("not yet")


@emq.task(queue=QUEUE, backoff=0.1, max_attempts=2)
def fail_always() -> None:
    """End in the morgue."""
    effect()
    raise RuntimeError("never")


@emq.task(queue=QUEUE)
def snooze_once() -> None:
    """Come back a little later, once."""
    effect()
    if emq.current_job().token == 1:
        raise emq.Snooze(0.3)


@emq.task(queue=QUEUE)
def drop() -> None:
    """Be no longer wanted."""
    effect()
    raise emq.Discard


@emq.task(queue=QUEUE)
def give_up() -> None:
    """Go into the morgue at once."""
    effect()
    raise emq.Bury("no use")


@emq.task(queue=QUEUE, result_ttl=KEEP)
def answer(number: int) -> int:
    """Be kept with a result."""
    effect()
    return 2 * number
