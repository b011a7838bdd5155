"""The engine core's loop, the client to it, the runner and the executors.

Owns the step and the processes. Decides no policy (takt.scheduler) and does no sampling
arithmetic (takt.ops).
"""
