"""The whole suite."""

from __future__ import annotations

from .declaring import Declaring
from .enqueueing import Enqueueing
from .running import Running


class TaskBackendSuite(Declaring, Enqueueing, Running):
    """Mixin for a test case of Django: what a backend for `TASKS` must do.

    Override `run_enqueued`. What a backend says it does not support is tested to be refused.
    """
