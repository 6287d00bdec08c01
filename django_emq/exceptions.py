"""Everything that django_emq raises. The first line of a docstring is the message.

Replies of the server are turned into these in one place, `connections.typed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async

if TYPE_CHECKING:
    from .answers import Result
    from .jobs import Job


class EmqError(Exception):
    """The queue could not do what was asked."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or "").split("\n")[0])


# -- refusals: the script looked, decided, and changed nothing of the job ---------------------


class Refused(EmqError):
    """The server refused the transition; nothing was changed."""


class StaleToken(Refused):
    """The lease was lost: another worker has claimed this job since.

    Reply class ``EMQSTALE``. Also raised when the token is right but the job is no longer
    held: it was settled, swept or moved after the token was handed out.
    """


class Cancelled(StaleToken):
    """The job was cancelled while it was held.

    Reply class ``EMQCANCEL``, of extend only: by it the holder is told.
    """


class JobGone(Refused):
    """The job has no row: it was completed, discarded or removed.

    Reply ``0`` of complete, ``EMQGONE`` of the others.
    """


class KindRefused(Refused):
    """The id is not a job id: it must start with JOB.

    Reply class ``EMQKIND``.
    """


class NotInState(Refused):
    """The job or the queue is not in the state that this needs.

    Reply class ``EMQSTATE``.
    """


class KeyHeld(NotInState):
    """Another job holds the unique key of this one.

    Reply class ``EMQKEY``.
    """


class JobHeld(Refused):
    """A worker holds the job.

    Reply class ``EMQLOCK``.
    """


class RateLimited(Refused):
    """The queue is at its limit.

    Reply class ``EMQRATE``.
    """


class DamagedRow(Refused):
    """The key of the job's row holds something that is not a job row.

    Reply class ``EMQROW``.
    """


class VersionFence(EmqError):
    """The server's keys belong to another version of the queue.

    Reply class ``EMQVERSION``. Fatal: no worker or producer of this version may write there.
    """


# -- calls that never became a job ------------------------------------------------------------


class InvalidTask(EmqError, TypeError):
    """The function cannot be a task."""


class ForgedPayload(EmqError, ValueError):
    """The payload does not carry the signature of this project for this job."""


class UnknownTask(EmqError, LookupError):
    """No task is registered under this name."""


class InvalidArguments(EmqError, TypeError, ValueError):
    """An argument does not survive JSON.

    A TypeError for what JSON has no form for, and a ValueError for what it has no value for
    (NaN, infinity): one class, which is both.
    """


class InvalidOption(EmqError, ValueError):
    """An option of the job is out of its range."""


class PayloadTooLarge(InvalidOption):
    """The job's payload is larger than MAX_PAYLOAD."""


class EffectError(EmqError):
    """The effect was not recorded, and what its block wrote is rolled back."""


class NoCurrentJob(EmqError, LookupError):
    """This code does not run inside a job."""


class NotFinished(EmqError, TimeoutError):
    """The job has not ended in the time that was waited for it.

    :ivar result: what was known of it last.
    """

    def __init__(self, result: Result, seconds: float) -> None:
        self.result = result
        super().__init__(
            f"Job {result.id} of {result.task or '?'} is still {result.state} after {seconds:g} s. "
            f"Wait longer, or ask why: manage.py emq_why {result.id}"
        )


class JobDied(EmqError):
    """The job is in the morgue: it will not run again unless somebody requeues it.

    :ivar result: what is known of it, with error and traceback.
    """

    def __init__(self, result: Result) -> None:
        self.result = result
        super().__init__(
            f"Job {result.id} of {result.task or '?'} is in the morgue: "
            f"{result.error or 'no error was noted'}"
        )


class UnknownSet(EmqError, ValueError):
    """There is no such set of jobs."""


# -- the way to the server --------------------------------------------------------------------


class ServerError(EmqError):
    """The server could not be reached or did not accept the call."""


