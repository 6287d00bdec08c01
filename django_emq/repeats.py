"""The verbs of schedules: register, declare, advance, cancel. Reached through `scripts`.

A schedule is a name in the zset `repeat` of its queue, scored by its next time, and a record beside
it. Its tick is an `enqueue` with a `Tick`: of all who see that the time has come, one is let in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from .calls import Way, batch_of, bounded, keys_of, run

OFF = math.inf  # the next time of a schedule that is switched off
FIELDS = ("rule", "every_ms", "cron", "tz", "misfire", "template", "priority")


class Tick(NamedTuple):
    """Which tick of which schedule a job is; times in ms since 1970.

    :ivar was: the next time that the schedule has as long as nobody has made this tick; None for a
        run between two times, which moves nothing.
    :ivar next_ms: the one that it shall have.
    :ivar planned: which time the job stands for.
    :ivar rule: the `rule` of the record that all this was made from; '' for none.
    """

    name: str
    was: int | None
    next_ms: int
    planned: int
    rule: str

    @property
    def words(self) -> str:
        """As the script takes it."""
        moves = "- -" if self.was is None else f"{self.was} {self.next_ms}"
        return f"{moves} {self.planned} {self.rule or '-'} {self.name}"


class DueSchedule(NamedTuple):
    """A schedule whose time has come, with what its record says (texts, '' where it is silent)."""

    name: str
    planned: int  # ms since 1970
    record: dict[str, str]


class Due(NamedTuple):
    """The answer of one look at the schedules of a queue."""

    now_ms: int  # the server's clock
    next_ms: int  # ms until the first of those that are not due; -1 for none
    schedules: list[DueSchedule]


class Declared(NamedTuple):
    """How many schedules one `declare` entered or changed, and how many it removed."""

    entered: int
    removed: int


class Entry(NamedTuple):
    """A schedule as it is entered: its next time in ms (OFF for none), and its record.

    One without a record is left as it is, and is not one that its source has no more.
    """

    name: str
    next_ms: float = OFF
    record: Mapping[str, Any] = MappingProxyType({})


def repeat_register(
    client: Way, queue: str, name: str, *, every_ms: int, template: str, first_ms: int
) -> bool:
    """Have a payload enqueued every so many ms, from a time on; False when the name is taken."""
    k = keys_of(client, queue)
    args = (name, every_ms, template, first_ms)
    return bool(run(client, "repeat_register", (k.repeat, k.record(name)), args))


def repeat_cancel(client: Way, queue: str, name: str) -> bool:
    """Forget a schedule; whether it was there. Its jobs stay."""
    k = keys_of(client, queue)
    return bool(run(client, "repeat_cancel", (k.repeat, k.record(name)), (name,)))


def repeat_advance(
    client: Way, queue: str, name: str, next_ms: float, *, was: int | None = None, by: str = ""
) -> bool:
    """Set the next time of a schedule without a job; OFF switches it off. Whether it was set.

    :param was: set it only if this is its next time now.
    :param by: the operator who asks.
    """
    k = keys_of(client, queue)
    args = (name, _time(next_ms), "" if was is None else was, client.trail_max, by)
    return bool(run(client, "repeat_advance", (k.repeat, k.record(name), k.trail), args))


def repeat_due(client: Way, queue: str, *, batch: int = 100) -> Due:
    """Which schedules of a queue are due, by the server's clock, the longest due first."""
    k = keys_of(client, queue)
    result: Due = run(client, "repeat_due", (k.repeat,), (batch_of(batch),), _due)
    return result


def _due(reply: list[Any]) -> Due:
    now, next_ms, found = reply
    schedules = [
        DueSchedule(
            name.decode("utf-8", "backslashreplace"),
            int(float(planned)) if math.isfinite(float(planned)) else 0,
            {
                field: (value or b"").decode("utf-8", "backslashreplace")
                for field, value in zip(FIELDS, values, strict=True)
            },
        )
        for name, planned, *values in found
    ]
    return Due(now, next_ms, schedules)


def declare(
    client: Way, queue: str, source: str, entries: Sequence[Entry], *, since: int | None = None
) -> Declared:
    """Enter the schedules of a source in a queue, in the place of those of the same names.

    :param source: ``code`` or ``database``.
    :param since: these are all of this source in this queue, says a process that runs since then
        (ms by the server's clock): the others go. Not heeded when a later process has spoken.
    """
    bounded("declare", len(entries))
    k = keys_of(client, queue)
    keys = [k.repeat, k.meta]
    args: list[Any] = [source, "" if since is None else since]
    for name, next_ms, record in entries:
        keys.append(k.record(name))
        args += (name, _time(next_ms), len(record))
        args += (part for pair in record.items() for part in pair)
    result: Declared = run(client, "declare", keys, args, lambda reply: Declared(*reply))
    return result


def _time(ms: float) -> int | str:
    return int(ms) if math.isfinite(ms) else "inf"
