"""A gateway that makes retries safe: idempotency, retries and routing before any OpenAI upstream.

Owns what happens between a client and an upstream; knows nothing of engines.
"""
