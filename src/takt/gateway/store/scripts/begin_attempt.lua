-- ARGV: now, token, upstream, deduplicates
if not holds(ARGV[2]) then return 0 end
-- Sent again after a lost answer, it finds in_flight set and counts nothing.
if get('in_flight') == '0' then redis.call('HINCRBY', record, 'num_attempts', 1) end
redis.call('HSET', record, 'in_flight', 1, 'upstream', ARGV[3], 'deduplicates', ARGV[4],
    'updated_ms', now)
return 1
