-- Counts: the grant comes with a number larger than all that this node ever granted for the resource. Behind
-- take.lua. Each admission has its floor in the text, as it has its mark.
-- KEYS[3]: the resource's counter. KEYS[4]: at least the largest number of any resource. ARGV[3]: for how many
-- ms the counter stays.
-- Returns '6 number owner': granted, with the number behind this one; or what begin_step.lua returns.
-- The next number and no more, where the largest was written ahead of it (counting.lua): unless it is the
-- first of its step. And the counter has to be there, and not below the floor. Before that is known nothing
-- is counted. The number is told by the text of the one before, since to make a text of a number takes longer
-- than all else.
local text = redis.pcall('GET', KEYS[3])
local last = tonumber(text)
if last and last % 64 ~= 0 and last >= @floor@ and last < 9007199254740991 then
  -- pcall: it may be no number as these are written.
  if redis.pcall('INCR', KEYS[3]) == last + 1 then
    return '6 ' .. text .. ' ' .. to
  end
end
-- All is checked before the lock is set again. Where this is denied the lock stays for its ttl, without a
-- number.
redis.call('DEL', KEYS[1])
