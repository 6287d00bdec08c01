-- mend.lua: look at a key of a queue that is no set and no row, and put it right where asked.
--
-- KEYS[1] key  what may be wrong
-- KEYS[2] row  the row of the job that the key belongs to; for `orphan`
--
-- ARGV[1] mend   '1' to put it right, '0' to look only
-- ARGV[2] rule   type, ttl, orphan or field
-- ARGV[3] what   type: the type that it must have; ttl: ms that it may still live;
--                orphan: what the key holds, '' for whatever; field: name of the field
-- ARGV[4] value  field: what the field holds
--
-- Returns 1 when it is, or was, wrong; 0 when all is well.
--
-- A key of another type, or whose job is gone, is deleted: it holds no job.

local key, row = KEYS[1], KEYS[2]
local mend, rule, what, value = ARGV[1] == '1', ARGV[2], ARGV[3], ARGV[4]

local wrong = false
if rule == 'type' then
  local found = redis.call('TYPE', key).ok
  wrong = found ~= 'none' and found ~= what
elseif rule == 'ttl' then
  wrong = redis.call('PTTL', key) == -1
elseif rule == 'orphan' then
  wrong = (what == '' or redis.pcall('GET', key) == what) and redis.call('EXISTS', key) == 1
    and redis.call('EXISTS', row) == 0
elseif rule == 'field' then
  wrong = redis.pcall('HGET', key, what) == value
end
if wrong and mend then
  if rule == 'ttl' then
    redis.call('PEXPIRE', key, what)
  elseif rule == 'field' then
    redis.call('HDEL', key, what)
  else
    redis.call('DEL', key)
  end
end
return wrong and 1 or 0
