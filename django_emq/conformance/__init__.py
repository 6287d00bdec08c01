"""A suite for any backend of Django's tasks API.

>>> class TestBackend(TaskBackendSuite, TransactionTestCase):
...     def run_enqueued(self):
...         call_command("emq_worker", "--burst", "--processes", "0")

`settings.TASKS["default"]` is the backend under test, with Django's default `QUEUES`; configure it
for one attempt, so that the first failure is the last. The tasks are in `conformance.tasks`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .suite import TaskBackendSuite

__all__ = ["TaskBackendSuite"]


def __getattr__(name: str) -> Any:
    # At first use: it declares tasks, for which TASKS must be known.
    if name != "TaskBackendSuite":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.suite").TaskBackendSuite
