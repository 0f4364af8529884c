-- Deletes the key if it is still the owner's. No shebang, so that it runs when memory is full.
-- KEYS[1]: the lock's key. ARGV[1]: owner id.
-- Returns {1, 0}: deleted; {0, 0}: no such key; {2, ms}: another's.
local owner = redis.call('GET', KEYS[1])
if not owner then
  return {0, 0}
end
if owner ~= ARGV[1] then
  return {2, redis.call('PTTL', KEYS[1])}
end
redis.call('DEL', KEYS[1])
return {1, 0}
