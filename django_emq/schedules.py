"""Schedules that the code declares: `cron` and `every` above a task, and the setting SCHEDULES.

Nothing here asks the server: whoever ticks enters them there (`ticker`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

from . import partitions, registry, signing
from .conf import Settings, settings
from .exceptions import InvalidOption, InvalidTask
from .jobs import encode
from .keys import check_queue
from .plans import Plan, check_name, period_ms
from .repeats import Entry
from .rules import Rule

T = TypeVar("T")

# By name, with the task that was decorated: a module that is loaded again makes another one.
_decorated: dict[str, tuple[Plan, Any]] = {}


def cron(
    expression: str,
    *,
    tz: str | None = None,
    name: str | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    misfire: str = "fire_once",
    owner: str = "",
) -> Callable[[T], T]:
    """Have a task run at the times of a cron expression; stands above ``@emq.task``.

    :param expression: ``minute hour day month weekday``, six fields with seconds first, or
        ``@hourly``, ``@daily``, ``@weekly``, ``@monthly``, ``@yearly``.
    :param tz: its time zone; Django's TIME_ZONE by default.
    :param name: of the schedule; the task's by default. A task with two schedules names them.
    :param args, kwargs: of each job.
    :param misfire: what becomes of times that nobody could keep: ``fire_once``, ``skip`` or
        ``fire_all``.
    :param owner: who answers for it, for people.

    Raises InvalidOption, at import, for what cannot be read.

    >>> @emq.cron("0 6 * * *", tz="Europe/Berlin")
    ... @emq.task
    ... def digest() -> None: ...
    """
    rule = {"cron": expression, "tz": tz, "misfire": misfire, "owner": owner}
    return _decorator(name, list(args), dict(kwargs or {}), rule)


def every(
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    name: str | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    misfire: str = "fire_once",
    owner: str = "",
) -> Callable[[T], T]:
    """Have a task run again and again; stands above ``@emq.task``.

    The times are the multiples of the period since 1970, by UTC: ``minutes=10`` is ten past, twenty
    past, and so on, whenever a worker was started. The other options are those of `cron`.

    >>> @emq.every(minutes=10)
    ... @emq.task
    ... def poll() -> None: ...
    """
    whole = days * 86_400 + hours * 3_600 + minutes * 60 + seconds
    rule = {"every_ms": period_ms(whole), "misfire": misfire, "owner": owner}
    return _decorator(name, list(args), dict(kwargs or {}), rule)


def _decorator(
    name: str | None, args: list[Any], kwargs: dict[str, Any], rule: dict[str, Any]
) -> Callable[[T], T]:
    def decorate(task: T) -> T:
        # A task of Django's own API is called by its path.
        path = task.name if isinstance(task, registry.Task) else getattr(task, "module_path", None)
        if not isinstance(path, str):
            raise InvalidTask(
                f"{task!r} is no task, so it cannot have a schedule. Put the schedule above "
                "@emq.task: decorators are applied from the bottom up."
            )
        called = check_name(name or path)
        known = _decorated.get(called)
        if known is not None and (known[1] is task or known[0].task != path):
            raise InvalidOption(
                f"There are two schedules {called!r}. Give one of them another name=."
            )
        _decorated[called] = (Plan(task=path, args=args, kwargs=kwargs, **rule), task)
        return task

    return decorate


def declared() -> dict[str, Plan]:
    """All schedules of the code by name. One in the settings takes the place of a decorator's."""
    found: dict[str, Plan | None] = {name: plan for name, (plan, _) in _decorated.items()}
    found.update(settings().schedules)
    return {name: plan for name, plan in sorted(found.items()) if plan is not None}


class Placed(NamedTuple):
    """A schedule as it is entered on the server, in the queue of its jobs.

    :ivar record: what the server keeps of it.
    """

    queue: str
    name: str
    rule: Rule
    record: dict[str, Any]

    def entry(self, now_ms: int) -> Entry:
        """The same with its first time after an instant."""
        return Entry(self.name, self.rule.first(now_ms), self.record)


def placed(name: str, plan: Plan, conf: Settings, *, source: str = "code") -> Placed:
    """Where a schedule belongs, and its record. Raises an EmqError for an unknown task.

    With partitions it is in one of them, that of its unique key, of the task's partition key or of
    its own name, and so are all of its jobs.
    """
    task = registry.get(plan.task)
    queue = check_queue(plan.queue or task.queue or conf.default_queue, conf.prefix)
    unique = None if task.rule is None else task.rule.of(task.name, plan.args, plan.kwargs)
    key = (unique and unique.digest) or task.partition_key or name
    queue = partitions.place(conf, queue, name, key)
    rule = plan.rule
    priority = task.priority if plan.priority is None else plan.priority
    template = encode(task.name, plan.args, plan.kwargs, limit=conf.max_payload)
    record: dict[str, Any] = {
        "source": source,
        "misfire": plan.misfire,
        "template": signing.sealed(template, seal_of(queue, name)),
        "priority": priority,
        "owner": plan.owner,
    }
    if plan.cron is None:
        record["every_ms"] = plan.every_ms
    else:
        record |= {"cron": plan.cron, "tz": plan.zone}
    text = json.dumps(record, sort_keys=True)
    return Placed(queue, name, rule, {**record, "rule": sha256(text.encode()).hexdigest()[:20]})


def seal_of(queue: str, name: str) -> str:
    """What the signature of a schedule's payload covers beside the payload."""
    return f"schedule:{queue}:{name}"


def by_queue(plans: Mapping[str, Plan]) -> tuple[dict[str, list[Placed]], dict[str, Exception]]:
    """Schedules by the queue that they belong to; and what is wrong with the others, by name."""
    conf = settings()
    found: dict[str, list[Placed]] = {}
    wrong: dict[str, Exception] = {}
    for name, plan in plans.items():
        try:
            one = placed(name, plan, conf)
        except Exception as error:  # a unique key may be made by code of the project
            wrong[name] = error
        else:
            found.setdefault(one.queue, []).append(one)
    return found, wrong
