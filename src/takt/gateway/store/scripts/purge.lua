-- ARGV: now, digest
lapse(ARGV[2])
if not is_absent() and get('state') ~= 'dead' then return 0 end
redis.call('ZREM', dead, ARGV[2])
if is_absent() then return 0 end
redis.call('DEL', record, chunks, request, history)
return 1
