"""Ranks as Ray actors: placed by a resource of their own, watched, ended."""

from __future__ import annotations

import importlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from takt.engine.rank_worker import RankWorker
from takt.engine.ray_cluster import RANK_RESOURCE, join_cluster
from takt.errors import ConfigError, EngineDeadError
from takt.parallel.layout import ParallelLayout

PLACEMENT_SECONDS = 8.0
"""Time that Ray has to place all ranks where no node seems to have room for them."""
_PATIENCE_SECONDS = 60.0
"""And where nodes seem to have it: Ray takes half a minute to see that a node is gone."""
_LOOK_SECONDS = 1.0
_LAST_WORDS_SECONDS = 0.5
"""A rank that fails ends its neighbours, which may be heard first but know no reason."""


class RayWorkers:
    """An actor for each rank; the ranks of a tensor-parallel group are on one node."""

    def __init__(self, layout: ParallelLayout) -> None:
        self._layout = layout
        self._is_closing = False
        self._groups: list[Any] = []
        self._actors: list[Any] = []
        self._thread: threading.Thread | None = None
        self._nodes_of_ranks: list[Any] = []
        self._cluster = join_cluster(layout.num_ranks)
        self._ray = self._cluster.ray
        try:
            self.ip: str = self._ray.util.get_node_ip_address()
            self._place()
            self._start()
        except BaseException:
            self.close()
            raise

    def call(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        pending = {
            getattr(self._actors[rank], method).remote(*each): rank
            for rank, each in arguments.items()
        }
        while pending:
            done, _ = self._ray.wait(list(pending), num_returns=1)
            for reference in done:
                rank = pending.pop(reference)
                yield rank, self._answer(rank, reference)

    def max_ranks_beside(self, rank: int) -> int | None:
        if self._cluster.is_private:
            return None
        return int(self._nodes_of_ranks[rank]["Resources"].get(RANK_RESOURCE, 0))

    def serve(self, on_end: Callable[[str], None]) -> None:
        runs = {actor.serve.remote(): rank for rank, actor in enumerate(self._actors)}

        def watch() -> None:
            running, seconds, deadline = list(runs), None, math.inf
            cause = ""
            while running and not cause and not self._is_closing:
                done, running = self._ray.wait(running, num_returns=1, timeout=seconds)
                cause = next(filter(None, (self._cause(runs[each], each) for each in done)), "")
                deadline = min(deadline, time.monotonic() + _LAST_WORDS_SECONDS)
                seconds = deadline - time.monotonic()
                if seconds <= 0:
                    break
            if not self._is_closing:
                on_end(cause or "a rank has ended")

        self._thread = threading.Thread(target=watch, name="takt-ray", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        for actor in self._actors:
            self._ray.kill(actor)
        if self._thread is not None:
            self._thread.join()
        for group in self._groups:
            self._ray.util.remove_placement_group(group)
        self._actors, self._groups = [], []
        if self._cluster.is_ours_to_leave:
            self._ray.shutdown()

    # -- placement ----------------------------------------------------------------------------
    def _place(self) -> None:
        """Asks for a placement group for each stage; raises `ConfigError` if there is no room."""
        layout, free = self._layout, self._free_ranks()
        bundles = [{RANK_RESOURCE: 1} for _ in range(layout.tensor_size)]
        self._groups = [
            self._ray.util.placement_group(bundles, strategy="STRICT_PACK")
            for _ in range(layout.num_stages)
        ]
        seems_to_fit = sum(num // layout.tensor_size for num in free.values()) >= layout.num_stages
        seconds = _PATIENCE_SECONDS if seems_to_fit else PLACEMENT_SECONDS
        deadline = time.monotonic() + seconds
        for group in self._groups:
            while not group.wait(_LOOK_SECONDS):
                if time.monotonic() >= deadline:
                    raise ConfigError(self._no_room(free, seconds))

    def _no_room(self, free: dict[str, int], seconds: float) -> str:
        layout, nodes = self._layout, self._nodes()
        has = ", ".join(
            f"{node['NodeManagerAddress']} {free.get(node_id, 0)} of "
            f"{int(node['Resources'].get(RANK_RESOURCE, 0))}"
            for node_id, node in sorted(nodes.items())
        )
        return (
            f"Ray has not placed the ranks within {seconds:g} s: asked for {layout.num_stages} x "
            f"{layout.tensor_size} {RANK_RESOURCE}, each {layout.tensor_size} on one node; free on "
            f"nodes: {has or 'there are none'}; start nodes with `ray start --resources "
            f"'{{\"{RANK_RESOURCE}\": {layout.tensor_size}}}'`"
        )

    def _nodes(self) -> dict[str, Any]:
        return {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}

    def _free_ranks(self) -> dict[str, int]:
        """By the id of the node."""
        available = self._ray._private.state.available_resources_per_node()
        return {
            node_id: int(available.get(node_id, {}).get(RANK_RESOURCE, 0))
            for node_id in self._nodes()
        }

    def _start(self) -> None:
        util, nodes = self._ray.util, self._nodes()
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        actor_class = self._ray.remote(RankWorker)
        for rank in range(self._layout.num_ranks):
            group = self._groups[self._layout.stage_of(rank)]
            index = self._layout.tensor_rank_of(rank)
            node_id = util.placement_group_table(group)["bundles_to_node_id"][index]
            strategy = strategies.PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=index
            )
            actor = actor_class.options(
                num_cpus=0,
                resources={RANK_RESOURCE: 1},
                scheduling_strategy=strategy,
                max_restarts=0,
            ).remote(rank, nodes[node_id]["NodeManagerAddress"])
            self._actors.append(actor)
            self._nodes_of_ranks.append(nodes[node_id])

    # -- answers ------------------------------------------------------------------------------
    def _answer(self, rank: int, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise EngineDeadError(_ending(rank, error)) from None

    def _cause(self, rank: int, reference: Any) -> str:
        try:
            return str(self._answer(rank, reference))
        except EngineDeadError as error:
            return str(error)


def _ending(rank: int, error: Exception) -> str:
    """One sentence of an error that Ray tells on many lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if "cause" in line.lower()), lines[-1] if lines else "")
    return f"rank {rank} has ended: {reason or type(error).__name__}"
