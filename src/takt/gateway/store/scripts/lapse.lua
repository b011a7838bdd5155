-- ARGV: now, digest
return lapse(ARGV[2]) and 1 or 0
