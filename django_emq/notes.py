"""What a run says of itself: how far it has come, and lines of a log.

It is kept here until the worker takes it along: of the progress the newest, of the lines so many as
a row keeps. So a task may say something a million times, and the server hears of it five times a
second.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from datetime import UTC, datetime
from typing import Any, NamedTuple

from .conf import settings
from .exceptions import InvalidOption, NoCurrentJob
from .jobs import shorten
from .redact import eraser

LINE_MAX = 1000  # bytes of a line of the log
NOTE_MAX = 200  # bytes of the note of a progress
MOST = 1e15  # what `done` and `total` are below

Step = tuple[float, float | None, str]  # done, total, note
Line = tuple[float, str]  # seconds since 1970 by the clock of the worker's machine, text


class Progress(NamedTuple):
    """How far a job has come.

    :ivar done: how much is done. :ivar total: of how much; None where that is not known.
    :ivar note: what it does now, in a few words.
    """

    done: float | None = None
    total: float | None = None
    note: str = ""

    @property
    def percent(self) -> float | None:
        """From 0 to 100; None where no total is known."""
        if self.done is None or not self.total or self.total < 0:
            return None
        return min(max(100 * self.done / self.total, 0.0), 100.0)

    def __str__(self) -> str:
        said = "" if self.done is None else _shown(self.done)
        if self.total is not None:
            said += f"/{_shown(self.total)}"
        if self.percent is not None:
            said += f" ({self.percent:.0f} %)"
        return " ".join(filter(None, (said, self.note)))


def _shown(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)


def read_progress(text: str) -> Progress | None:
    """What the field ``progress`` of a row says; None for an empty one.

    What another program has noted is a number from 0 to 100, with or without a percent sign, or
    else a note.
    """
    if not text:
        return None
    try:
        said = json.loads(text.strip().removesuffix("%"))
    except (ValueError, RecursionError):
        said = None
    if isinstance(said, dict):
        done, total, note = said.get("done"), said.get("total"), said.get("note", "")
        if _number(done) and (total is None or _number(total)) and isinstance(note, str):
            return Progress(done, total, note)
    if _number(said) and 0 <= said <= 100:
        return Progress(said, 100)
    return Progress(note=text)


def _number(value: Any) -> bool:
    # NaN fails the comparison.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return bool(-MOST < value < MOST)


class Notes:
    """What one run has said and nobody has taken along yet. Any thread may add to it.

    :ivar waiting: whether the worker knows that something is here.
    """

    __slots__ = ("_erase", "lines", "step", "waiting")

    def __init__(self) -> None:
        self.step: Step | None = None
        self.lines: deque[Line] = deque(maxlen=settings().log_max)
        self.waiting = False
        self._erase: Any = None

    def take(self) -> tuple[Step | None, list[Line]]:
        """All that is here; it is here no more."""
        self.waiting = False  # first: whatever is added from now on is told anew
        step, self.step = self.step, None
        lines = []
        while self.lines:
            lines.append(self.lines.popleft())
        return step, lines

    def give_back(self, step: Step | None, lines: list[Line]) -> None:
        """Put what was taken and has not arrived before what has been said since."""
        if self.step is None:
            self.step = step
        room = (self.lines.maxlen or 0) - len(self.lines)
        self.lines.extendleft(reversed(lines[len(lines) - room :] if room < len(lines) else lines))

    def written(self, step: Step, payload: bytes) -> str:
        """A progress as the row keeps it: JSON, with the secrets of the arguments taken out."""
        done, total, note = step
        said: dict[str, Any] = {"done": +done}
        if total is not None:
            said["total"] = +total
        if note:
            said["note"] = shorten(self._clean(note, payload), NOTE_MAX)
        return json.dumps(said, ensure_ascii=False, separators=(",", ":"))

    def line(self, line: Line, payload: bytes) -> str:
        """A line as the log keeps it: with its time, secrets taken out, no longer than LINE_MAX."""
        at, text = line
        when = datetime.fromtimestamp(at, UTC)
        return shorten(f"{when:%Y-%m-%d %H:%M:%S} {self._clean(text, payload)}", LINE_MAX)

    def _clean(self, text: str, payload: bytes) -> str:
        if self._erase is None:
            self._erase = eraser(payload)
        cleaned: str = self._erase(text)
        return cleaned


def check_step(done: Any, total: Any, note: Any) -> Step:
    """A progress as it is kept; raises InvalidOption for what is no number."""
    # Written out, since a task may call it at every step of a loop.
    if not (isinstance(done, (int, float)) and -MOST < done < MOST):
        raise _no_number("done", done)
    if total is not None and not (isinstance(total, (int, float)) and -MOST < total < MOST):
        raise _no_number("total", total)
    return done, total, note and short(note, NOTE_MAX)


def _no_number(name: str, value: Any) -> InvalidOption:
    return InvalidOption(f"{name} is {value!r}. Use a number, for instance job.progress(3, 10).")


def short(text: Any, limit: int) -> str:
    """A text that is not much longer than what is kept; it is cut when its secrets are out."""
    said = str(text)
    return said if len(said) <= 4 * limit else said[: 4 * limit]


def line_of(text: Any) -> Line:
    """A line for the log, said now."""
    return time.time(), short(text, LINE_MAX)


class JobLogHandler(logging.Handler):
    """A handler of Python's logging: what is logged inside a job goes into the job's log, too.

    Outside of a job it does nothing.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Put one record into the log of the current job."""
        from .context import current_job

        try:
            current_job().log(self.format(record))
        except NoCurrentJob:
            return
        except Exception:
            self.handleError(record)
