"""Our log. A project's handler that raises must cost neither a job nor a loop."""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import traceback
from time import monotonic
from typing import Any
from weakref import WeakSet

PAUSE_MAX = 2.0  # seconds between two tries: work goes on soon after the server is back


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that never raises: what a handler raises goes to standard error."""

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        """Log, whatever the handlers do."""
        try:
            super().log(level, msg, *args, stacklevel=3, **kwargs)
        except Exception:
            if sys.stderr is not None:
                sys.stderr.write(f"A log handler failed at {msg!r}:\n{traceback.format_exc()}")


def get_logger(name: str) -> SafeLogger:
    """The logger of one part of the queue, below ``django_emq``."""
    return SafeLogger(logging.getLogger(f"django_emq.{name}"), {})


_lock = threading.Lock()
_away: WeakSet[Outage] = WeakSet()  # those of this process for whom the server is away


def _forget() -> None:
    """A process that was forked finds out, and says, for itself whether the server is there."""
    global _lock
    _lock = threading.Lock()
    _away.clear()


os.register_at_fork(after_in_child=_forget)


class Outage:
    """Says that the server is away, once, and that it is back, once; and when to try again.

    Where two threads of a process find out for themselves, the first one says that the server is
    away, and the last one that it is back.

    :param who: begins the lines.
    """

    def __init__(self, logger: SafeLogger, who: str) -> None:
        self._logger = logger
        self._who = who
        self._since = 0.0
        self._tries = 0
        self.retry_at = 0.0  # on the monotonic clock; 0.0 while the server answers

    def failed(self, error: Exception) -> None:
        """Take note of a call that failed; the pause before the next grows to two seconds."""
        now = monotonic()
        if not self._since:
            self._since = now
            with _lock:
                first = not _away
                _away.add(self)
            if first:
                self._logger.warning("%s: %s; trying again", self._who, error)
        self._tries += 1
        # No float holds 2**1024, and an outage of an hour makes more tries than that.
        ceiling = min(0.05 * 2 ** min(self._tries, 10), PAUSE_MAX)
        self.retry_at = now + random.uniform(0.02, ceiling)

    def over(self) -> None:
        """Take note of a call that went well."""
        if self._since:
            with _lock:
                _away.discard(self)
                last = not _away
            if last:
                self._logger.info(
                    "%s: the server is back after %.1f s", self._who, monotonic() - self._since
                )
            self._since = self.retry_at = 0.0
            self._tries = 0
