-- Sets a string. KEYS[2]: where. ARGV[2]: to what.
-- Returns {1}: set; {-2, type}: something of that type is there; or what `compare.lua` returns.
local present = redis.call('TYPE', KEYS[2])['ok']
if present ~= 'none' and present ~= 'string' then
  return {-2, present}
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[2])
return {1}
