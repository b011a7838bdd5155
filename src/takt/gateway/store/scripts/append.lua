-- ARGV: now, token, head, first_chunk, chunk ...
if not holds(ARGV[2]) then return 0 end
local num_chunks = add_chunks(tonumber(ARGV[4]), 5, redis.call('LLEN', chunks))
redis.call('PEXPIRE', chunks, math.max(redis.call('PTTL', record), 1))
redis.call('HSET', record, 'head', ARGV[3], 'num_chunks', num_chunks,
    'updated_ms', now)
return 1
