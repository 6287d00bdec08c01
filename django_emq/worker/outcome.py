"""What shall become of a job after its run: the verb that the courier sends."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from ..backoff import DEFAULT, resolve
from ..conf import Settings, settings
from ..context import JobContext
from ..exceptions import (
    Bury,
    Discard,
    EmqError,
    LeaseLost,
    PayloadTooLarge,
    Retry,
    Snooze,
    UnknownTask,
)
from ..jobs import due_in, shorten
from ..log import get_logger
from ..redact import eraser
from ..registry import AnyTask

logger = get_logger("worker")

LINE_MAX = 300  # characters of an error in a log line


class Outcome(NamedTuple):
    """A verb of `scripts`, and what it takes beside id and token."""

    verb: str
    context: JobContext
    details: tuple[Any, ...] = ()
    option: int = 0  # what holds for a whole call: keep_ms of complete, max_attempts of retry


def finished(context: JobContext, task: AnyTask, result: Any, *, passes: bool = False) -> Outcome:
    """The outcome of a task that returned. Raises TypeError for a result that is not JSON.

    A result larger than MAX_PAYLOAD raises PayloadTooLarge.

    :param passes: whether it is for the next job of a chain.
    """
    if not task.keep_ms and not passes:  # nobody wants it
        return Outcome("complete", context, ("",))
    try:
        text = json.dumps(result, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"The result cannot be kept: {error}. Return what JSON can carry, or leave out "
            "result_ttl."
        ) from error
    limit = settings().max_payload
    if len(text) > limit:
        raise PayloadTooLarge(f"The result has {len(text)} bytes, MAX_PAYLOAD allows {limit}.")
    return Outcome("complete", context, (text,), task.keep_ms)


def failed(context: JobContext, task: AnyTask | None, error: BaseException) -> Outcome:
    """The outcome of a task that raised; never raises itself.

    Where the outcome cannot be worked out, for instance because the task's backoff cannot be
    imported, the attempt has failed and the default policy says when the next one is.
    """
    erase = eraser(context.claimed.payload)
    try:
        return _failed(context, task, error, erase)
    except Exception:
        # The traceback tells of the job's error too, so it is not left to the handlers.
        why = erase(traceback.format_exc())
        logger.error("the outcome of %r could not be worked out: %s", context, why)
        delay_ms = int(DEFAULT(context.attempt) * 1000)
        details = (delay_ms, shorten(erase(describe(error))), _trace(error, erase))
        return Outcome("retry", context, details, Settings().max_attempts)


def _failed(
    context: JobContext, task: AnyTask | None, error: BaseException, erase: Callable[[str], str]
) -> Outcome:
    """The outcome of a task that raised.

    :param task: None when the payload could not be read, or names no task of this worker.
    :param erase: takes secrets out of a text.
    """
    if isinstance(error, Snooze):
        return Outcome("snooze", context, (due_in(error.in_),))
    if isinstance(error, Discard):
        return Outcome("discard", context)
    if isinstance(error, LeaseLost):
        return Outcome("release", context)  # refused, if it was lost; and if not, no failure
    if isinstance(error, Bury):
        return Outcome("bury", context, (shorten(erase(error.reason or "buried by its task")), ""))
    if task is None and not isinstance(error, UnknownTask):
        return Outcome("bury", context, (shorten(erase(describe(error))), ""))
    conf = settings().queue(context.queue)
    own = task.backoff if task is not None else None
    policy = conf.backoff if own is None else resolve(own)
    if isinstance(error, Retry):
        text, trace = erase(error.reason or "the task asked for a retry"), ""
    else:
        text = erase(describe(error))
        trace = "" if task is None else _trace(error, erase)
    seconds = error.in_ if isinstance(error, Retry) else None
    if seconds is None:
        seconds = policy(context.attempt, error)
    if seconds is None:
        return Outcome("bury", context, (shorten(text), trace))
    details = (int(seconds * 1000), shorten(text), trace)
    return Outcome("retry", context, details, conf.max_attempts)


def describe(error: BaseException) -> str:
    """One line on an error, also on one whose own text cannot be had."""
    cls = type(error)
    name = f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")
    try:
        text = str(error)
    except BaseException:  # a broken __str__ must not cost the job
        text = "(its text could not be read)"
    return f"{name}: {text}" if text else name


def _trace(error: BaseException, erase: Callable[[str], str]) -> str:
    try:
        return shorten(erase("".join(traceback.format_exception(error))))
    except BaseException:  # likewise
        return "(the traceback could not be written)"


def report(outcome: Outcome, verdict: Any) -> None:
    """One line on a settled job, with id, task, token and duration."""
    context, verb, seconds = outcome.context, outcome.verb, outcome.context.seconds
    if isinstance(verdict, EmqError):
        logger.info("%s refused for %r after %.3f s: %s", verb, context, seconds, verdict)
    elif verdict == 0:
        logger.info("%s: %r is gone, after %.3f s", verb, context, seconds)
    elif verdict == "scheduled":
        pause, text = outcome.details[0] / 1000, _line(outcome.details[1])
        logger.warning(
            "%r failed after %.3f s, runs again in %.1f s: %s", context, seconds, pause, text
        )
    elif verdict == "dead":
        text = _line(outcome.details[1])
        logger.error("%r failed after %.3f s, is in the morgue: %s", context, seconds, text)
    elif verb == "bury":
        text = _line(outcome.details[0])
        logger.error("%r is in the morgue after %.3f s: %s", context, seconds, text)
    else:
        logger.debug("%s: %r after %.3f s", verb, context, seconds)


def _line(text: str) -> str:
    """An error as one line of a log; the row keeps it whole."""
    line = " ".join(text.split())
    return line if len(line) <= LINE_MAX else line[:LINE_MAX] + " …"
