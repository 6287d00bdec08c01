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
  return redis.error_reply('EMQVERSION the keys of this server belong to ' .. found
    .. ', and this is ' .. mine .. ': upgrade the older side, or use another database or PREFIX')
end
local new = {}
for i = 2, #ARGV do
  if redis.call('SISMEMBER', queues, ARGV[i]) == 0 then
    new[#new + 1] = ARGV[i]
  end
end
-- Nothing is written where nothing is new: a worker can start on a full server.
if not found then
  redis.call('SET', version, mine)
end
if #new > 0 then
  redis.call('SADD', queues, unpack(new))
end
return #new
