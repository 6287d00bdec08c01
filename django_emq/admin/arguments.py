"""Arguments as people may see them: secrets hidden by name, and short where space is."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ..jobs import Call
from ..redact import MASK, parameters, sensitive


def hide(value: Any, names: Iterable[str]) -> Any:
    """The value with a mask in the place of every value whose key is one of the names."""
    hidden = {name.casefold() for name in names}

    def walk(item: Any) -> Any:
        if isinstance(item, dict):
            return {
                key: MASK if key.casefold() in hidden else walk(inner)
                for key, inner in item.items()
            }
        return [walk(inner) for inner in item] if isinstance(item, list) else item

    return walk(value)


def shown(call: Call, names: Iterable[str]) -> Call:
    """A call with its secrets hidden, also those that its task names or is given by position."""
    own = sensitive(call.task)
    if own == "__ALL__":
        return Call(call.task, [MASK] * len(call.args), dict.fromkeys(call.kwargs, MASK))
    names = (*names, *own)
    hidden = {name.casefold() for name in names}
    args = [
        MASK if parameter.casefold() in hidden else hide(value, names)
        for value, parameter in zip(call.args, parameters(call), strict=True)
    ]
    return Call(call.task, args, hide(call.kwargs, names))


def restore(new: Any, old: Any) -> Any:
    """`new` with each mask replaced by what `old` has in that place."""
    if new == MASK:
        return old
    if isinstance(new, dict) and isinstance(old, dict):
        return {key: restore(value, old.get(key, value)) for key, value in new.items()}
    if isinstance(new, list) and isinstance(old, list):
        rest = old + new[len(old) :]
        return [restore(value, rest[at]) for at, value in enumerate(new)]
    return new


def line(call: Call, names: Iterable[str], limit: int = 120) -> str:
    """The arguments in one line, as Python would write the call: 42, "a", dry_run=true"""
    call = shown(call, names)
    parts = [_json(value) for value in call.args]
    parts += [f"{name}={_json(value)}" for name, value in call.kwargs.items()]
    text = ", ".join(parts)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def pretty(value: Any) -> str:
    """JSON for people."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
