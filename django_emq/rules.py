"""When a schedule fires: a cron expression in a time zone, or a period.

A time is in ms since 1970. What follows a time is computed from that time and never from a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from .exceptions import InvalidOption

MISFIRES = ("fire_once", "skip", "fire_all")
GRACE_MS = 60_000  # how late a time may be for `skip` not to leave it out
ALL_MAX = 100  # jobs that `fire_all` makes at once
EVERY_MAX = 366 * 86_400_000
WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# Seconds in which the newest times before an instant are looked for, each if those before it held
# too few. So few times are computed, however dense they are and however long an outage was.
WINDOWS = (60, 3_600, 86_400, 31 * 86_400, 366 * 86_400, 10 * 366 * 86_400)


@dataclass(frozen=True)
class Every:
    """A period: multiples of it since 1970 by UTC, or from any other first time on."""

    every_ms: int

    def __post_init__(self) -> None:
        if not 1000 <= self.every_ms <= EVERY_MAX:
            raise InvalidOption(
                f"The period is {self.every_ms / 1000:g} s. Use 1 second up to 366 days."
            )

    def first(self, now: int) -> int:
        """The first time after an instant."""
        return (now // self.every_ms + 1) * self.every_ms

    def after(self, tick: int) -> int:
        """The time that follows a time."""
        return tick + self.every_ms

    def newest(self, planned: int, now: int, count: int) -> list[int]:
        """The newest times from one of them up to an instant, at most `count`, in order."""
        last = (now - planned) // self.every_ms
        first = max(last - count + 1, 0)
        return [planned + n * self.every_ms for n in range(first, last + 1)] or [planned]

    def __str__(self) -> str:
        return f"every {timedelta(milliseconds=self.every_ms)}"


@dataclass(frozen=True)
class Cron:
    """A cron expression of five fields, or six with seconds first, in a time zone.

    What happens in the night of a clock change is `cronsim`'s rule, which is that of Debian's cron:
    see docs/schedules.md.
    """

    cron: str
    tz: str

    def __post_init__(self) -> None:
        try:
            next(CronSim(self._expression, datetime(2026, 1, 1, tzinfo=self._zone)))
        except CronSimError as error:
            raise InvalidOption(
                f"The cron expression {self.cron!r} cannot be read: {error}. Use five fields "
                "(minute hour day month weekday), six with seconds first, or @daily and the like."
            ) from error
        except StopIteration as error:
            raise InvalidOption(
                f"The cron expression {self.cron!r} fits no day at all. Change its day or month."
            ) from error

    @cached_property
    def _expression(self) -> str:
        return WORDS.get(self.cron.strip().lower(), self.cron)

    @cached_property
    def _zone(self) -> ZoneInfo:
        try:
            return ZoneInfo(self.tz)
        except (ValueError, OSError, LookupError) as error:
            raise InvalidOption(
                f"There is no time zone {self.tz!r} here. Use a name like 'Europe/Berlin' or "
                "'UTC'; where a system has no zones, install the package tzdata."
            ) from error

    def first(self, now: int) -> int:
        """The first time after an instant."""
        return next(self._from(now))

    after = first

    def newest(self, planned: int, now: int, count: int) -> list[int]:
        """The newest times from one of them up to an instant, at most `count`, in order."""
        found: deque[int] = deque([planned], maxlen=count)
        for seconds in WINDOWS:
            start = max(now - seconds * 1000, planned)
            found = deque([planned] if start == planned else [], maxlen=count)
            for tick in self._from(start):
                if tick > now:
                    break
                found.append(tick)
            if len(found) == count or start == planned:
                break
        return list(found) or [planned]

    def _from(self, start: int) -> Iterator[int]:
        """The times after an instant, each later than the one before.

        `cronsim` may answer one that is past: inside a repeated hour it counts from the first pass.
        """
        last = start
        moments = CronSim(self._expression, datetime.fromtimestamp(start / 1000, self._zone))
        for moment in moments:
            tick = int(moment.timestamp()) * 1000
            if tick > last:
                yield tick
                last = tick

    def __str__(self) -> str:
        return f"{self.cron} ({self.tz})"


Rule = Every | Cron


def read(record: dict[str, str]) -> Rule | None:
    """The rule that a record on the server has; None where it has none. Raises InvalidOption."""
    if record.get("cron"):
        return Cron(record["cron"], record.get("tz") or "UTC")
    every = record.get("every_ms", "")
    return Repeat(int(every)) if every.isdecimal() and 0 < int(every) <= EVERY_MAX else None


class Repeat(Every):
    """The period of a plain `repeat_register`, which may be as short as a millisecond."""

    def __post_init__(self) -> None:
        """Nothing to refuse."""


def coming(rule: Rule, now: int, count: int) -> list[int]:
    """The next times after an instant."""
    found = [rule.first(now)]
    while len(found) < count:
        found.append(rule.after(found[-1]))
    return found


def fires(rule: Rule, misfire: str, planned: int, now: int) -> tuple[list[int], int]:
    """Which times get a job at an instant, of those from `planned` on; and the next one.

    fire_once: the newest. skip: the newest, unless it is too late by GRACE_MS. fire_all: all, but
    no more than the newest ALL_MAX.
    """
    ticks = rule.newest(planned, now, ALL_MAX if misfire == "fire_all" else 1)
    following = rule.after(ticks[-1])
    if misfire == "skip" and now - ticks[-1] > GRACE_MS:
        return [], following
    return ticks, following


def instant(ms: int) -> datetime:
    """A time as an aware datetime, in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)
