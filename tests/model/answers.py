"""What the server answers and stores, in the words of the model, and whether the two agree."""

from __future__ import annotations

from typing import Any

from django_emq.chains import unpacked
from django_emq.exceptions import EmqError
from django_emq.jobs import Claims, Conflict, Reaped
from tests.model.look import Ms


def plain(answer: Any) -> Any:
    """An answer of `scripts` as the model gives it."""
    if isinstance(answer, EmqError):
        return type(answer).__name__
    if isinstance(answer, Claims):
        jobs = [(j.id.decode(), j.payload.decode(), j.token, j.failures) for j in answer.jobs]
        return answer.next_ms, jobs
    if isinstance(answer, Conflict):
        return " ".join(answer)
    if isinstance(answer, Reaped):
        return tuple(answer)
    if isinstance(answer, dict):
        return {job_id.decode(): unpacked(text) for job_id, text in answer.items()}
    if isinstance(answer, list | tuple):
        return [plain(item) for item in answer]
    return answer


def texts(row: dict[str, Any]) -> dict[str, Any]:
    """Fields of the model as the server stores them; what is not known exactly stays what it is."""
    return {name: v if isinstance(v, Ms | frozenset) else str(v) for name, v in row.items()}


def matches(found: Any, expected: Any) -> bool:
    """Whether what was found is what was expected, all the way down.

    An `Ms` has bounds; of a frozenset it is any one.
    """
    if isinstance(expected, Ms):
        return expected.has(float(found))
    if isinstance(expected, frozenset):
        return found in expected
    if isinstance(expected, dict):
        same = found.keys() == expected.keys()
        return same and all(matches(found[name], value) for name, value in expected.items())
    if isinstance(expected, list | tuple):
        same = len(found) == len(expected)
        return same and all(map(matches, found, expected))
    return bool(found == expected)
