-- Sets a field of a hash. KEYS[2]: the hash. ARGV[2]: the field. ARGV[3]: to what.
-- Returns {1}: set; {-2, type}: something of that type is there; or what `compare.lua` returns.
local present = redis.call('TYPE', KEYS[2])['ok']
if present ~= 'none' and present ~= 'hash' then
  return {-2, present}
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return {1}
