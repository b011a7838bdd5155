-- Stands before every script. Each sees the keys of one record, and a time of its own.
local record, chunks, request, history = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local fence, dead = KEYS[5], KEYS[6]
local now = tonumber(ARGV[1])
local now_us = now * 1000
if now == 0 then
    local time = redis.call('TIME')
    now_us = time[1] * 1000000 + time[2]
    now = math.floor(now_us / 1000)
end

local function get(...)
    return unpack(redis.call('HMGET', record, ...))
end

local function is_over(expires)
    return not expires or tonumber(expires) <= now
end

local function is_absent()
    return is_over(redis.call('HGET', record, 'expires_ms'))
end

-- What an unwritten claim made is in memory alone (claim.lua): the file and the replicas have no key
-- of the record's. Its next writer gives them all of it first, and the time that it has left, unless
-- it is to have another.
local function make_durable(gets_other_time)
    if redis.call('HDEL', record, 'is_unwritten') == 0 then return end
    redis.call('HSET', record, unpack(redis.call('HGETALL', record)))
    if not gets_other_time then
        redis.call('PEXPIRE', record, math.max(redis.call('PTTL', record), 1))
    end
end

-- Whoever holds a record is about to write to it: it is durable from here on.
local function holds(token, gets_other_time)
    local state, current, expires, is_unwritten = get('state', 'token', 'expires_ms', 'is_unwritten')
    if state ~= 'processing' or current ~= token or is_over(expires) then return false end
    if is_unwritten then make_durable(gets_other_time) end
    return true
end

local function last_token()
    return tonumber(redis.call('GET', fence) or 0)
end

-- As text, which `holds` compares; Lua's own has 14 digits of a number. Tokens follow the clock, in
-- us, since the file does not see those of unwritten claims: after a restart the next one is greater than all
-- before, as long as the clock was not set back by more than Redis was away.
local function next_token()
    local token = string.format('%.0f', math.max(last_token() + 1, now_us))
    redis.call('SET', fence, token)
    return token
end

-- Sets fields of the record too: names and values in turn.
local function keep_for(ttl_ms, ...)
    redis.call('HSET', record, 'expires_ms', now + ttl_ms, ...)
    for i = 1, 4 do redis.call('PEXPIRE', KEYS[i], ttl_ms) end
end

-- Chunks of ARGV, `length` being there already; returns how many there are then.
local function add_chunks(first_chunk, from, length)
    for i = from, #ARGV do
        -- Sent again after a lost answer, a chunk is there already.
        if first_chunk + (i - from) >= length then
            length = redis.call('RPUSH', chunks, ARGV[i])
        end
    end
    return length
end

local function add_attempt(attempt)
    if redis.call('LINDEX', history, -1) == attempt then return end
    redis.call('RPUSH', history, attempt)
    redis.call('LTRIM', history, -64, -1)
    redis.call('PEXPIRE', history, math.max(redis.call('PTTL', record), 1))
end

-- Fields of a record that is claimed, names and values in turn.
local function of_claim(token, claim_id, owner, lease_ms, upstream, deduplicates)
    return 'state', 'processing', 'token', token, 'claim_id', claim_id, 'owner', owner,
        'lease_until_ms', now + lease_ms, 'in_flight', upstream == '' and 0 or 1,
        'upstream', upstream, 'deduplicates', deduplicates, 'num_chunks', 0, 'cause', '', 'head', '',
        'updated_ms', now
end

-- A letter that is replayed keeps its request, and among the dead the place 0.
local function take(digest, claim_id, owner, lease_ms, ttl_ms, upstream, deduplicates, is_replay)
    local token = next_token()
    redis.call('DEL', chunks)
    if is_replay then
        redis.call('ZADD', dead, 0, digest)
    else
        redis.call('DEL', request)
        redis.call('ZREM', dead, digest)
    end
    keep_for(ttl_ms, of_claim(token, claim_id, owner, lease_ms, upstream, deduplicates))
    local is_sent = upstream == '' and 0 or 1
    return tonumber(token), redis.call('HINCRBY', record, 'num_attempts', is_sent)
end

-- A letter whose replay was killed is dead again: true if this is one.
local function lapse(digest)
    local state, lease_until, in_flight = get('state', 'lease_until_ms', 'in_flight')
    if state ~= 'processing' or tonumber(lease_until) > now or is_absent()
        or redis.call('EXISTS', request) == 0 then
        return false
    end
    redis.call('DEL', chunks)
    redis.call('HINCRBY', record, 'num_unknown', tonumber(in_flight))
    redis.call('HSET', record, 'state', 'dead', 'in_flight', 0, 'num_chunks', 0, 'head', '',
        'cause', 'replay_interrupted', 'updated_ms', now)
    redis.call('ZADD', dead, now, digest)
    return true
end
