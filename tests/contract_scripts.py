"""The contract's own scripts for the flat queue, and what of lanes shows its waking.

Written from the contract's description, weaknesses included, so that a test can show what our
scripts do otherwise. Only tests use them.
"""

from __future__ import annotations

from typing import Any

_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

_SOURCES = {
    # KEYS row pending   ARGV id payload
    "enqueue": """
if string.sub(ARGV[1], 1, 3) ~= 'JOB' then
  return redis.error_reply('EMQKIND job id must be JOB-namespaced')
elseif redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('HSET', KEYS[1], 'state', 'pending', 'attempts', '0', 'payload', ARGV[2])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
return 1
""",
    # KEYS row schedule   ARGV id payload ms
    "schedule": _NOW
    + """
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('HSET', KEYS[1], 'state', 'scheduled', 'attempts', '0', 'payload', ARGV[2])
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
return 1
""",
    # KEYS pending active   ARGV row-prefix lease
    "claim": _NOW
    + """
local popped = redis.call('ZPOPMIN', KEYS[1])
if #popped == 0 then
  return {}
end
local id, row = popped[1], ARGV[1] .. popped[1]
local attempts = redis.call('HINCRBY', row, 'attempts', 1)
redis.call('HSET', row, 'state', 'active')
redis.call('ZADD', KEYS[2], now + ARGV[2], id)
return {id, redis.call('HGET', row, 'payload'), attempts}
""",
    # KEYS active row   ARGV id token base
    "complete": """
local attempts = redis.call('HGET', KEYS[2], 'attempts')
if not attempts then
  return 0
elseif attempts ~= ARGV[2] then
  return redis.error_reply('EMQSTALE complete token mismatch')
end
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then
  redis.call('ZREM', ARGV[3] .. 'pending', ARGV[1])
end
redis.call('DEL', KEYS[2])
redis.call('HINCRBY', ARGV[3] .. 'metrics:completed', 'count', 1)
return 1
""",
    # KEYS active schedule dead row   ARGV id token delay max error base
    "retry": _NOW
    + """
local attempts = redis.call('HGET', KEYS[4], 'attempts')
if not attempts then
  return redis.error_reply('EMQSTALE job gone')
elseif attempts ~= ARGV[2] then
  return redis.error_reply('EMQSTALE retry token mismatch')
end
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then
  redis.call('ZREM', ARGV[6] .. 'pending', ARGV[1])
end
redis.call('HSET', KEYS[4], 'last_error', ARGV[5])
if tonumber(attempts) >= tonumber(ARGV[4]) then
  redis.call('HSET', KEYS[4], 'state', 'dead')
  redis.call('ZADD', KEYS[3], 0, ARGV[1])
  redis.call('HINCRBY', ARGV[6] .. 'metrics:failed', 'count', 1)
  return 'dead'
end
redis.call('HSET', KEYS[4], 'state', 'scheduled')
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
return 'scheduled'
""",
    # KEYS row active schedule   ARGV id token delay
    "delay": _NOW
    + """
local attempts = redis.call('HGET', KEYS[1], 'attempts')
if not attempts then
  return redis.error_reply('EMQSTALE job gone')
elseif attempts ~= ARGV[2] then
  return redis.error_reply('EMQSTALE delay token mismatch')
end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[1], 'state', 'scheduled')
redis.call('ZADD', KEYS[3], now + ARGV[3], ARGV[1])
return 1
""",
    # KEYS active row   ARGV id token lease
    "extend": _NOW
    + """
local attempts = redis.call('HGET', KEYS[2], 'attempts')
if not attempts then
  return -1
elseif attempts ~= ARGV[2] then
  return redis.error_reply('EMQSTALE extend token mismatch')
end
redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[1])
return 1
""",
    # KEYS schedule pending   ARGV base batch
    "promote": _NOW
    + """
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[2])
for _, id in ipairs(due) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('ZADD', KEYS[2], 0, id)
  redis.call('HSET', ARGV[1] .. 'job:' .. id, 'state', 'pending')
end
return #due
""",
    # KEYS active pending   ARGV base
    "reap": _NOW
    + """
local lapsed = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 100)
for _, id in ipairs(lapsed) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('ZADD', KEYS[2], 0, id)
  redis.call('HSET', ARGV[1] .. 'job:' .. id, 'state', 'pending')
end
return #lapsed
""",
    # KEYS row lane ring wake   ARGV id payload lane
    "genqueue": """
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('HSET', KEYS[1], 'state', 'pending', 'attempts', '0', 'payload', ARGV[2],
  'group', ARGV[3])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
if not redis.call('LPOS', KEYS[3], ARGV[3]) then
  redis.call('RPUSH', KEYS[3], ARGV[3])
  redis.call('LPUSH', KEYS[4], '1')
  redis.call('LTRIM', KEYS[4], 0, 63)
end
return 1
""",
    # KEYS ring active   ARGV base lease
    "gclaim": _NOW
    + """
local lane = redis.call('LMOVE', KEYS[1], KEYS[1], 'LEFT', 'RIGHT')
if not lane then
  return {}
end
local popped = redis.call('ZPOPMIN', ARGV[1] .. 'g:' .. lane .. ':pending')
if #popped == 0 then
  redis.call('LREM', KEYS[1], 0, lane)
  return {}
end
local id, row = popped[1], ARGV[1] .. 'job:' .. popped[1]
local attempts = redis.call('HINCRBY', row, 'attempts', 1)
redis.call('HSET', row, 'state', 'active')
redis.call('ZADD', KEYS[2], now + ARGV[2], id)
return {id, redis.call('HGET', row, 'payload'), attempts, lane}
""",
}


