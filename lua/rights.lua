-- rights.lua: ask whether the user who calls may carry out some commands. None is carried out.
--
-- ARGV    a command:  number of its words, and the words
--
-- Returns one verdict a command: 1 allowed, 0 refused. A server without this question (older than
-- 7.0) allows all.

local verdicts, at = {}, 1
while at <= #ARGV do
  local count = tonumber(ARGV[at])
  local allowed = not redis.acl_check_cmd
    or redis.acl_check_cmd(unpack(ARGV, at + 1, at + count))
  verdicts[#verdicts + 1] = allowed and 1 or 0
  at = at + 1 + count
end
return verdicts
