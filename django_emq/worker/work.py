"""A job's task is run: through the middleware, and told of by signals."""

from __future__ import annotations

from functools import partial

from .. import onward
from ..conf import settings
from ..context import JobContext
from ..exceptions import Discard, LeaseLost, Snooze
from ..jobs import Call
from ..middleware import chains
from ..registry import AnyTask
from ..signals import job_failed, job_started, job_succeeded
from .outcome import Outcome, failed, finished

NO_FAILURE = (Snooze, Discard, LeaseLost)


class Work:
    """Runs tasks. Raises ImproperlyConfigured for a middleware that cannot be used."""

    def __init__(self) -> None:
        self._run, self._arun = chains(settings().middleware)

    def run(self, context: JobContext, call: Call, task: AnyTask) -> Outcome:
        """Run a plain task; raises what it raises."""
        context.begin(call)
        if call.onward:
            _follow(context)
        if job_started.receivers:
            job_started.tell(task, job=context)
        run = self._run
        value = task.func(*call.args, **call.kwargs) if run is None else run(context)
        outcome = finished(context, task, value, passes=call.passes)
        if job_succeeded.receivers:
            job_succeeded.tell(task, job=context, result=value)
        return outcome

    async def arun(self, context: JobContext, call: Call, task: AnyTask) -> Outcome:
        """Run an async task; raises what it raises."""
        context.begin(call)
        if call.onward:
            _follow(context)
        if job_started.receivers:
            await job_started.atell(task, job=context)
        run = self._arun
        value = await (task.func(*call.args, **call.kwargs) if run is None else run(context))
        outcome = finished(context, task, value, passes=call.passes)
        if job_succeeded.receivers:
            await job_succeeded.atell(task, job=context, result=value)
        return outcome


def _follow(context: JobContext) -> None:
    if context.after is None:
        context.after = partial(onward.after_settlement, context)


def failure(context: JobContext, task: AnyTask | None, error: BaseException) -> Outcome:
    """The outcome of a run that raised. Called while the error is being handled."""
    if job_failed.receivers and not isinstance(error, NO_FAILURE):
        job_failed.tell(task, job=context, error=error)
    if context.after is not None:
        context.error = error
    return failed(context, task, error)


async def afailure(context: JobContext, task: AnyTask, error: BaseException) -> Outcome:
    """The same on an event loop."""
    if job_failed.receivers and not isinstance(error, NO_FAILURE):
        await job_failed.atell(task, job=context, error=error)
    if context.after is not None:
        context.error = error
    return failed(context, task, error)
