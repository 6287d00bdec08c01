"""Jobs whose process was killed because they went on after their limit: each attempt has failed.

The supervisor calls this. It runs no code of the project: that may be what hung.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from .. import connections, registry, scripts
from ..backoff import DEFAULT, Custom, Policy, resolve
from ..conf import settings
from ..exceptions import TimeLimitExceeded
from ..jobs import decode
from ..keys import queue_keys
from ..log import get_logger
from ..registry import AnyTask
from . import limits

logger = get_logger("worker")


def may_kill() -> bool:
    """Whether a task has a kill_after, or may have one by the settings."""
    conf = settings()
    by_settings = conf.kill_after or any(one.kill_after for one in conf.queues.values())
    return bool(by_settings) or registry.may_kill()


def fail(client: connections.Client, queue: str, jobs: list[tuple[bytes, int]]) -> None:
    """Count a failure of each job, given (id, token); raises an EmqError.

    One that was settled meanwhile is refused, and is none.
    """
    keys = queue_keys(queue, client.prefix)
    for job_id, token in jobs:
        key = keys.job(job_id.decode("ascii", "replace"))
        row = client.read(partial(_read, key))
        task = _task(row[0])
        counted = row[1] or b"0"
        failures = int(counted) if counted.isdigit() else 0
        delay = _policy(task, queue)(failures + 1, None) or 0.0
        why = _why(task, queue)
        item = (job_id, token, int(delay * 1000), why, "")
        conf = settings().queue(queue)
        (verdict,) = scripts.retry(client, queue, [item], max_attempts=conf.max_attempts)
        if isinstance(verdict, str):
            name = task.name if task else "?"
            logger.error("job %s of %s was %s: %s", job_id.decode(), name, why, verdict)


def _read(key: str, raw: Any) -> list[bytes | None]:
    found: list[bytes | None] = raw.hmget(key, "payload", "failures")
    return found


def _task(payload: bytes | None) -> AnyTask | None:
    try:
        return registry.find(decode(payload or b"").task)
    except ValueError:
        return None


def _policy(task: AnyTask | None, queue: str) -> Policy:
    """The policy that says when the job runs again; not one that is code of the project."""
    own = task.backoff if task else None
    if isinstance(own, str):
        return DEFAULT
    policy = settings().queue(queue).backoff if own is None else resolve(own)
    return DEFAULT if isinstance(policy, Custom) else policy


def _why(task: AnyTask | None, queue: str) -> str:
    """The reason, which begins with the class of what the run should have ended by."""
    timeout, kill_after = limits.of(task, queue, settings()) if task else (0.0, 0.0)
    kind = TimeLimitExceeded
    return (
        f"{kind.__module__}.{kind.__qualname__}: killed after {timeout + kill_after:g} s, for it "
        f"went on after its timeout of {timeout:g} s"
    )
