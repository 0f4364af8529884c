-- Lets the key live for at least the ttl if it is still the owner's. GT: a late extension never shortens.
-- KEYS[1]: the lock's key. ARGV[1]: owner id. ARGV[2]: ttl in ms.
-- Returns '1 0 owner': still the owner's; '0 0 owner': no such key; '2 ms owner': another's.
local holder = redis.call('GET', KEYS[1])
if not holder then
  return '0 0 ' .. to
end
if holder ~= ARGV[1] then
  return string.format('2 %.0f %s', redis.call('PTTL', KEYS[1]), to)
end
redis.call('PEXPIRE', KEYS[1], ARGV[2], 'GT')
return '1 0 ' .. to
