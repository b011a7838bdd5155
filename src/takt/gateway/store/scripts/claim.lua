-- ARGV: now, digest, claim_id, owner, lease_ms, ttl_ms, failed_ttl_ms, upstream, deduplicates,
--       on_unknown, allow_takeover, fingerprint, key, tenant, service, operation, waits_for_disk
-- Returns: what happened, then its particulars; of a claim whether it is unwritten is the last.
local digest, claim_id, owner = ARGV[2], ARGV[3], ARGV[4]
local lease_ms, ttl_ms, failed_ttl_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local upstream, deduplicates = ARGV[8], ARGV[9]

if is_absent() then
    -- A claim of a key with any trace is written: deletions of what was there have to reach the file.
    local is_new = redis.call('EXISTS', record, chunks, request, history) == 0
        and not redis.call('ZSCORE', dead, digest)
    -- An attempt of unknown outcome would be made again, and so may one that was forgotten: nobody
    -- need wait for the disk, where replies do. But not while the newest token is more than 1 ms ahead
    -- of the clock, which was set back then: after a restart such a token could be given again.
    local is_unwritten = ARGV[17] == '1' and is_new and upstream ~= '' and deduplicates == '0' and ARGV[10] == 'retry'
        and last_token() < now_us + 1000
        and pcall(redis.set_repl, redis.REPL_NONE)
    if not is_new then
        redis.call('DEL', record, chunks, request, history)
        redis.call('ZREM', dead, digest)
    end
    local token, is_sent = next_token(), upstream == '' and 0 or 1
    redis.call('HSET', record, 'digest', digest, 'fingerprint', ARGV[12], 'key', ARGV[13],
        'tenant', ARGV[14], 'service', ARGV[15], 'operation', ARGV[16], 'num_unknown', 0,
        'num_attempts', is_sent, 'created_ms', now, 'expires_ms', now + ttl_ms,
        of_claim(token, claim_id, owner, lease_ms, upstream, deduplicates))
    if is_unwritten then redis.call('HSET', record, 'is_unwritten', 1) end
    redis.call('PEXPIRE', record, ttl_ms)
    return {'claimed', tonumber(token), is_sent, 0, 0, '', is_unwritten and 1 or 0}
end

local state, token, is_in_flight, former, holder, lease_until, number, sent_safely, content,
    is_unwritten = get('state', 'token', 'in_flight', 'upstream', 'claim_id', 'lease_until_ms',
    'num_attempts', 'deduplicates', 'fingerprint', 'is_unwritten')
if content ~= ARGV[12] then return {'mismatch'} end
if state == 'succeeded' or state == 'failed_final' or state == 'dead' then
    return {'settled', state, 0}
end
if state == 'failed_retryable' then
    local new_token, num_attempts = take(digest, claim_id, owner, lease_ms, ttl_ms, upstream, deduplicates)
    return {'claimed', new_token, num_attempts, 0, 0, '', 0}
end
if holder == claim_id then
    return {'claimed', tonumber(token), tonumber(number), 0, 0, '', is_unwritten and 1 or 0}
end
if tonumber(lease_until) > now or ARGV[11] == '0' then return {'running', tonumber(token)} end
if lapse(digest) then return {'settled', 'dead', 0} end
make_durable()
if is_in_flight == '1' and sent_safely == '0' and ARGV[10] == 'fail' then
    redis.call('DEL', chunks, request)
    keep_for(failed_ttl_ms, 'state', 'failed_final', 'token', next_token(),
        'claim_id', '', 'in_flight', 0, 'num_chunks', 0, 'head', '', 'cause', 'outcome_unknown',
        'updated_ms', now)
    redis.call('HINCRBY', record, 'num_unknown', 1)
    return {'settled', 'failed_final', 1}
end
redis.call('HINCRBY', record, 'num_unknown', tonumber(is_in_flight))
local new_token, num_attempts = take(digest, claim_id, owner, lease_ms, ttl_ms, upstream, deduplicates)
return {'claimed', new_token, num_attempts, 1, tonumber(is_in_flight), former, 0}
