"""How soon the kernel lets a thread run that has just been woken, where every CPU is busy.

Linux's scheduler (EEVDF, from 6.12 on) lets a thread with a shorter time slice preempt one with a
longer one when it wakes; in the long run each gets its fair share all the same, and no privilege is
needed. Threads that carry tokens and answer requests run for microseconds and must not wait for the
end of a slice of a pool thread, which is milliseconds. Threads and processes inherit the slice.
"""

from __future__ import annotations

import ctypes
import os
import struct

SHORT_SLICE_NS = 300_000
"""Of threads that are mostly asleep; the least is 100 us, the usual one 1.4 ms on two CPUs."""

DEFAULT_SLICE = 0

_SYSCALLS = {"x86_64": 314, "aarch64": 274}
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""`struct sched_attr` as it was first: size, policy, flags, nice, priority, runtime, deadline and
period."""


def set_time_slice(slice_ns: int) -> bool:
    """Of the calling thread, whose niceness stays; `DEFAULT_SLICE` is the kernel's own.

    False where the kernel does not know the call. Older ones accept it and take no notice.
    """
    number = _SYSCALLS.get(os.uname().machine)
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, niceness, 0, slice_ns, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    return int(libc.syscall(ctypes.c_long(number), 0, buffer, 0)) == 0
