-- Deletes the key if it is still the owner's, and tells those who listen on the channel of the key's
-- name how many they are. pcall: the release counts, also where announcing it is forbidden.
-- No shebang, so that it runs when memory is full.
-- KEYS[1]: the lock's key. ARGV[1]: owner id.
-- Returns {1, 0, owner}: deleted; {0, 0, owner}: no such key; {2, ms, owner}: another's.
local holder = redis.call('GET', KEYS[1])
if not holder then
  return {0, 0, ARGV[1]}
end
if holder ~= ARGV[1] then
  return {2, redis.call('PTTL', KEYS[1]), ARGV[1]}
end
redis.call('DEL', KEYS[1])
local listeners = redis.pcall('PUBSUB', 'NUMSUB', KEYS[1])[2] or 1
if listeners ~= 0 then
  redis.pcall('PUBLISH', KEYS[1], listeners)
end
return {1, 0, ARGV[1]}
