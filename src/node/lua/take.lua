-- How those begin that set the lock's key if there is none. Behind admitted.lua.
-- KEYS[1]: the lock's key. ARGV[1]: owner id. ARGV[2]: ttl in ms.
-- Returns, if there is one: '2 ms owner': held by another for so long; '2 -1 owner': held by a key without
-- ttl.
-- pcall: where nothing may be written, as when memory is full, a lock that is held is still said to be so.
local set = redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if not set or set.err and redis.call('EXISTS', KEYS[1]) == 1 then
  return string.format('2 %.0f %s', redis.call('PTTL', KEYS[1]), to)
end
if set.err then
  error(set)
end
