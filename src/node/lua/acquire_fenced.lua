-- Counts: the grant comes with a number larger than all that this node ever granted. Behind take.lua. Each
-- admission has its floor in the text, as it has its mark.
-- KEYS[3]: the resource's counter. KEYS[4]: the largest number of any resource. ARGV[3]: after how many ms the
-- counter goes when it is not used.
-- Returns '1 number owner': granted.
-- The next number and no more, where the largest was written ahead of it (counting.lua): unless it is the first
-- of its step. And the counter has to be there, and above the floor.
local number = redis.pcall('INCR', KEYS[3])
local is_number = type(number) == 'number'
if is_number and number % 64 ~= 1 and number > @floor@ and number <= 9007199254740991 then
  return '1 ' .. redis.call('GET', KEYS[3]) .. ' ' .. ARGV[1]
end
-- Back to what was there, so that all is checked before it is written.
if number == 1 then
  redis.call('DEL', KEYS[3])
elseif is_number then
  redis.call('DECR', KEYS[3])
end
redis.call('DEL', KEYS[1])
