-- repeat_advance.lua: set the next time of a schedule, without a job.
--
-- KEYS[1] repeat  zset    names of schedules, scored by their next time in ms
-- KEYS[2] record  hash    what is known of this one
-- KEYS[3] trail   stream  what happened; capped
--
-- ARGV[1] name
-- ARGV[2] next_ms    ms since 1970, or inf to switch it off
-- ARGV[3] was        only if this is its next time now; '' in any case
-- ARGV[4] trail_max  entries that the trail keeps, about; 0 for no trail
-- ARGV[5] by         who asks, for the trail; '' for a tick that is left out
--
-- Returns 1 when it was set, 0 when there is no such schedule, or its time is another one by now.
-- A name without a record is removed.

local schedules, record, trail = KEYS[1], KEYS[2], KEYS[3]
local name, next_ms, was, trail_max, by = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]

if redis.call('EXISTS', record) == 0 then
  redis.call('ZREM', schedules, name)
  return 0
end
if was ~= '' and tonumber(redis.call('ZSCORE', schedules, name) or '') ~= tonumber(was) then
  return 0
end
redis.call('ZADD', schedules, next_ms, name)
local function note(event)
  if trail_max > 0 then
    redis.pcall('XADD', trail, 'MAXLEN', '~', trail_max, '*', 'event', event, 'note', name, 'by', by)
  end
end

if by ~= '' then
  redis.call('HSET', record, 'switched_by', by)
  if next_ms == 'inf' then
    note('switched_off')
  else
    note('switched_on')
  end
end
return 1
