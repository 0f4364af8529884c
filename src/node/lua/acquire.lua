-- That is all. Behind take.lua.
-- Returns '1 0 owner': granted.
return '1 0 ' .. to
