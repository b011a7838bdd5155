-- ARGV: now, token, head, first_chunk, chunk ...
if not holds(ARGV[2]) then return 0 end
add_chunks(tonumber(ARGV[4]), 5)
redis.call('PEXPIRE', chunks, math.max(redis.call('PTTL', record), 1))
redis.call('HSET', record, 'head', ARGV[3], 'num_chunks', redis.call('LLEN', chunks),
    'updated_ms', now)
return 1
