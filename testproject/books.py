"""The books of one queue: everything in one step, and whether each job is in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SETS = ("pending", "active", "schedule", "dead", "done")
STATES = {"schedule": "scheduled"}  # where the row's word differs from the set's name

# The sets with their scores, and each row with all fields.
_BOOKS = """
local base, answer = ARGV[1], {sets = {}, rows = {}}
for i = 2, #ARGV do
  answer.sets[i - 1] = redis.call('ZRANGE', base .. ARGV[i], 0, -1, 'WITHSCORES')
end
for i, key in ipairs(redis.call('KEYS', base .. 'job:*')) do
  local kind = redis.call('TYPE', key).ok
  local row = kind == 'hash' and redis.call('HGETALL', key) or {}
  answer.rows[i] = {string.sub(key, #base + 5), kind, row}
end
return {answer.sets, answer.rows}
"""


class Unbalanced(AssertionError):
    """A job is in no place, in two, or in another than its row says; or a token went down."""


def snapshot(raw: Any, base: str) -> dict[str, Any]:
    """Each set with its scores, and under `rows` each row with its fields as bytes.

    :param raw: a client of redis-py.
    :param base: what all keys of the queue begin with.

    Counters, wake tokens, log lines and remembered requests are no part of it.
    """
    sets, rows = raw.eval(_BOOKS, 0, base, *SETS)
    state: dict[str, Any] = {}
    for name, flat in zip(SETS, sets, strict=True):
        pairs = zip(flat[::2], flat[1::2], strict=True)
        state[name] = {member.decode(): float(score) for member, score in pairs}
    state["rows"] = {
        job_id.decode(): dict(zip(flat[::2], flat[1::2], strict=True)) if kind == b"hash" else kind
        for job_id, kind, flat in rows
        if not job_id.endswith(b":logs")
    }
    return state


def balance(state: Mapping[str, Any], before: Mapping[str, int] | None = None) -> dict[str, int]:
    """Check what `snapshot` saw; answer all tokens, to be given as `before` later.

    (1) each id is in exactly one set; (2) the row's state names that set; (3) no set holds an id
    without a row; (4) no row is outside all sets; (5) no token is lower than it was before.
    Raises Unbalanced.
    """
    rows = state["rows"]
    places: dict[str, list[str]] = {}
    for name in SETS:
        for job_id in state[name]:
            places.setdefault(job_id, []).append(STATES.get(name, name))
    twice = {job_id: names for job_id, names in places.items() if len(names) > 1}
    if twice:
        raise Unbalanced(f"in two places: {twice}")
    if odd := sorted(places.keys() ^ rows.keys()):
        raise Unbalanced(f"ids without rows, or rows without a place: {odd[:5]}")
    said = {job_id: [fields[b"state"].decode()] for job_id, fields in rows.items()}
    if wrong := sorted(job_id for job_id in places if said[job_id] != places[job_id]):
        raise Unbalanced(f"in another place than the row says: {wrong[:5]}")
    # What a stranger wrote there is kept in the morgue as it is, and is no token.
    tokens = {i: int(row[b"attempts"]) for i, row in rows.items() if row[b"attempts"].isdigit()}
    lower = {i: t for i, t in (before or {}).items() if tokens.get(i, t) < t}
    if lower:
        raise Unbalanced(f"tokens went down: {lower}")
    return tokens
