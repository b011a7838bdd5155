"""What moving activations between devices costs."""

from __future__ import annotations

from takt.plan.hardware import Accelerator, AllReduce

_ONE_SHOT_LIMIT_BYTES = 256 * 1024
"""Up to here every rank reads all others' copies; beyond, two shots move less."""


def all_reduce_s(accelerator: Accelerator, ranks: int, num_bytes: float) -> float:
    """One all-reduce of `num_bytes` among `ranks`; across nodes in two levels.

    One-shot: a + (N-1) S / B1. Two-shot: a + 2 (N-1)/N S / Bbus. The faster counts for messages up
    to 256 KiB; the second shot's latency is not tabulated and left out.
    """
    if ranks <= 1:
        return 0.0
    local = min(ranks, accelerator.devices_per_node)
    time = _within_node(accelerator, local, num_bytes)
    if ranks > local:
        nodes = -(-ranks // local)
        share = num_bytes / local  # each rank carries its part between nodes
        time += 2 * accelerator.network_latency_s
        time += 2 * (nodes - 1) / nodes * share / accelerator.network_bytes_s
    return time


def hop_s(accelerator: Accelerator, num_bytes: float, *, crosses_nodes: bool) -> float:
    """Sending activations to the next pipeline stage."""
    if crosses_nodes:
        latency = accelerator.hop_s + accelerator.network_latency_s
        return latency + num_bytes / accelerator.network_bytes_s
    return accelerator.hop_s + num_bytes / accelerator.device_link_bytes_s


def wire_bound_s(accelerator: Accelerator, ranks: int, num_bytes: float) -> float:
    """No all-reduce is faster: each rank sends and receives 2 (N-1)/N S at the link's peak."""
    if ranks <= 1:
        return 0.0
    return 2 * (ranks - 1) / ranks * num_bytes / accelerator.device_link_bytes_s


def _within_node(accelerator: Accelerator, ranks: int, num_bytes: float) -> float:
    if ranks <= 1:
        return 0.0
    table = _table(accelerator, ranks)
    two_shot = 2 * (ranks - 1) / ranks * num_bytes / table.large_bytes_s
    if num_bytes <= _ONE_SHOT_LIMIT_BYTES:
        one_shot = (ranks - 1) * num_bytes / table.one_shot_bytes_s
        return table.latency_s + min(one_shot, two_shot)
    return table.latency_s + two_shot


def _table(accelerator: Accelerator, ranks: int) -> AllReduce:
    """The entry for the smallest tabulated count that holds `ranks`, else the largest."""
    tables = accelerator.all_reduces
    if not tables:
        bandwidth = accelerator.host_link_bytes_s / 2
        latency = accelerator.network_latency_s
        return AllReduce(ranks, latency, bandwidth, bandwidth, "through the host")
    fitting = [count for count in tables if count >= ranks]
    return tables[min(fitting) if fitting else max(tables)]
