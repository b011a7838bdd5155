-- ARGV: now, token, attempt
if not holds(ARGV[2]) then return 0 end
redis.call('HSET', record, 'in_flight', 0, 'updated_ms', now)
add_attempt(ARGV[3])
return 1
