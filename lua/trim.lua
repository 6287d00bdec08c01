-- trim.lua: forget dead jobs past their cap or age, and finished ones likewise.
--
-- KEYS[1] dead     zset  the morgue, scored by time of death in ms
-- KEYS[2] done     zset  finished ids whose row is kept, scored by the end of its time in ms
-- KEYS[3] metrics  hash  counters; metrics:<minute> stands beside it
--
-- ARGV[1] jobs         prefix of the rows
-- ARGV[2] dead_max     how many dead jobs are kept; the oldest go first
-- ARGV[3] dead_ttl_ms  how long a dead job is kept
-- ARGV[4] batch        how many at most, of each set
-- ARGV[5] done_max     how many finished jobs are kept; those whose time ends first go first
-- ARGV[6] look         how many dead jobs are asked whether they have a shorter time of their own
--                      (dead_ms), at most; each call asks another part of a large morgue
--
-- Returns how many were forgotten. The rows leave together with their entries.

local dead, done, metrics = KEYS[1], KEYS[2], KEYS[3]
local jobs, dead_max = ARGV[1], tonumber(ARGV[2])
local dead_ttl_ms, batch, done_max = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local look = tonumber(ARGV[6])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function tally(name, n)
  if n > 0 then
    local minute = metrics .. ':' .. math.floor(now / 60000)
    redis.pcall('HINCRBY', metrics, name, n)
    redis.pcall('HINCRBY', minute, name, n)
    redis.pcall('EXPIRE', minute, 172800)
  end
end

-- A row's number, or nil where there is none: what a stranger wrote may be no number.
local function whole(text)
  local found = type(text) == 'string' and #text < 16 and string.match(text, '^%d+$')
  return found and tonumber(found) or nil
end

local over = redis.call('ZRANGEBYSCORE', done, '-inf', now, 'LIMIT', 0, batch)
local surplus = math.min(redis.call('ZCARD', done) - done_max, batch)
if surplus > #over then
  over = redis.call('ZRANGE', done, 0, surplus - 1)
end
local buried = redis.call('ZRANGEBYSCORE', dead, '-inf', now - dead_ttl_ms, 'LIMIT', 0, batch)
local excess = math.min(redis.call('ZCARD', dead) - dead_max, batch)
if excess > #buried then
  buried = redis.call('ZRANGE', dead, 0, excess - 1)
end
if look > 0 and #buried < batch then
  local chosen, there = {}, redis.call('ZCARD', dead)
  for _, id in ipairs(buried) do
    chosen[id] = true
  end
  -- By the microseconds: nothing need be remembered, and the ends of the set have their turn too.
  local start = there > look and math.max(time[2] % (there + look) - look, 0) or 0
  local part = redis.call('ZRANGE', dead, start, start + look - 1, 'WITHSCORES')
  for i = 1, #part, 2 do
    local own = whole(redis.pcall('HGET', jobs .. part[i], 'dead_ms'))
    if own and part[i + 1] + own <= now and not chosen[part[i]] and #buried < batch then
      buried[#buried + 1] = part[i]
    end
  end
end

local function forget(set, ids)
  if #ids > 0 then
    local rows = {}
    for _, id in ipairs(ids) do
      rows[#rows + 1] = jobs .. id
      rows[#rows + 1] = jobs .. id .. ':logs'
    end
    redis.call('ZREM', set, unpack(ids))
    redis.call('DEL', unpack(rows))
  end
end

forget(done, over)
forget(dead, buried)
tally('trimmed', #buried)
return #over + #buried
