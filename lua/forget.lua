-- forget.lua: let the memories of calls end that nobody will repeat any more.
--
-- KEYS[1…] sent  string  the last request of a producer and its verdicts
--
-- ARGV[1] grace_ms  how long they still live
--
-- Returns how many there were.

local grace_ms = ARGV[1]

local found = 0
for _, sent in ipairs(KEYS) do
  found = found + redis.call('PEXPIRE', sent, grace_ms)
end
return found
