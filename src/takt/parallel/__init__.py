"""Where ranks run, what each holds, and how they reach each other.

Topology, grouping, pinning and the cost of collectives; the sharding plan; shared memory and links.
Knows no model file and no operator; the first three import neither torch nor the native module.
"""
