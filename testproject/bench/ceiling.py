"""The yardstick: claim and complete by a bare redis-py loop, 50 jobs a batch.

    python ceiling.py URL JOBS

It prints the jobs a second. The scripts are the smallest that still make a queue: pop, count the
attempt as a token, lease, answer; compare the token, take the lease away, delete the row. No job is
run, and nothing of django_emq is in it, so that the yardstick stays the same when that changes.
"""

from __future__ import annotations

import sys
from time import monotonic
from typing import Any

import redis

PENDING, ACTIVE, ROWS = "emq:{bench}:pending", "emq:{bench}:active", "emq:{bench}:job:"
BATCH = 50
LEASE_MS = 15000

# Rows as `bench.tasks.noop` has them, ids of the same length.
FILL = """
for i = tonumber(ARGV[2]), tonumber(ARGV[3]) do
  local id = string.format('JOB%022d', i)
  redis.call('HSET', ARGV[1] .. id, 'state', 'pending', 'attempts', '0',
    'payload', '{"task":"bench.tasks.noop","args":[' .. i .. ']}')
  redis.call('ZADD', KEYS[1], 0, id)
end
"""

CLAIM = """
local popped = redis.call('ZPOPMIN', KEYS[1], ARGV[3])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local out, leases = {}, {}
for i = 1, #popped, 2 do
  local id = popped[i]
  local jk = ARGV[1] .. id
  local att = redis.call('HINCRBY', jk, 'attempts', 1)
  redis.call('HSET', jk, 'state', 'active')
  leases[#leases + 1] = now + tonumber(ARGV[2])
  leases[#leases + 1] = id
  out[#out + 1] = id
  out[#out + 1] = redis.call('HGET', jk, 'payload')
  out[#out + 1] = att
end
if #leases > 0 then
  redis.call('ZADD', KEYS[2], unpack(leases))
end
return out
"""

COMPLETE = """
local done = {}
for i = 2, #ARGV, 2 do
  local jk = ARGV[1] .. ARGV[i]
  local att = redis.call('HGET', jk, 'attempts')
  if att and att ~= ARGV[i + 1] then
    return redis.error_reply('EMQSTALE complete token mismatch')
  end
  if att then
    redis.call('ZREM', KEYS[1], ARGV[i])
    done[#done + 1] = jk
  end
end
if #done > 0 then
  redis.call('DEL', unpack(done))
end
return #done
"""


def fill(client: Any, jobs: int) -> None:
    """Have this many jobs wait."""
    for first in range(1, jobs + 1, 1000):
        client.eval(FILL, 1, PENDING, ROWS, first, min(first + 999, jobs))


def drain(client: Any) -> int:
    """Claim and complete until nothing waits; how many jobs that were."""
    claim, complete = client.script_load(CLAIM), client.script_load(COMPLETE)
    total = 0
    while jobs := client.evalsha(claim, 2, PENDING, ACTIVE, ROWS, LEASE_MS, BATCH):
        done = []
        for at in range(0, len(jobs), 3):
            done.append(jobs[at])
            done.append(jobs[at + 2])
        total += client.evalsha(complete, 1, ACTIVE, ROWS, *done)
    return total


def main(url: str, jobs: int) -> float:
    """Jobs a second."""
    client = redis.Redis.from_url(url)
    fill(client, jobs)
    start = monotonic()
    done = drain(client)
    seconds = monotonic() - start
    if done != jobs:
        raise SystemExit(f"{done} jobs were completed, not {jobs}")
    return jobs / seconds


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2])))
