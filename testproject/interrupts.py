"""Control-C and SIGTERM as KeyboardInterrupt, but not while a process is started or ended.

An exception that comes while `subprocess` keeps its books can leave a lock taken that nobody
gives back, and a command that then waits for a process which has long ended waits for ever.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_held = 0
_came = False


@contextmanager
def interrupts() -> Iterator[None]:
    """Both signals raise KeyboardInterrupt during this block, or at the end of a `held` one."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, _interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def held() -> Iterator[None]:
    """A signal that comes during this block raises at its end."""
    global _held, _came
    _held += 1
    try:
        yield
    finally:
        _held -= 1
        if _came and not _held:
            _came = False
            raise KeyboardInterrupt


def _interrupt(*_: object) -> None:
    global _came
    if not _held:
        raise KeyboardInterrupt
    _came = True
