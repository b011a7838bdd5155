"""Metrics, step records and their meaning. Decides nothing."""
