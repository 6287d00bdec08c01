"""A job queue for Django on Valkey or Redis.

>>> import django_emq as emq
>>> @emq.task(queue="mail")
... def send(user_id: int) -> None: ...
>>> send.enqueue(42)

The names below are the public interface. They are imported at first use, so that a settings
module may import this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .answers import Result, aresult, result
    from .backoff import Exponential, Fixed, Linear
    from .cancelling import acancel, cancel
    from .chains import chain
    from .context import JobContext, current_job
    from .effects import Once, effect, fenced_update, idempotency_key
    from .exceptions import (
        Bury,
        Discard,
        EffectError,
        EmqError,
        InvalidArguments,
        InvalidOption,
        InvalidTask,
        JobCancelled,
        JobDied,
        JobGone,
        LeaseLost,
        NoCurrentJob,
        NotFinished,
        OutcomeUnknown,
        PayloadTooLarge,
        Refused,
        Retry,
        ServerError,
        ServerRefused,
        Snooze,
        StaleToken,
        TimeLimitExceeded,
        TooFewReplicas,
        UnknownTask,
        VersionFence,
    )
    from .jobs import Job, Previous
    from .models import FencedModel
    from .notes import JobLogHandler, Progress
    from .queue import (
        aenqueue,
        aenqueue_at,
        aenqueue_in,
        aenqueue_many,
        aenqueue_on_commit,
        cas,
        enqueue,
        enqueue_at,
        enqueue_in,
        enqueue_many,
        enqueue_on_commit,
    )
    from .registry import Task, Unsent, task
    from .schedules import cron, every

__version__ = "0.1.0"

_HOMES = {
    "answers": "Result aresult result",
    "backoff": "Exponential Fixed Linear",
    "cancelling": "acancel cancel",
    "chains": "chain",
    "context": "JobContext current_job",
    "effects": "Once effect fenced_update idempotency_key",
    "exceptions": (
        "Bury Discard EffectError EmqError InvalidArguments InvalidOption InvalidTask "
        "JobCancelled JobDied JobGone LeaseLost NoCurrentJob NotFinished OutcomeUnknown "
        "PayloadTooLarge Refused Retry ServerError ServerRefused Snooze StaleToken "
        "TimeLimitExceeded TooFewReplicas UnknownTask VersionFence"
    ),
    "jobs": "Job Previous",
    "models": "FencedModel",
    "notes": "JobLogHandler Progress",
    "queue": (
        "aenqueue aenqueue_at aenqueue_in aenqueue_many aenqueue_on_commit cas enqueue enqueue_at "
        "enqueue_in enqueue_many enqueue_on_commit"
    ),
    "registry": "Task Unsent task",
    "schedules": "cron every",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Bury",
    "Discard",
    "EffectError",
    "EmqError",
    "Exponential",
    "FencedModel",
    "Fixed",
    "InvalidArguments",
    "InvalidOption",
    "InvalidTask",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobDied",
    "JobGone",
    "JobLogHandler",
    "LeaseLost",
    "Linear",
    "NoCurrentJob",
    "NotFinished",
    "Once",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "Previous",
    "Progress",
    "Refused",
    "Result",
    "Retry",
    "ServerError",
    "ServerRefused",
    "Snooze",
    "StaleToken",
    "Task",
    "TimeLimitExceeded",
    "TooFewReplicas",
    "UnknownTask",
    "Unsent",
    "VersionFence",
    "acancel",
    "aenqueue",
    "aenqueue_at",
    "aenqueue_in",
    "aenqueue_many",
    "aenqueue_on_commit",
    "aresult",
    "cancel",
    "cas",
    "chain",
    "cron",
    "current_job",
    "effect",
    "enqueue",
    "enqueue_at",
    "enqueue_in",
    "enqueue_many",
    "enqueue_on_commit",
    "every",
    "fenced_update",
    "idempotency_key",
    "result",
    "task",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value
