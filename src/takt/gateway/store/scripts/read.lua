-- ARGV: now, first_chunk or -1
if is_absent() then return {} end
local found = {}
if ARGV[2] ~= '-1' then found = redis.call('LRANGE', chunks, tonumber(ARGV[2]), -1) end
return {now, redis.call('HGETALL', record), redis.call('LRANGE', history, 0, -1), found}
