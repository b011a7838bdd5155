-- ARGV: now, token, state, ttl_ms, head, cause, attempt or '', has_request, request, digest,
--       first_chunk, chunk ...
local token, state = ARGV[2], ARGV[3]
if not holds(token, true) then
    local now_state, current = get('state', 'token')
    return (now_state == state and current == token and not is_absent()) and 1 or 0
end
local first_chunk, num_chunks = tonumber(ARGV[11]), 0
if first_chunk == 0 then
    redis.call('DEL', chunks)
else
    num_chunks = redis.call('LLEN', chunks)
end
num_chunks = add_chunks(first_chunk, 12, num_chunks)
if ARGV[8] == '1' then redis.call('SET', request, ARGV[9]) end
if ARGV[7] ~= '' then add_attempt(ARGV[7]) end
keep_for(tonumber(ARGV[4]), 'state', state, 'in_flight', 0, 'head', ARGV[5],
    'num_chunks', num_chunks, 'cause', ARGV[6], 'updated_ms', now)
if state == 'dead' then
    redis.call('ZADD', dead, now, ARGV[10])
elseif redis.call('DEL', request) == 1 then
    redis.call('ZREM', dead, ARGV[10])
end
return 1
