"""From targets to a topology or to an honest no: hardware data, step times, queues, simulation.

Owns the figures of machines and models and what follows from them. Runs no kernel and measures
nothing; the simulator's decisions are those of the engine's own scheduler.
"""
