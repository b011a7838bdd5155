-- ARGV: now, digest
redis.call('ZREM', dead, ARGV[2])
if is_absent() or get('state') ~= 'dead' then return 0 end
redis.call('DEL', record, chunks, request, history)
return 1
