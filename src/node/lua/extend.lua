-- Lets the key live for at least the ttl if it is still the owner's. GT: a late extension never shortens.
-- KEYS[1]: the lock's key. ARGV[1]: owner id. ARGV[2]: ttl in ms.
-- Returns {1, 0}: still the owner's; {0, 0}: no such key; {2, ms}: another's.
local owner = redis.call('GET', KEYS[1])
if not owner then
  return {0, 0}
end
if owner ~= ARGV[1] then
  return {2, redis.call('PTTL', KEYS[1])}
end
redis.call('PEXPIRE', KEYS[1], ARGV[2], 'GT')
return {1, 0}
