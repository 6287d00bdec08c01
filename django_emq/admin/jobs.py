"""What the page of a job shows, made from what was read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .. import chains, inspector
from ..conf import settings
from ..inspector import JobDetail, JobRow, Worker
from ..jobs import Call, read, shorten
from .arguments import hide, pretty, shown

SHOWN_MAX = 256 * 1024  # bytes of a payload or a result: more is no help to anybody
# Fields of the row that the page shows in places of their own.
ELSEWHERE = {"traceback", "result", "last_error", "payload", "progress", "logs"}
ELSEWHERE |= {"claims", "errors"}  # what the timeline tells too
ELSEWHERE |= {"waiters"}  # names that say nothing to anybody
ELSEWHERE |= {"on_success", "on_failure", "after", "next"}  # arguments of others are in them
BAD = {"refused", "failed", "died", "buried", "reaped"}


def describe(detail: JobDetail, workers: Sequence[Worker]) -> dict[str, Any]:
    """The context of the page."""
    row = detail.row
    why = inspector.explain(detail, workers)
    call, damage = _call(row.payload)
    return {
        "row": row,
        "state": detail.state,
        "why": why,
        "call": call,
        "damage": damage,
        "payload": _pretty({"args": call.args, "kwargs": call.kwargs}) if call else "",
        "chain": _chain(row),
        "fields": sorted((n, v) for n, v in row.fields.items() if n not in ELSEWHERE),
        "traceback": row.fields.get("traceback", ""),
        "result": _result(row.fields.get("result", "")),
        "progress": row.progress,
        "logs": detail.logs,
        "timeline": [(one, inspector.words(one), one.event in BAD) for one in detail.trail[::-1]],
    }


def _chain(row: JobRow) -> dict[str, Any]:
    """What was before the job, what it was left by that, and what comes after it; or nothing."""
    try:
        previous = read(row.payload or b"").previous
    except ValueError:
        previous = None
    facts = {
        "after": row.fields.get("after", ""),
        "left": "" if previous is None else previous.error or _result(json.dumps(previous.value)),
        "on_success": chains.hung(row.fields, "on_success", row.queue),
        "on_failure": chains.hung(row.fields, "on_failure", row.queue),
        "next": row.fields.get("next", "").split(),
    }
    return facts if any(facts.values()) else {}


def _call(payload: bytes | None) -> tuple[Call | None, str]:
    """The call with its secrets hidden, or why there is none."""
    if payload is None:
        return None, ""
    try:
        return shown(read(payload), settings().redact), ""
    except ValueError as error:
        return None, str(error)


def _result(text: str) -> str:
    try:
        return _pretty(hide(json.loads(text), settings().redact)) if text else ""
    except (ValueError, RecursionError):
        return shorten(text, SHOWN_MAX)


def _pretty(value: Any) -> str:
    return shorten(pretty(value), SHOWN_MAX)
