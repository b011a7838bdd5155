"""Queues in closed form. Each model says where it is valid and how far off it is elsewhere.

They prune and explain; the step-level simulator decides.
"""
