"""Jobs that end in every way a job can; the first thing that each run does is to say so."""

from __future__ import annotations

import asyncio
import time

import django_emq as emq

from .ledger import effect

QUEUE = "chaos"
KEEP = 3600  # seconds


@emq.task(queue=QUEUE)
def work(seconds: float) -> None:
    """Be done."""
    run(seconds)


@emq.task(queue=QUEUE)
async def awork(seconds: float) -> None:
    """The same on the event loop."""
    effect()
    await asyncio.sleep(seconds)


@emq.task(queue=QUEUE, backoff=0.2, max_attempts=4)
def fail_twice(seconds: float) -> None:
    """Fail, fail, and be done."""
    run(seconds)
    if emq.current_job().attempt < 3:
        raise RuntimeError("not yet")


@emq.task(queue=QUEUE, backoff=0.1, max_attempts=2)
def fail_always(seconds: float) -> None:
    """End in the morgue."""
    run(seconds)
    raise RuntimeError("never")


@emq.task(queue=QUEUE)
def snooze_once(seconds: float) -> None:
    """Come back a little later, once."""
    run(seconds)
    if emq.current_job().token == 1:
        raise emq.Snooze(0.3)


@emq.task(queue=QUEUE)
def drop(seconds: float) -> None:
    """Be no longer wanted."""
    run(seconds)
    raise emq.Discard


@emq.task(queue=QUEUE)
def give_up(seconds: float) -> None:
    """Go into the morgue at once."""
    run(seconds)
    raise emq.Bury("no use")


@emq.task(queue=QUEUE, result_ttl=KEEP)
def answer(seconds: float) -> float:
    """Be kept with a result."""
    run(seconds)
    return seconds


def run(seconds: float) -> None:
    """Write down that this run has begun, and take a while."""
    effect()
    time.sleep(seconds)
