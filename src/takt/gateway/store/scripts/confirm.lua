-- ARGV: now, token
-- For a claim that nobody has written to since: `holds` makes it durable.
return holds(ARGV[2]) and 1 or 0
