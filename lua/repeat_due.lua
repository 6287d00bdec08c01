-- repeat_due.lua: tell which schedules are due, by the server's clock. Changes nothing.
--
-- KEYS[1] repeat  zset  names of schedules, scored by their next time in ms; a record stands
--                       beside it for each, repeat:<name>
--
-- ARGV[1] batch   how many at most
--
-- Returns {now, next_ms, schedules}: the clock in ms, the ms until the first of the others is due
--         (-1 for none), and of each that is due its name, its time, and the fields of its record
--         rule, every_ms, cron, tz, misfire, template, priority (nil where there is none).

local schedules = KEYS[1]
local batch = tonumber(ARGV[1])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local due = redis.call('ZRANGEBYSCORE', schedules, '-inf', now, 'WITHSCORES', 'LIMIT', 0, batch)
local found = {}
for i = 1, #due, 2 do
  local record = redis.pcall('HMGET', schedules .. ':' .. due[i],
    'rule', 'every_ms', 'cron', 'tz', 'misfire', 'template', 'priority')
  local entry = {due[i], due[i + 1]}
  for field = 1, 7 do
    entry[field + 2] = not record.err and record[field] or false
  end
  found[#found + 1] = entry
end
local later = redis.call('ZRANGEBYSCORE', schedules, '(' .. now, '(inf', 'WITHSCORES',
  'LIMIT', 0, 1)[2]
return {now, later and math.min(tonumber(later) - now, 86400000) or -1, found}
