"""Block pool, block tables and prefix cache: who owns which KV block.

Hands out ids and counts references. Does not know what a request is and touches no tensor.
"""
