"""Unique jobs: which key a call has, until when its job holds it, what a conflict leads to.

The rule of a task is checked when the task is made; the key of a call is made when it is enqueued.
What it means on the server is in ``lua/enqueue_unique.lua``.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .exceptions import InvalidArguments, InvalidOption
from .jobs import UniqueKey
from .keys import digest

CONFLICTS = ("reject", "replace", "keep_last", "throttle", "debounce")
UNTIL = ("start", "finish")
WINDOWS = 10  # of silence, that `debounce` waits for at most, unless `max_wait` says more


@dataclass(frozen=True, slots=True)
class Rule:
    """What holds for the calls of a task.

    :ivar until: ``start``, ``finish``, or ``time`` for `hold_ms`.
    :ivar names: arguments that the key is made of; none for all of them.
    :ivar made: makes the key of a call, in place of `names`.
    :ivar skip: parameters of the function that the worker fills.
    """

    until: str
    hold_ms: int
    conflict: str
    max_wait_ms: int
    names: tuple[str, ...]
    made: Callable[..., Any] | None
    signature: inspect.Signature
    skip: int = 0

    def key(self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The key of a call: ``<task>:<text>``. Raises InvalidArguments where it has none."""
        if self.made is None:
            return f"{task}:{self._text(task, args, kwargs)}"
        text = self.made(*args, **kwargs)
        if not isinstance(text, str) or not text:
            raise InvalidOption(f"unique of {task} answered {text!r}. Return a text.")
        return f"{task}:{text}"

    def of(self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> UniqueKey:
        """What a call of the task says of its key."""
        name = digest(self.key(task, args, kwargs))
        return UniqueKey(name, self.until, self.hold_ms, self.conflict, self.max_wait_ms)

    def _text(self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Arguments as JSON, given by position or by name or left to their defaults."""
        try:
            bound = self.signature.bind(*[None] * self.skip, *args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            for parameter in self.signature.parameters.values():
                if parameter.kind is parameter.VAR_KEYWORD:
                    given.update(given.pop(parameter.name))
            chosen = self.names or list(given)[self.skip :]
            values = (
                [given[name] for name in chosen] if self.names else {n: given[n] for n in chosen}
            )
            return json.dumps(values, sort_keys=True, separators=(",", ":"))
        except TypeError as error:
            raise InvalidArguments(f"No unique key can be made for {task}: {error}.") from error
        except KeyError as error:
            raise InvalidArguments(
                f"No unique key can be made for {task}: argument {error} is not given."
            ) from error


def rule(
    func: Callable[..., Any],
    *,
    unique: Any,
    hold_ms: int,
    until: str | None,
    conflict: str | None,
    max_wait_ms: int,
) -> Rule | None:
    """The rule that these options of a task make; None where its jobs are not unique.

    Times are in ms, 0 where they are not given. Raises InvalidOption for what does not go together.
    """
    if unique in (None, False):
        if unique is None and (hold_ms or until or conflict or max_wait_ms):
            raise InvalidOption(
                "unique_for, unique_until, on_conflict and max_wait say more about unique, and "
                "unique is not given. Add it, for instance unique=True."
            )
        return None
    conflict = conflict or "reject"
    if conflict not in CONFLICTS:
        raise InvalidOption(f"on_conflict is {conflict!r}. Use one of: {', '.join(CONFLICTS)}.")
    if until is not None and until not in UNTIL:
        raise InvalidOption(f"unique_until is {until!r}. Use one of: {', '.join(UNTIL)}.")
    if until and hold_ms:
        raise InvalidOption("Both unique_for and unique_until are given. Use one of them.")
    if max_wait_ms and conflict != "debounce":
        raise InvalidOption(f"max_wait goes with on_conflict='debounce', not with {conflict!r}.")
    _check_times(conflict, hold_ms, until)
    signature = inspect.signature(func)
    made = unique if callable(unique) else None
    names = () if made is not None or unique is True else _names(unique, signature)
    if conflict == "debounce":
        wait = max_wait_ms or WINDOWS * hold_ms
        return Rule("start", hold_ms, conflict, wait, names, made, signature)
    kind = "time" if hold_ms else until or "finish"
    return Rule(kind, hold_ms, conflict, 0, names, made, signature)


def _check_times(conflict: str, hold_ms: int, until: str | None) -> None:
    """The conflicts that mean a time of their own."""
    if conflict in ("throttle", "debounce") and (until or not hold_ms):
        raise InvalidOption(
            f"on_conflict={conflict!r} needs unique_for, its window in seconds, and no "
            "unique_until."
        )
    if conflict == "keep_last" and (hold_ms or until == "start"):
        raise InvalidOption(
            "on_conflict='keep_last' holds the key until the job has ended. Leave unique_for and "
            "unique_until='start' out."
        )


def _names(unique: Any, signature: inspect.Signature) -> tuple[str, ...]:
    names = (unique,) if isinstance(unique, str) else unique
    if not isinstance(names, (list, tuple)) or not names:
        raise InvalidOption(
            f"unique is {unique!r}. Use True, the name of an argument, a list of names, or a "
            "function that makes a text of the arguments."
        )
    known = signature.parameters
    open_ = any(p.kind is p.VAR_KEYWORD for p in known.values())
    for name in names:
        if not isinstance(name, str) or (name not in known and not open_):
            raise InvalidOption(
                f"unique names {name!r}, which is no argument of the task. It has: "
                f"{', '.join(known) or 'none'}."
            )
    return tuple(names)
