-- declare.lua: enter the schedules that a source knows, in the place of those of the same names.
--
-- KEYS[1]  repeat  zset  names of schedules, scored by their next time in ms; inf while switched off
-- KEYS[2]  meta    hash  declared: since when the process runs that last declared all of its own
-- KEYS[3…] record  hash  of each schedule, repeat:<name>
--
-- ARGV[1]  source  code, or database
-- ARGV[2]  since   ms since 1970: these are all that the source has, and its others go; '' when they
--                  are only some. Code: by a process that runs since then. Database: as it was read
--                  then, so what was entered later stays
-- ARGV[3…] a schedule: name, next time in ms (inf: switched off), number of fields, and each
--          field's name and value. A field stamp says how old this knowledge is. Without any
--          field it is one that the source has and cannot describe: it stays as it is
--
-- Returns {how many were entered or changed, how many were removed}. Nothing is fired, and nothing
--         is written where nothing is new. What a later process or stamp has said stays. Where the
--         times of a schedule are still the same, so is its next time. A schedule of the code that
--         an operator has switched off stays so; one of the code is not changed by the database.

local schedules, meta = KEYS[1], KEYS[2]
local source, since = ARGV[1], ARGV[2]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

if since ~= '' and source == 'code' then
  local last = redis.call('HGET', meta, 'declared')
  if last and tonumber(last) and tonumber(last) > tonumber(since) then
    return {0, 0}
  end
end

-- Read and decide.
local listed, news = {}, {}
local at, number = 3, 3
while at <= #ARGV do
  local name, next_ms, count = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local record, given, fields = KEYS[number], {}, {}
  for i = at + 3, at + 2 + 2 * count, 2 do
    given[ARGV[i]] = ARGV[i + 1]
    fields[#fields + 1] = ARGV[i]
    fields[#fields + 1] = ARGV[i + 1]
  end
  local had = redis.call('HMGET', record, 'rule', 'every_ms', 'cron', 'tz', 'stamp', 'source')
  local score = redis.call('ZSCORE', schedules, name)
  local old = had[6] == source and (tonumber(had[5] or '') or 0) > tonumber(given.stamp or 0)
  local theirs = had[6] == 'code' and source ~= 'code'
  listed[name] = true
  if not (count == 0 or old or theirs or had[1] == given.rule and score) then
    local same = score and (had[2] or '') == (given.every_ms or '')
      and (had[3] or '') == (given.cron or '') and (had[4] or '') == (given.tz or '')
    local off = score == 'inf'
    if source == 'code' and off or same and not off and next_ms ~= 'inf' then
      next_ms = false
    end
    news[#news + 1] = {name, record, next_ms, fields}
  end
  at, number = at + 3 + 2 * count, number + 1
end
local gone = {}
if since ~= '' then
  for _, name in ipairs(redis.call('ZRANGE', schedules, 0, -1)) do
    local had = redis.call('HMGET', schedules .. ':' .. name, 'source', 'entered')
    local newer = source ~= 'code' and (tonumber(had[2] or '') or 0) > tonumber(since)
    if not listed[name] and had[1] == source and not newer then
      gone[#gone + 1] = name
    end
  end
end

-- Write.
for _, new in ipairs(news) do
  local name, record, next_ms, fields = new[1], new[2], new[3], new[4]
  redis.call('HDEL', record, 'every_ms', 'cron', 'tz', 'owner', 'stamp')
  redis.call('HSET', record, 'entered', now, unpack(fields))
  if next_ms then
    redis.call('ZADD', schedules, next_ms, name)
  end
end
for _, name in ipairs(gone) do
  redis.call('ZREM', schedules, name)
  redis.call('DEL', schedules .. ':' .. name)
end
if since ~= '' and source == 'code' and #news + #gone > 0 then
  redis.call('HSET', meta, 'declared', since)
end
return {#news, #gone}
