"""Tasks that do nothing but leave a stamp on the board."""

from __future__ import annotations

import time
from functools import cache

import django_emq as emq

from .board import Board

board = cache(Board.of_this_worker)


@emq.task
def noop(job: int) -> None:
    """Do nothing."""
    board().stamp(job)


@emq.task
async def anoop(job: int) -> None:
    """Do nothing, on the event loop."""
    board().stamp(job)


@emq.task(result_ttl=3600)
def answer(job: int) -> int:
    """Do nothing, and have a result that is kept."""
    board().stamp(job)
    return job


@emq.task
def hold(job: int, seconds: float) -> None:
    """Hold a runner."""
    board().stamp(job)
    time.sleep(seconds)