class Contract:
    """One queue driven by the contract's scripts; `redis` is a client of the package."""

    def __init__(self, redis: Any, queue: str) -> None:
        self._redis = redis
        self.base = f"emq:{{{queue}}}:"

    def key(self, suffix: str) -> str:
        return self.base + suffix

    def _row(self, job_id: str) -> str:
        return self.key(f"job:{job_id}")

    def _run(self, name: str, suffixes: str, args: tuple[Any, ...], *rows: str) -> Any:
        keys = [*rows, *map(self.key, suffixes.split())]
        return self._redis.eval(_SOURCES[name], len(keys), *keys, *args)

    def enqueue(self, job_id: str, payload: str = "work") -> int:
        return self._run("enqueue", "pending", (job_id, payload), self._row(job_id))

    def schedule(self, job_id: str, delay_ms: int, payload: str = "work") -> int:
        args = (job_id, payload, delay_ms)
        return self._run("schedule", "schedule", args, self._row(job_id))

    def claim(self, lease_ms: int = 60_000) -> list[Any]:
        return self._run("claim", "pending active", (self.key("job:"), lease_ms))

    def complete(self, job_id: str, token: int) -> int:
        keys = [self.key("active"), self._row(job_id)]
        return self._redis.eval(_SOURCES["complete"], 2, *keys, job_id, token, self.base)

    def retry(self, job_id: str, token: int, delay_ms: int, maximum: int, error: str) -> bytes:
        keys = [*map(self.key, ("active", "schedule", "dead")), self._row(job_id)]
        args = (job_id, token, delay_ms, maximum, error, self.base)
        return self._redis.eval(_SOURCES["retry"], 4, *keys, *args)

    def delay(self, job_id: str, token: int, delay_ms: int) -> int:
        return self._run("delay", "active schedule", (job_id, token, delay_ms), self._row(job_id))

    def extend(self, job_id: str, token: int, lease_ms: int = 60_000) -> int:
        keys = [self.key("active"), self._row(job_id)]
        return self._redis.eval(_SOURCES["extend"], 2, *keys, job_id, token, lease_ms)

    def promote(self, batch: int = 100) -> int:
        return self._run("promote", "schedule pending", (self.base, batch))

    def reap(self) -> int:
        return self._run("reap", "active pending", (self.base,))

    def pause(self) -> None:
        self._redis.hset(self.key("meta"), "paused", 1)

    def resume(self) -> None:
        self._redis.hdel(self.key("meta"), "paused")

    def is_paused(self) -> bool:
        return bool(self._redis.hexists(self.key("meta"), "paused"))

    def genqueue(self, job_id: str, lane: str) -> int:
        suffixes = f"g:{lane}:pending ring wake"
        return self._run("genqueue", suffixes, (job_id, "work", lane), self._row(job_id))

    def gclaim(self, lease_ms: int = 60_000) -> list[Any]:
        return self._run("gclaim", "ring active", (self.base, lease_ms))

    def lapse(self, job_id: str) -> None:
        """Have the lease of one held job end."""
        self._redis.zadd(self.key("active"), {job_id: 1}, xx=True)

    def places(self, job_id: str) -> list[str]:
        """The sets that hold an id."""
        names = ("pending", "active", "schedule", "dead")
        return [n for n in names if self._redis.zscore(self.key(n), job_id) is not None]
