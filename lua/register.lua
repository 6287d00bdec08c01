-- register.lua: check the version fence and enter queues in the registry.
--
-- KEYS[1] version  string  the version that the keys belong to
-- KEYS[2] queues   set     names of all queues ever used
--
-- ARGV[1] version  of the caller
-- ARGV[2…]         names of queues
--
-- Returns how many names were new.
-- Errors  EMQVERSION when the keys belong to another version; the version is written only
--         when there is none.

local version, queues = KEYS[1], KEYS[2]
local mine = ARGV[1]

local found = redis.call('GET', version)
if found and found ~= mine then
  return redis.error_reply('EMQVERSION found ' .. found .. ', this is ' .. mine)
end
redis.call('SCARD', queues)
if not found then
  redis.call('SET', version, mine)
end
if #ARGV == 1 then
  return 0
end
return redis.call('SADD', queues, unpack(ARGV, 2))
