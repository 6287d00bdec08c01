"""What became of a job, for who enqueued it: looked up, or waited for without polling.

The row is the only record. Who waits has its name noted in the row (`lua/wait.lua`) and sleeps in a
BLPOP on a list of its own, until whatever ends the job leaves a word there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Any

from asgiref.sync import sync_to_async

from . import connections, inspector
from .conf import settings
from .exceptions import JobDied, JobGone, NotFinished, ServerError
from .ids import is_job_id, minted_at
from .inspector._read import instant, number, text
from .jobs import Job, decode
from .listening import BEAT, Listener, Pause, Pop
from .notes import Progress, read_progress
from .times import Seconds, seconds_of

FIELDS = (
    "attempts", "state", "payload", "failures", "progress", "last_error", "traceback",
    "started_at", "finished_at", "result",
)  # fmt: skip
ENDED = {"done", "dead", "gone"}
AWAY = 30.0  # seconds that a waiter bears a server which does not answer
PAUSE_MIN, PAUSE_MAX = 0.1, 2.0

# What is to be done next in a wait: called, or awaited.
Step = Callable[[], Any]
Course = Generator[Step, Any, "Result"]


@dataclass(frozen=True, slots=True)
class Result:
    """What was known of a job at one moment; `refresh` and `wait` answer a new one.

    :ivar state: ``pending``, ``scheduled``, ``active``, ``done``, ``dead`` (in the morgue) or
        ``gone``: nothing of it is there, or nothing yet (it waits for a commit, or for the job
        before it in a chain).
    :ivar queue: its queue on the server; '' for a job that was not found.
    :ivar attempts: how often it was claimed. :ivar failures: how often it failed.
    :ivar value: what its task returned, where that was kept; None while it is not done.
    :ivar error: the last error, one line. :ivar traceback: where it was raised.
    :ivar ended_by: of a job that is gone, what a waiter heard: ``done``, ``discarded``,
        ``removed`` or ``replaced``.
    """

    id: str
    queue: str
    state: str
    task: str = ""
    attempts: int = 0
    failures: int = 0
    progress: Progress | None = None
    value: Any = field(default=None, repr=False)
    error: str = ""
    traceback: str = field(default="", repr=False)
    started_at: datetime | None = None
    finished_at: datetime | None = None
    ended_by: str = ""

    @property
    def ended(self) -> bool:
        """Whether the job will not run again, unless somebody gives it another life."""
        return self.state in ENDED

    @property
    def enqueued_at(self) -> datetime | None:
        """When its id was minted, by the clock of who enqueued it."""
        return minted_at(self.id) if is_job_id(self.id) else None

    def refresh(self) -> Result:
        """What is known of the job now."""
        return _look(self.id, [self.queue] if self.queue else None)

    async def arefresh(self) -> Result:
        """`refresh`, awaited."""
        return await sync_to_async(self.refresh)()

    def wait(self, timeout: Seconds | None = None) -> Result:
        """Wait until the job has ended: done, dead or gone. No failed attempt ends it.

        :param timeout: None for no limit; 0 only looks.
        Raises NotFinished when the time is over, and ServerError when the server has not answered
        for half a minute.
        """
        return _drive(_course(self, timeout))

    async def await_(self, timeout: Seconds | None = None) -> Result:
        """`wait`, awaited. It holds up no thread and no event loop."""
        return await _adrive(_course(self, timeout))

    def get(self, timeout: Seconds | None = None) -> Any:
        """Wait for the job, and answer what its task returned.

        Raises NotFinished, as `wait` does; JobDied, with the error, for a job in the morgue; and
        JobGone where no result is kept.
        """
        return self.wait(timeout)._kept()

    async def aget(self, timeout: Seconds | None = None) -> Any:
        """`get`, awaited."""
        return (await self.await_(timeout))._kept()

    def _kept(self) -> Any:
        if self.state == "done":
            return self.value
        if self.state == "dead":
            raise JobDied(self)
        raise JobGone(_GONE[self.ended_by] % self.id)


_GONE = {
    "done": "Job %s was completed, and its result is not kept. Give its task a result_ttl.",
    "discarded": "Job %s was dropped by its task.",
    "removed": "Job %s was removed by an operator.",
    "replaced": "Job %s had to go for another one with the same unique key.",
    "": (
        "Nothing of job %s is there: it was completed, dropped or removed, or waits for a commit "
        "or for the job before it. The result_ttl of its task says how long its result is kept."
    ),
}


def result(job: Job | str, queue: str | None = None) -> Result:
    """What is known of a job, given as `enqueue` answered it or by its id.

    :param queue: where an id is looked for; in all queues when it is left out.
    Raises ServerError.
    """
    if isinstance(job, Job):
        return _look(job.id, [job.queue])
    return _look(job, None if queue is None else list(settings().parts(queue)))


async def aresult(job: Job | str, queue: str | None = None) -> Result:
    """`result`, awaited."""
    return await sync_to_async(result)(job, queue)


def _look(job_id: str, names: list[str] | None, ended_by: str = "") -> Result:
    client = connections.client()
    names = inspector.queues(client) if names is None else names
    found = inspector.first_row(client, job_id, names, FIELDS)
    if found is None:
        return Result(job_id, names[0] if len(names) == 1 else "", "gone", ended_by=ended_by)
    queue, row = found
    words = {name: text(value) for name, value in row.items()}
    state = words.get("state", "")
    return Result(
        id=job_id,
        queue=queue,
        state=state,
        task=_task(row.get("payload", b"")),
        attempts=number(words["attempts"]),
        failures=number(words.get("failures")),
        progress=read_progress(words.get("progress", "")),
        value=_value(words.get("result", "")) if state == "done" else None,
        error=words.get("last_error", ""),
        traceback=words.get("traceback", ""),
        started_at=_instant(words.get("started_at")),
        finished_at=_instant(words.get("finished_at")) if state in ENDED else None,
    )


def _task(payload: bytes) -> str:
    try:
        return decode(payload).task
    except ValueError:
        return ""


def _value(kept: str) -> Any:
    try:
        return json.loads(kept) if kept else None
    except (ValueError, RecursionError):  # another program wrote it
        return None


def _instant(ms: str | None) -> datetime | None:
    return instant(number(ms)) if ms else None


# -- waiting ----------------------------------------------------------------------------------


def _course(known: Result, timeout: Seconds | None) -> Course:
    """The steps of a wait; each is called or awaited by who drives it, and its answer sent in."""
    if known.ended and known.state != "gone":
        return known
    seconds = None if timeout is None else seconds_of(timeout)
    end = None if seconds is None else monotonic() + seconds
    look = partial(_look, known.id, [known.queue] if known.queue else None)
    if not known.queue or (seconds is not None and seconds <= 0):
        known = yield look
        if known.ended:
            return known
        if seconds is not None and seconds <= 0:
            raise NotFinished(known, seconds)
    listener = Listener(connections.client(), known.queue, known.id)
    pause, away_at, word = PAUSE_MIN, 0.0, ""
    try:
        while True:
            left = BEAT if end is None else min(BEAT, end - monotonic())
            try:
                state = yield listener.register
                if word or state in ("done", "dead", "absent"):
                    known = yield partial(look, word)
                    if known.ended:
                        return known
                if left <= 0:
                    raise NotFinished(known, seconds or 0.0)
                yield partial(listener.arm, left)
                word = yield Pop(listener, left)
                pause, away_at = PAUSE_MIN, 0.0
            except ServerError:
                listener.drop()
                away_at = away_at or monotonic()
                if left <= 0 or monotonic() - away_at >= AWAY:
                    raise
                yield Pause(min(pause, max(left, 0.0)))
                pause = min(2 * pause, PAUSE_MAX)
    finally:
        listener.drop()


def _drive(course: Course) -> Result:
    try:
        step = next(course)
        while True:
            try:
                answer = step()
            except BaseException as error:  # for the course to judge
                step = course.throw(error)
            else:
                step = course.send(answer)
    except StopIteration as stop:
        found: Result = stop.value
        return found


async def _adrive(course: Course) -> Result:
    try:
        step = next(course)
        while True:
            try:
                if isinstance(step, Pop | Pause):
                    answer = await step.awaited()
                else:
                    answer = await sync_to_async(step)()
            except BaseException as error:
                step = course.throw(error)
            else:
                step = course.send(answer)
    except StopIteration as stop:
        found: Result = stop.value
        return found
