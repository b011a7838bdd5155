"""HTTP/1.1 on asyncio's transports and httptools' parser: clients' connections and upstreams'.

Knows nothing of keys, stores or retries.
"""
