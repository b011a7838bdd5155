-- ARGV: now, token, lease_ms, leases_per_ttl
if not holds(ARGV[2]) then return 0 end
local lease_ms = tonumber(ARGV[3])
local expires = math.max(tonumber(get('expires_ms')), now + ARGV[4] * lease_ms)
redis.call('HSET', record, 'lease_until_ms', now + lease_ms, 'expires_ms', expires)
for i = 1, 4 do redis.call('PEXPIRE', KEYS[i], expires - now) end
return 1
