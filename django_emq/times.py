"""Times as options of a task: seconds or timedeltas, by outcome where they may differ."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from .exceptions import InvalidOption

Seconds = float | timedelta

YEAR = 365 * 86_400


def seconds_of(value: Seconds) -> float:
    """A time in seconds."""
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
