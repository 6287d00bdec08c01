"""The whole state of a queue in one step, and time that passes without anybody waiting."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from books import SETS

from django_emq.chains import unpacked
from django_emq.connections import Client
from django_emq.keys import Keys

_LOOK = """
local base, since = ARGV[1], ARGV[2]
local time = redis.call('TIME')
local answer = {
  time = time[1] * 1000 + math.floor(time[2] / 1000),
  sets = {}, rows = {}, logs = {}, counted = {}, records = {},
  repeats = redis.call('ZRANGE', base .. 'repeat', 0, -1, 'WITHSCORES'), keys = {}, told = {},
  wake = redis.call('LLEN', base .. 'wake'),
  meta = redis.call('HGETALL', base .. 'meta'),
  metrics = redis.call('HGETALL', base .. 'metrics'),
  onward = redis.call('HGETALL', base .. 'onward'),
  limiter = redis.call('GET', base .. 'limiter') or '0',
  trail = redis.call('XRANGE', base .. 'trail', since, '+'),
}
for _, set in ipairs({'pending', 'active', 'schedule', 'dead', 'done'}) do
  answer.sets[set] = redis.call('ZRANGE', base .. set, 0, -1, 'WITHSCORES')
end
for _, key in ipairs(redis.call('KEYS', base .. '*')) do
  local id, logs = string.match(key, ':job:(%w+)(:?l?o?g?s?)$')
  if id and logs == ':logs' then
    answer.logs[id] = redis.call('LRANGE', key, 0, -1)
  elseif id then
    answer.rows[id] = redis.call('HGETALL', key)
  elseif string.find(key, ':waiter:') then
    local ends = redis.call('PTTL', key) >= 0 and 'ends' or 'stays'
    answer.told[string.match(key, '%w+$')] = {ends, unpack(redis.call('LRANGE', key, 0, -1))}
  elseif string.find(key, ':unique:') then
    answer.keys[string.match(key, '%w+$')] = redis.call('GET', key)
  elseif string.find(key, ':repeat:') then
    answer.records[string.match(key, ':repeat:(.+)$')] = redis.call('HGETALL', key)
  elseif string.find(key, ':metrics:%d') then
    local minute = redis.call('HGETALL', key)
    for i = 1, #minute, 2 do
      answer.counted[minute[i]] = (answer.counted[minute[i]] or 0) + minute[i + 1]
    end
  end
end
return cjson.encode(answer)
"""

# Every time that the queue has stored, moved back. Counters of a minute stay in theirs, and times
# of jobs for other queues: nothing is decided by them here.
_PASS = """
local base, ms = ARGV[1], tonumber(ARGV[2])
local function back(key, field)
  local at = redis.call('HGET', key, field)
  if at then
    redis.call('HSET', key, field, string.format('%.0f', at - ms))
  end
end
for _, set in ipairs({'active', 'schedule', 'dead', 'done'}) do
  local entries = redis.call('ZRANGE', base .. set, 0, -1, 'WITHSCORES')
  for i = 1, #entries, 2 do
    redis.call('ZADD', base .. set, string.format('%.0f', entries[i + 1] - ms), entries[i])
  end
end
for _, key in ipairs(redis.call('KEYS', base .. '*')) do
  local kind, left = redis.call('TYPE', key).ok, redis.call('PTTL', key)
  if kind == 'hash' and string.find(key, ':job:') then
    back(key, 'started_at')
    back(key, 'finished_at')
    back(key, 'unique_since')
    back(key, 'due')
    back(key, 'expires_at')
  elseif left >= 0 and (kind == 'string' or kind == 'list') then
    redis.call('PEXPIRE', key, math.max(left - ms, 0))
  end
end
local repeats = redis.call('ZRANGE', base .. 'repeat', 0, -1, 'WITHSCORES')
for i = 1, #repeats, 2 do
  if repeats[i + 1] ~= 'inf' then
    redis.call('ZADD', base .. 'repeat', string.format('%.0f', repeats[i + 1] - ms), repeats[i])
  end
  back(base .. 'repeat:' .. repeats[i], 'last_at')
end
back(base .. 'meta', 'paused')
return 1
"""


class Ms(NamedTuple):
    """An instant, or a duration, between two bounds: a script's own `TIME` is not told to us."""

    low: float
    high: float

    def plus(self, ms: float) -> Ms:
        """As long after."""
        return Ms(self.low + ms, self.high + ms)

    def has(self, value: float) -> bool:
        """Whether it may be this one."""
        return self.low <= value <= self.high


def whole(at: Ms | None) -> str:
    """An instant that is known, as a script writes it; '' for none."""
    return f"{at.low:.0f}" if at else ""


@dataclass
class Look:
    """What is on the server. Scores and times in ms."""

    time: float
    sets: dict[str, dict[str, float]]  # members in the order of the server
    rows: dict[str, dict[str, str]]
    logs: dict[str, list[str]]
    keys: dict[str, str]  # unique keys: the digest, and who holds it
    repeats: dict[str, float]  # next times of schedules
    records: dict[str, dict[str, str]]  # what is known of them
    told: dict[str, list[str]]  # by waiter: whether it ends by itself, and the words
    onward: dict[str, list[str]]  # next jobs that belong to other queues
    meta: dict[str, str]
    totals: dict[str, int]
    counted: dict[str, int]  # the same, summed over the minutes
    wake: int
    limiter: int
    trail: list[tuple[str, dict[str, str]]]  # entries since the last look


def _pairs(flat: Any) -> dict[str, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True)) if flat else {}


def look(client: Client, keys: Keys, since: str) -> Look:
    """Look at everything of a queue; at its trail from the entry `since` on, that one left out."""
    since = f"({since}" if since else "-"
    found = json.loads(client.raw.eval(_LOOK, 0, keys.base, since))
    sets = {name: _pairs(found["sets"][name]) for name in SETS}
    return Look(
        time=found["time"],
        sets={name: {i: float(score) for i, score in s.items()} for name, s in sets.items()},
        rows={job_id: _pairs(row) for job_id, row in _dict(found["rows"])},
        logs=dict(_dict(found["logs"])),
        keys=dict(_dict(found["keys"])),
        repeats={name: float(at) for name, at in _pairs(found["repeats"]).items()},
        records={name: _pairs(record) for name, record in _dict(found["records"])},
        told=dict(_dict(found["told"])),
        onward={i: unpacked(t.encode()) for i, t in _pairs(found["onward"]).items()},
        meta=_pairs(found["meta"]),
        totals={name: int(n) for name, n in _pairs(found["metrics"]).items()},
        counted={name: int(n) for name, n in _dict(found["counted"])},
        wake=found["wake"],
        limiter=int(found["limiter"]),
        trail=[(at, _pairs(fields)) for at, fields in found["trail"] or ()],
    )


def _dict(found: Any) -> Any:
    return found.items() if found else ()


def pass_ms(client: Client, keys: Keys, ms: int) -> None:
    """Have time pass for a queue.

    The server's clock cannot be moved. But a script does nothing with the time except to compare
    it with times that are stored, to store it plus a given number, and to give keys a time to
    live. So for every script it is the same whether the clock goes forward by `ms`, or each
    stored time and what is left of each time to live goes back by `ms`.
    """
    client.raw.eval(_PASS, 0, keys.base, ms)
