-- ARGV: now, token, lease_ms
if not holds(ARGV[2]) then return 0 end
redis.call('HSET', record, 'lease_until_ms', now + tonumber(ARGV[3]))
return 1
