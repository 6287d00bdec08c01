"""What a worker does for a job of Django's tasks API: its context, its signals, its result."""

from __future__ import annotations

import inspect
from dataclasses import replace
from datetime import datetime
from functools import wraps
from typing import Any

from asgiref.sync import sync_to_async
from django.utils import timezone

from . import connections, registry, results
from .backoff import Custom, Exponential, Fixed, Linear, resolve
from .compat import (
    AnyContext,
    AnyResult,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from .context import JobContext, current_job
from .exceptions import JobGone, ServerError, Snooze, StaleToken

AWAY = 1.0  # seconds until a job is looked at again whose row could not be read
# The verdicts that end a job: by verb, and what the server answered.
ENDS = {
    ("complete", 1): TaskResultStatus.SUCCESSFUL,
    ("retry", "dead"): TaskResultStatus.FAILED,
    ("bury", 1): TaskResultStatus.FAILED,
    ("discard", 1): TaskResultStatus.FAILED,
}


class EMQContext(AnyContext):
    """What a task with ``takes_context=True`` gets: Django's context, and the job.

    `attempt` counts claims, so it is the fencing token too.
    """

    __slots__ = ()

    @property
    def job(self) -> JobContext:
        """The job of this run, as `current_job` answers it."""
        return current_job()

    @property
    def token(self) -> int:
        """The fencing token: higher for every claim of this job, never given out twice."""
        return self.job.token

    @property
    def lease_deadline(self) -> datetime:
        """When the lease ends unless it is extended, as this machine's clock would show it."""
        return self.job.lease_deadline

    @property
    def lost(self) -> bool:
        """Whether the lease was lost: what this run still does cannot settle the job."""
        return self.job.lost


class Performance:
    """One run of a job, from its start to the verdict on its outcome.

    :ivar result: the job's result, as task and receivers see it; changed on the way.
    :ivar value: what the task returned.
    """

    def __init__(self, job: JobContext) -> None:
        queue, row = _row(job)
        self.job = job
        self.value: Any = None
        self.result: AnyResult = results.build(queue, job.id, row)
        self.backend = type(task_backends[self.result.backend])
        job.after = self

    def begin(self) -> tuple[EMQContext, ...]:
        """Tell that the job has started; answers what the task gets before its arguments."""
        task_started.send(self.backend, task_result=self.result)
        return (EMQContext(task_result=self.result),) if self.result.task.takes_context else ()

    def __call__(self, outcome: Any, verdict: Any) -> None:
        """Tell that the job has ended, if it has: not after a refusal, nor before a next run."""
        status = None if isinstance(verdict, Exception) else ENDS.get((outcome.verb, verdict))
        if status is None:
            return
        result, error = self.result, self.job.error
        object.__setattr__(result, "status", status)
        object.__setattr__(result, "finished_at", results.local(timezone.now()))
        if error is None:
            object.__setattr__(result, "_return_value", self.value)
            task_finished.send(self.backend, task_result=result)
            return
        # The line and the traceback that went into the row: secrets are out of them.
        *_, line, trace = outcome.details or (repr(error), "")
        result.errors.append(results.error_of(outcome.verb, line, trace))
        try:
            raise error
        except BaseException:
            task_finished.send(self.backend, task_result=result)


def _row(job: JobContext) -> tuple[str, dict[str, Any]]:
    """The job's row. Raises what ends a run that must not begin."""
    try:
        queue, row = results.read(connections.client(), job.id, [job.queue], elsewhere=False)
    except ServerError as error:
        raise Snooze(AWAY, reason=str(error)) from error
    if not row:
        raise JobGone(f"The row of job {job.id} is gone, or it is not one of Django's tasks.")
    if row["attempts"] != b"%d" % job.token:
        raise StaleToken(f"Job {job.id} was claimed again before this run began.")
    return queue, row


def performer(face: registry.AnyTask, *, takes_context: bool) -> registry.AnyTask:
    """The task that a worker runs: the function of `face`, with all that Django does around it."""
    func = face.func

    def begin() -> tuple[EMQContext, ...]:
        return Performance(current_job()).begin()

    def end(value: Any) -> Any:
        value = normalize_json(value)
        performance = current_job().after
        if isinstance(performance, Performance):
            performance.value = value
        return value

    @wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        return end(func(*begin(), *args, **kwargs))

    @wraps(func)
    async def arun(*args: Any, **kwargs: Any) -> Any:
        first = await sync_to_async(begin)()
        return end(await func(*first, *args, **kwargs))

    chosen: Any = arun if face.is_async else run
    if takes_context:  # arguments are told apart by the signature, and the context is none of them
        signature = inspect.signature(func)
        _, *rest = signature.parameters.values()
        chosen.__signature__ = signature.replace(parameters=rest)
    made = replace(face, func=chosen, backoff=_policy(face.backoff))
    object.__setattr__(made, "fields", face.fields)
    return made


def _policy(backoff: Any) -> Any:
    """A backoff of a Django task as one of the queue's: its callables take other arguments."""
    own = isinstance(backoff, (Fixed, Linear, Exponential))
    if own or not (callable(backoff) or isinstance(backoff, str)):
        return backoff

    def policy(failures: int, error: BaseException | None) -> Any:
        chosen = resolve(backoff)  # a path is imported when it is needed
        if not isinstance(chosen, Custom):
            return chosen(failures, error)
        call: Any = chosen.function
        return call(error, getattr(current_job().after, "result", None))

    return policy
