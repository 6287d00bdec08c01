"""Times that options give: seconds, timedeltas and instants, as the scripts take them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from .exceptions import InvalidOption

Seconds = float | timedelta

YEAR = 365 * 86_400


def seconds_of(value: Seconds) -> float:
    """A timedelta as seconds; anything else as it is."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def milliseconds(name: str, value: Seconds, *, least: float) -> int:
    """A time in ms. Raises InvalidOption below `least` seconds, above a year, or for no time."""
    seconds = seconds_of(value)
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not least <= seconds <= YEAR:
        raise InvalidOption(
            f"{name} is {value!r}. Use a timedelta or seconds, from {least} to {YEAR} (a year)."
        )
    return int(seconds * 1000)


def lifetimes(ttl: Seconds | Mapping[str, Seconds]) -> tuple[int, int]:
    """A result_ttl in ms, for done jobs and for dead ones; 0 for a dead one that has none."""
    if not isinstance(ttl, Mapping):
        return milliseconds("result_ttl", ttl, least=0), 0
    for outcome in ttl:
        if outcome not in ("done", "dead"):
            raise InvalidOption(
                f"result_ttl has {outcome!r}. The outcomes are 'done' and 'dead', for instance "
                "{'done': 3600, 'dead': 86400}."
            )
    done = milliseconds("result_ttl['done']", ttl.get("done", 0), least=0)
    if "dead" not in ttl:
        return done, 0
    return done, milliseconds("result_ttl['dead']", ttl["dead"], least=1)


def expiry(value: Seconds | datetime, due: str = "") -> str:
    """When a job expires: ``+ms`` from its admission by the server's clock, or ms since 1970.

    :param due: when it is to run, as `jobs.due_in` and `jobs.due_at` write it.
    Raises InvalidOption for what is no such time, and for a job that would expire before it is due.
    """
    if not isinstance(value, datetime):
        at = f"+{milliseconds('expires', value, least=0.001)}"
    elif value.utcoffset() is None:
        raise InvalidOption(
            f"expires is {value!r}. Use seconds, a timedelta, or an aware datetime, for instance "
            "timezone.now() + timedelta(hours=1)."
        )
    else:
        at = str(max(int(value.timestamp() * 1000), 0))
    if due and (due[0] == "+") == (at[0] == "+") and int(due) >= int(at):
        raise InvalidOption(
            f"expires is {value!r}, and the job is not due before that: it would never run. Make "
            "expires later, or run_in or run_at earlier."
        )
    return at


def limits(timeout: Seconds | None, kill_after: Seconds | None) -> tuple[int | None, int | None]:
    """The limits of a task in ms; None for the setting's, 0 for none. Raises InvalidOption."""
    soft = None if timeout is None else milliseconds("timeout", timeout, least=0)
    hard = None if kill_after is None else milliseconds("kill_after", kill_after, least=0)
    if hard is not None and soft is None:
        raise InvalidOption(
            f"kill_after is {kill_after!r}, and there is no timeout, from whose end it counts. "
            "Give both."
        )
    return soft, hard
