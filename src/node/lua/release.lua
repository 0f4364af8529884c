-- Deletes the key if it is still the owner's, and calls those who wait for it and are next.
-- They sit in a ring of 1,000 seats, of which an owner id has its own in its first three digits. Whoever
-- waits listens on four channels: the seat's, '<key>/000' to '<key>/999'; and, so that a few looks tell who
-- is not there, '<key>/00-' to '<key>/99-', '<key>/0--' to '<key>/9--', and '<key>/---'. Called are the next
-- seats that are taken, as many as asked for; each learns its rank among them, how many share the seat,
-- and whose release it was. The first of two learns the number of the second's seat as well, where one sits
-- there alone: whom to call when it releases, without a search, which takes longer than all the rest.
-- pcall: the release counts, also where announcing it is forbidden.
-- No shebang, so that it runs when memory is full.
-- KEYS[1]: the lock's key. ARGV[1]: owner id. ARGV[2]: how many seats to call, or a thousand and the number of
-- one: that if anybody sits there, and otherwise the next.
-- Returns '1 seats owner': deleted, and others are called on so many seats; '0 0 owner': no such key; '2 ms
-- owner': another's.
local holder = redis.call('GET', KEYS[1])
if not holder then
  return '0 0 ' .. to
end
if holder ~= ARGV[1] then
  return string.format('2 %.0f %s', redis.call('PTTL', KEYS[1]), to)
end
redis.call('DEL', KEYS[1])
local calls, ring = tonumber(ARGV[2]), KEYS[1] .. '/'
if calls >= 1000 then
  -- Asked for first: those who listen to patterns hear what is published as well.
  local seat = ring .. string.sub(ARGV[2], 2)
  local sit = redis.pcall('PUBSUB', 'NUMSUB', seat)[2] or 0
  if sit > 0 then
    redis.pcall('PUBLISH', seat, '0 ' .. sit .. ' ' .. ARGV[1])
    return '1 1 ' .. to
  end
  calls = 1
end
if calls > 0 and redis.pcall('PUBSUB', 'NUMSUB', ring .. '---')[2] ~= 0 then
  -- Not by string.format, which takes longer than all the rest.
  local digits = {[0] = '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'}
  local behind, called, sharing = {'--', '-', ''}, {}, {}
  -- Takes the seats that begin like this and go on with a digit from `first` to `last`.
  local function take(begin, level, first, last)
    if first > last or #called >= calls then
      return
    end
    local names = {}
    for digit = first, last do
      names[digit - first + 1] = begin .. digits[digit] .. behind[level]
    end
    local sit = redis.pcall('PUBSUB', 'NUMSUB', unpack(names))
    for i, name in ipairs(names) do
      if sit[2 * i] > 0 and #called < calls then
        if level == 3 then
          called[#called + 1], sharing[#called + 1] = name, sit[2 * i]
        else
          take(begin .. digits[first + i - 1], level + 1, 0, 9)
        end
      end
    end
  end
  local function own(place)
    return tonumber(string.sub(ARGV[1], place, place), 16) % 10
  end
  local a, b, c = own(1), own(2), own(3)
  local hundred = ring .. digits[a]
  local ten = hundred .. digits[b]
  local near = redis.pcall('PUBSUB', 'NUMSUB', hundred .. '--', ten .. '-')
  if near[2] then
    -- Once round the ring, from the seat behind the owner's on. The own seat is the last: nobody stands in
    -- for another by calling himself.
    local in_hundred, in_ten = near[2] > 0, near[4] > 0
    if in_ten then take(ten, 3, c + 1, 9) end
    if in_hundred then take(hundred, 2, b + 1, 9) end
    take(ring, 1, a + 1, 9)
    take(ring, 1, 0, a - 1)
    if in_hundred then take(hundred, 2, 0, b - 1) end
    if in_ten then take(ten, 3, 0, c - 1) end
    local others = #called
    if others == 0 then
      take(ten, 3, c, c)
      others = (sharing[1] or 0) > 1 and 1 or 0
    end
    local stands_in = sharing[2] == 1 and string.sub(called[2], -3)
    for i, name in ipairs(called) do
      local said = i - 1 .. ' ' .. sharing[i] .. ' ' .. ARGV[1]
      redis.pcall('PUBLISH', name, i == 1 and stands_in and said .. ' ' .. stands_in or said)
    end
    return '1 ' .. others .. ' ' .. to
  else
    -- Who waits cannot be asked for: call them all.
    redis.pcall('PUBLISH', ring .. '---', '0 0 ' .. ARGV[1])
  end
end
return '1 0 ' .. to
