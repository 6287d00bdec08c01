"""Secrets among a job's arguments: which they are, and text without them.

An argument is a secret when its name is in ``EMQ["REDACT"]``, at any depth, or when the task's
function names it with Django's ``sensitive_variables``.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

from django.views.decorators import debug

from . import registry
from .conf import settings
from .jobs import Call, read

MASK = "••••••"
SHORT = 4  # characters: what is shorter is a secret only where it stands as a word


def eraser(payload: bytes) -> Callable[[str], str]:
    """What takes the secrets of a job's arguments out of a text; never raises.

    >>> eraser(b'{"task": "t", "kwargs": {"password": "hunter2"}}')("login with hunter2 failed")
    'login with •••••• failed'
    """
    try:
        call = read(payload)
    except ValueError:  # the queue has not admitted this, and nobody's secret is in it
        return str
    try:
        forms = sorted(set(_forms(secrets(call))), key=len, reverse=True)
        pattern = re.compile("|".join(map(_alternative, forms)))
    except Exception:  # must not cost the job; better no text than a secret
        return lambda text: MASK
    return lambda text: pattern.sub(MASK, text) if forms else text


def secrets(call: Call) -> Iterator[Any]:
    """The texts and numbers that are secret."""
    named = {name.casefold() for name in settings().redact}
    own = sensitive(call.task)
    everything = own == "__ALL__"
    hidden = named if everything else named | {name.casefold() for name in own}
    for value, parameter in zip(call.args, parameters(call), strict=True):
        yield from _secrets(value, hidden, everything or parameter.casefold() in hidden)
    for name, value in call.kwargs.items():
        yield from _secrets(value, hidden, everything or name.casefold() in hidden)


def _secrets(value: Any, hidden: set[str], secret: bool) -> Iterator[Any]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _secrets(inner, hidden, secret or name.casefold() in hidden)
    elif isinstance(value, list):
        for inner in value:
            yield from _secrets(inner, hidden, secret)
    elif secret and value is not None and not isinstance(value, bool) and value != "":
        yield value


def sensitive(task: str) -> tuple[str, ...] | str:
    """The names given to `sensitive_variables`; "__ALL__" where it was given none."""
    known = registry.find(task)
    if known is None:
        return ()
    func: Any = known.func
    while True:
        # Django leaves the names on its wrapper when that is called, for its own pages of errors.
        # Before, they are only what the wrapper has in its closure.
        found = getattr(func, "sensitive_variables", None) or _enclosed(func)
        inner = getattr(func, "__wrapped__", None)
        if found or inner is None:
            return found or _of_coroutine(func)
        func = inner


def _enclosed(func: Any) -> tuple[str, ...] | str:
    """The names in the closure of Django's wrapper; none of another function."""
    if getattr(func, "__globals__", None) is not vars(debug):
        return ()
    enclosed = inspect.getclosurevars(func).nonlocals
    return (enclosed["variables"] or "__ALL__") if "variables" in enclosed else ()


def _of_coroutine(func: Any) -> tuple[str, ...] | str:
    """The names of a coroutine function, which Django does not wrap: as it reckons the key."""
    code: Any = getattr(func, "__code__", None)
    key = hash(f"{code.co_filename}:{code.co_firstlineno}") if code else 0
    names: tuple[str, ...] | str = debug.coroutine_functions_to_sensitive_variables.get(key, ())
    return names


def parameters(call: Call) -> list[str]:
    """The names of the parameters that the positional arguments go to, '' where unknown."""
    names: list[str] = []
    task = registry.find(call.task)
    for parameter in _signature(task.func) if task else ():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            names += [parameter.name] * len(call.args)
    names += [""] * len(call.args)
    return names[: len(call.args)]


@lru_cache(maxsize=256)
def _signature(func: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    try:
        return tuple(inspect.signature(func).parameters.values())
    except (TypeError, ValueError):  # what is written in C may not tell
        return ()


def _forms(values: Iterable[Any]) -> Iterator[str]:
    """Each value as it may stand in a text: as it is, and as Python, JSON and a URL write it."""
    for value in values:
        text = str(value)
        yield text
        if isinstance(value, str):
            yield from (repr(text)[1:-1], json.dumps(text)[1:-1])
            yield from (quote(text), quote(text, safe=""), quote_plus(text))


def _alternative(form: str) -> str:
    return re.escape(form) if len(form) >= SHORT else rf"(?<!\w){re.escape(form)}(?!\w)"
