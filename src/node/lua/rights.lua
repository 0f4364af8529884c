-- Says which commands that a node needs its client may not call: the error of a script that lacks a right
-- does not name it. It calls none of them, and reads and writes nothing.
-- ARGV[1]: run_id. ARGV[2]: a key of the fleet, on which they have to be allowed.
-- Returns '4 0 run_id', which no other script does, and behind it the names of those that are forbidden.
local key, forbidden = ARGV[2], {}
local needed = {
  {'GET', key}, {'SET', key, ''}, {'EXISTS', key}, {'PTTL', key}, {'PEXPIRE', key, 1, 'GT'}, {'DEL', key},
  {'INCR', key}, {'EVAL', '', 0},
}
for _, command in ipairs(needed) do
  -- pcall: it is an error that there is no such command, as where it was renamed. All arguments that it
  -- takes have to be there.
  local exists, is_allowed = pcall(redis.acl_check_cmd, unpack(command))
  if redis.acl_check_cmd and not (exists and is_allowed) then
    table.insert(forbidden, command[1])
  end
end
return table.concat({4, 0, ARGV[1], unpack(forbidden)}, ' ')
