"""Signals: what happens to jobs and workers, for who wants to know.

An error of a receiver is logged, and costs neither the job nor the other receivers. A signal that
nobody has connected to costs nothing.
"""

from __future__ import annotations

from typing import Any

from django.dispatch import Signal

from .log import get_logger

logger = get_logger("signals")


class EmqSignal(Signal):
    """A signal that knows its name, for the log."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def tell(self, sender: Any, **facts: Any) -> None:
        """Call the receivers one after the other; raises nothing."""
        try:
            answers = self.send_robust(sender=sender, **facts)
        except BaseException:  # a receiver that leaves by SystemExit
            logger.exception("a receiver of %s failed", self.name)
        else:
            self._complain(answers)

    async def atell(self, sender: Any, **facts: Any) -> None:
        """The same from an event loop; plain receivers are called in a thread."""
        try:
            answers = await self.asend_robust(sender=sender, **facts)
        except Exception:
            logger.exception("a receiver of %s failed", self.name)
        else:
            self._complain(answers)

    def _complain(self, answers: list[tuple[Any, Any]]) -> None:
        for receiver, error in answers:
            if isinstance(error, BaseException):
                logger.error("receiver %r of %s raised: %r", receiver, self.name, error)


#: A job was admitted. Sent by the process that enqueued it, with `job`, a `Job`, after the call
#: to the server; for a job that waits for a commit, after that. A job of an outbox is told by the
#: process that pushes it, in the thread that does, and once more where it has to be pushed again.
job_enqueued = EmqSignal("job_enqueued")
#: A run begins. With `job`, its `JobContext`, in the thread and context of the run.
job_started = EmqSignal("job_started")
#: A task has returned. With `job` and `result`, likewise; the server has not been told yet.
job_succeeded = EmqSignal("job_succeeded")
#: An attempt has failed. With `job` and `error`, likewise, while the error is being handled.
job_failed = EmqSignal("job_failed")
#: The server has taken a failure, and will run the job again. With `job`, `delay` in seconds and
#: `reason`. This one and the next three are sent from a thread of their own.
job_retried = EmqSignal("job_retried")
#: A job is in the morgue, by its last failure or by its task's word. With `job` and `reason`.
job_dead = EmqSignal("job_dead")
#: The server has refused what a run wanted for its job: another run holds it, or has settled it.
#: With `job`, `verb` and `reason`.
job_stale = EmqSignal("job_stale")
#: The lease of a running job was lost. With `job`, once for each run.
lease_lost = EmqSignal("lease_lost")
#: A process of a worker is about to take jobs. With `name` and `queues` of the worker.
worker_started = EmqSignal("worker_started")
#: It takes no more, and finishes what it runs. With `name` and `queues`.
worker_stopping = EmqSignal("worker_stopping")
