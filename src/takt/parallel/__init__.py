"""Where ranks run and how they reach each other: topology, grouping, pinning, cost of collectives.

Imports neither torch nor the native module, and knows no model.
"""
