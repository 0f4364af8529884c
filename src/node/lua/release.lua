-- Deletes the key if it is still the owner's, and calls those who wait for it and are next.
-- They sit in a ring of 1,024 seats, at 32 tables of 32. Whoever waits listens on three channels: the
-- seat's, '<key>/0000' to '<key>/3131'; and, that one look tells who is not there, the table's,
-- '<key>/00--' to '<key>/31--', and '<key>/----'. The first digits of an owner id say where its process
-- sits. Called are the next seats that are taken, as many as asked for; each learns its rank among them,
-- how many share the seat, and whose release it was.
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
if calls > 0 and redis.pcall('PUBSUB', 'NUMSUB', KEYS[1] .. '/----')[2] ~= 0 then
  -- 32 channels and how many listen on each, from the one after that number on.
  local function look(channel, number)
    local names = {}
    for i = 1, 32 do
      names[i] = KEYS[1] .. string.format(channel, (number + i) % 32)
    end
    return redis.pcall('PUBSUB', 'NUMSUB', unpack(names))
  end
  local rank = 0
  local function call(seats, first, last)
    for i = first, seats and last or 0 do
      if seats[2 * i] > 0 and rank < calls then
        redis.pcall('PUBLISH', seats[2 * i - 1], rank .. ' ' .. seats[2 * i] .. ' ' .. ARGV[1])
        rank = rank + 1
      end
    end
  end
  local own = tonumber(string.sub(ARGV[1], 1, 3), 16) % 1024
  local at, seat = math.floor(own / 32), own % 32
  local tables = look('/%02d--', at)
  if tables[2] then
    -- At the own table those behind the owner, then the other tables, then those before the owner. The
    -- own seat is the last: nobody stands in for another by calling himself.
    local near = tables[64] > 0 and look(string.format('/%02d', at) .. '%02d', seat)
    call(near, 1, 31 - seat)
    for i = 1, 31 do
      if tables[2 * i] > 0 and rank < calls then
        call(look(string.format('/%02d', (at + i) % 32) .. '%02d', 31), 1, 32)
      end
    end
    call(near, 32 - seat, 31)
    if rank == 0 then
      call(near, 32, 32)
    end
  else
    -- Who waits cannot be asked for: call them all.
    redis.pcall('PUBLISH', KEYS[1] .. '/----', '0 2 ' .. ARGV[1])
  end
end
return {1, 0, ARGV[1]}
