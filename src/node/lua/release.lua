-- Deletes the key if it is still the owner's, and calls those who wait for it and are next.
-- They sit in a ring of 32 seats, each with a channel of its own: '<key>/00' to '<key>/31'; whoever
-- waits listens to '<key>/--' as well, so that one look tells when nobody does. The first digits of an
-- owner id say where its process sits. Called are the next seats that are taken, as many as asked for;
-- each learns its rank among them, how many share the seat, and whose release it was.
-- pcall: the release counts, also where announcing it is forbidden.
-- No shebang, so that it runs when memory is full.
-- KEYS[1]: the lock's key. ARGV[1]: owner id. ARGV[2]: how many seats to call.
-- Returns {1, 0, owner}: deleted; {0, 0, owner}: no such key; {2, ms, owner}: another's.
local holder = redis.call('GET', KEYS[1])
if not holder then
  return {0, 0, ARGV[1]}
end
if holder ~= ARGV[1] then
  return {2, redis.call('PTTL', KEYS[1]), ARGV[1]}
end
redis.call('DEL', KEYS[1])
local calls = tonumber(ARGV[2])
if calls > 0 and redis.pcall('PUBSUB', 'NUMSUB', KEYS[1] .. '/--')[2] ~= 0 then
  local own = tonumber(string.sub(ARGV[1], 1, 2), 16) % 32
  local seats = {}
  for i = 1, 32 do
    seats[i] = string.format('%s/%02d', KEYS[1], (own + i) % 32)
  end
  local taken = redis.pcall('PUBSUB', 'NUMSUB', unpack(seats))
  local rank = 0
  for i = 1, 32 do
    local sharing = taken[2 * i] or 0
    -- The owner's own seat is the last: nobody stands in for another by calling himself.
    if sharing > 0 and (i < 32 or rank == 0) then
      redis.pcall('PUBLISH', seats[i], rank .. ' ' .. sharing .. ' ' .. ARGV[1])
      rank = rank + 1
      if rank == calls then break end
    end
  end
  if not taken[2] then
    -- Who waits cannot be asked for: call them all.
    redis.pcall('PUBLISH', KEYS[1] .. '/--', '0 2 ' .. ARGV[1])
  end
end
return {1, 0, ARGV[1]}
