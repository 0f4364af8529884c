-- Sets a held lock again on a node that lost it, with its token: the counter is at least that. Behind
-- counting.lua.
-- KEYS[1]: the lock's key. ARGV[1]: owner id. ARGV[2]: ttl in ms. ARGV[4]: the token.
-- Returns '1 0 owner': set; '2 ms owner': as take.lua.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return string.format('2 %.0f %s', redis.call('PTTL', KEYS[1]), to)
end
count_to(math.max(counter, tonumber(ARGV[4])))
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return '1 0 ' .. to