class OutcomeUnknown(ServerError):
    """The call was sent, but no answer came back: it may or may not have been carried out.

    Raised by enqueue after its own repeats: nought or one job exists, never two.
    """


class ServerRefused(ServerError):
    """The server answered that it does not take this write now; nothing was stored.

    For instance out of memory (``OOM``), too few replicas (``NOREPLICAS``), a failing disk
    (``MISCONF``), a replica (``READONLY``) or a server that is still loading (``LOADING``).
    """


class TooFewReplicas(EmqError):
    """The jobs are admitted, but too few replicas have said in time that they have them.

    Raised by an enqueue with ``wait_replicas``. The jobs run, unless the primary is lost before a
    replica has them.

    :ivar jobs: all jobs of the call, in order, as it would have answered them.
    :ivar wanted: how many replicas should have them. :ivar replicas: how many have.
    """

    def __init__(
        self,
        message: str,
        jobs: Sequence[Job],
        wanted: int,
        replicas: int,
        again: Callable[[], list[Job]],
    ) -> None:
        super().__init__(message)
        self.jobs = list(jobs)
        self.wanted = wanted
        self.replicas = replicas
        self._again = again

    def again(self) -> list[Job]:
        """Send the same jobs again and wait again; answers them, or raises what enqueue raises.

        A job that is there, or that was finished less than two minutes after the last sending,
        is not enqueued a second time.
        """
        return self._again()

    async def aagain(self) -> list[Job]:
        """`again`, awaited."""
        return await sync_to_async(self._again)()


# -- raised by a task to say what shall become of its job -------------------------------------


class Verdict(BaseException):
    """What a task raises to settle its own job; not an error.

    Derived from BaseException, so that a task's ``except Exception`` does not swallow it.
    """


class Retry(Verdict):
    """Count a failure and run the job again, after ``in_`` or the task's backoff.

    :param in_: seconds or a timedelta.

    >>> raise emq.Retry(in_=30, reason="the mail server answered 451")
    """

    def __init__(self, *, in_: float | timedelta | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.in_ = None if in_ is None else _wait("Retry", in_)
        self.reason = str(reason)


class Snooze(Verdict):
    """Run the job again in ``in_``; this is no failure and spends no attempt.

    :param in_: seconds or a timedelta.

    >>> raise emq.Snooze(60)
    """

    def __init__(self, in_: float | timedelta, *, reason: str = "") -> None:
        super().__init__(reason)
        self.in_ = _wait("Snooze", in_)
        self.reason = str(reason)


class Discard(Verdict):
    """Drop the job: it is no longer wanted and leaves no trace but a counter."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = str(reason)


class Bury(Verdict):
    """Put the job into the morgue at once, with this reason and without further attempts."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = str(reason)


class LeaseLost(Verdict):
    """The lease was lost: another worker may run this job now.

    Raised by `JobContext.check`. The run ends; it could not settle the job anyway.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = str(reason)


class JobCancelled(LeaseLost):
    """The job was cancelled: it is in the morgue, and this run cannot settle it."""


# -- raised by a worker in a task -------------------------------------------------------------


class TimeLimitExceeded(BaseException):
    """The job ran longer than its timeout. The attempt fails, unless the task catches it.

    Derived from BaseException, so that neither a task's ``except Exception`` swallows it, nor what
    the task calls (a client of a server, say) takes it for a time-out of its own and tries again.

    :ivar seconds: the timeout.
    """

    seconds = 0.0

    def __init__(self, seconds: float | None = None) -> None:
        if seconds is not None:
            self.seconds = seconds
        super().__init__(f"The job ran longer than its timeout of {self.seconds:g} s.")


def _wait(name: str, value: float | timedelta) -> float:
    """Seconds; refused here, in the task, where the mistake is."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not 0 <= seconds <= 315_360_000:
        raise InvalidOption(
            f"{name}: in_ is {value!r}. Use a timedelta or seconds, from 0 to ten years."
        )
    return float(seconds)
