"""Our log. A project's handler that raises must cost neither a job nor a loop."""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any


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
