-- cas.lua: write a value only if the one that was read is still there.
--
-- KEYS[1] key  string
--
-- ARGV[1] expected  the value that was read
-- ARGV[2] value     the new one
--
-- Returns 1 when the value was written, 0 when another one (or none) is there.

local key = KEYS[1]
local expected, value = ARGV[1], ARGV[2]

if redis.call('GET', key) == expected then
  redis.call('SET', key, value)
  return 1
end
return 0
