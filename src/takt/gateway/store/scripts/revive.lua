-- ARGV: now, digest, claim_id, owner, lease_ms, ttl_ms, upstream, deduplicates
if is_absent() then return {} end
lapse(ARGV[2])
local state, holder, token, number = get('state', 'claim_id', 'token', 'num_attempts')
if state == 'processing' and holder == ARGV[3] then
    return {tonumber(token), tonumber(number)}
end
if state ~= 'dead' or redis.call('EXISTS', request) == 0 then return {} end
local new_token, num_attempts = take(ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]),
    tonumber(ARGV[6]), ARGV[7], ARGV[8], true)
return {new_token, num_attempts}
