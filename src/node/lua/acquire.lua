-- Sets the lock's key if there is none.
-- KEYS[1]: the lock's key. ARGV[1]: owner id. ARGV[2]: ttl in ms.
-- Returns {1, 0, owner}: granted; {2, ms, owner}: held by another for so long; {2, -1, owner}: held by a key without ttl.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return {2, redis.call('PTTL', KEYS[1]), ARGV[1]}
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, 0, ARGV[1]}
