-- Sets the lock's key if there is none, on a node that has been admitted and has forgotten nothing since.
-- Each admission loads this text with an id of its own in the place of @mark@, and writes the same id into
-- the marker. So a server that restarted does not know the script, one that was flushed has no marker, and
-- one that was another's replica meanwhile has another's.
-- KEYS[1]: the lock's key. KEYS[2]: the marker. ARGV[1]: owner id. ARGV[2]: ttl in ms.
-- Returns '1 0 owner': granted; '2 ms owner': held by another for so long; '2 -1 owner': held by a key
-- without ttl; '3 0 owner': not admitted.
-- All scripts return one string, which costs server and client less than a list of three.
if string.sub(redis.call('GET', KEYS[2]) or '', 1, 32) ~= '@mark@' then
  return '3 0 ' .. ARGV[1]
end
if redis.call('EXISTS', KEYS[1]) == 1 then
  return string.format('2 %.0f %s', redis.call('PTTL', KEYS[1]), ARGV[1])
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return '1 0 ' .. ARGV[1]
