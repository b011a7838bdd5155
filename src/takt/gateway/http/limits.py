"""What one client, and all together, may take of a server; options change it."""

MAX_CONNECTIONS = 8192

READ_SECONDS = 120.0
"""In which a client must read `MIN_READ_BYTES` of its answer, or all that is there of it."""

MIN_READ_BYTES = 65_536
"""One that reads a byte now and then would hold an answer, and its memory, for days."""
