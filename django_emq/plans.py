"""What a schedule says: which task, with what, when. Read from settings, decorators and rows."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any

from django.conf import settings as django_settings

from .exceptions import InvalidOption
from .jobs import check_priority, sound
from .keys import check_queue
from .rules import MISFIRES, Cron, Every, Rule

NAME_MAX = 128


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One schedule.

    :ivar task: name of the task. :ivar args, kwargs: of each job, as JSON carries them.
    :ivar cron: a cron expression; or :ivar every_ms: a period.
    :ivar tz: time zone of the expression; None for Django's TIME_ZONE.
    :ivar misfire: what becomes of times that nobody could keep: fire_once, skip or fire_all.
    :ivar queue, priority: of the jobs; None for those of the task.
    :ivar owner: who answers for it, for people.
    """

    task: str
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    cron: str | None = None
    every_ms: int | None = None
    tz: str | None = None
    misfire: str = "fire_once"
    queue: str | None = None
    priority: int | None = None
    owner: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.task, str) or not self.task:
            raise InvalidOption("A schedule needs a task: its dotted path, 'shop.tasks.digest'.")
        if (self.cron is None) is (self.every_ms is None):
            raise InvalidOption("A schedule needs either a cron expression or a period: give one.")
        if self.misfire not in MISFIRES:
            raise InvalidOption(f"misfire is {self.misfire!r}. Use one of: {', '.join(MISFIRES)}.")
        if self.tz is not None and self.cron is None:
            raise InvalidOption("tz is for cron expressions. A period is the same in all zones.")
        if not isinstance(self.args, list) or not isinstance(self.kwargs, dict):
            raise InvalidOption("args must be a list, and kwargs a dict.")
        sound(self.args, "args")
        sound(self.kwargs, "kwargs")
        if self.queue is not None:
            check_queue(self.queue, prefix="")
        if self.priority is not None:
            check_priority(self.priority)
        _ = self.rule

    @property
    def zone(self) -> str:
        """The time zone of the expression."""
        return self.tz or django_settings.TIME_ZONE or "UTC"

    @property
    def rule(self) -> Rule:
        """When it fires. Raises InvalidOption."""
        if self.cron is not None:
            return Cron(str(self.cron), str(self.zone))
        return Every(self.every_ms or 0)


def check_name(name: object) -> str:
    """Return the name of a schedule, or raise InvalidOption."""
    fine = isinstance(name, str) and name.isprintable() and name == name.strip()
    if not fine or not 1 <= len(str(name)) <= NAME_MAX:
        raise InvalidOption(
            f"Schedule name {name!r} is not allowed. Use 1 to {NAME_MAX} printable characters."
        )
    return str(name)


def period_ms(value: object) -> int:
    """A period in ms, given as seconds or a timedelta. Raises InvalidOption."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds != seconds:
        raise InvalidOption(f"every is {value!r}. Use seconds or a timedelta.")
    if not 0 <= seconds < 1e9:
        raise InvalidOption(f"every is {value!r}. Use 1 second up to 366 days.")
    return round(seconds * 1000)


OPTIONS = tuple(sorted({one.name for one in fields(Plan)} - {"every_ms"} | {"every"}))


def read_plans(value: object) -> Mapping[str, Plan | None]:
    """The setting SCHEDULES. Raises InvalidOption with the name of the schedule.

    None in the place of a dict takes a schedule away that a decorator declares.
    """
    if not isinstance(value, Mapping):
        raise InvalidOption(
            "Give a dict of dicts, for instance "
            "{'digest': {'task': 'shop.tasks.digest', 'cron': '0 6 * * *'}}."
        )
    found = {}
    for name, options in value.items():
        check_name(name)
        try:
            found[name] = None if options is None else _plan(options)
        except (InvalidOption, TypeError) as error:
            raise InvalidOption(f"Schedule {name!r}: {error}") from error
    return found


def _plan(options: object) -> Plan:
    if not isinstance(options, Mapping):
        raise InvalidOption(f"it is {reprlib.repr(options)}. Give a dict, or None for no schedule.")
    given = dict(options)
    for name in given:
        if name not in OPTIONS:
            (near,) = difflib.get_close_matches(str(name), OPTIONS, n=1, cutoff=0)
            raise InvalidOption(
                f"{name!r} is no option of a schedule. The nearest is {near!r}; all are "
                f"{', '.join(OPTIONS)}."
            )
    if "every" in given:
        given["every_ms"] = period_ms(given.pop("every"))
    for name, kind in (("args", list), ("kwargs", dict)):
        if isinstance(given.get(name), (tuple, Mapping)):
            given[name] = kind(given[name])
    return Plan(**{"task": "", **given})
