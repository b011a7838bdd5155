"""Which host each rank is on, and which hops between stages leave a host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from takt.errors import ConfigError
from takt.parallel.layout import ParallelLayout

ENGINE_HOST = 0
"""The engine's own host, whether or not a rank is on it."""


@dataclass(frozen=True, slots=True)
class HostMap:
    """`hosts[rank]` is the number of the rank's host; hosts are those that share memory."""

    layout: ParallelLayout
    hosts: tuple[int, ...]

    @staticmethod
    def of(layout: ParallelLayout, engine_key: str, rank_keys: Sequence[str]) -> HostMap:
        """Hosts are told apart by `host_key`; raises `ConfigError` for a group on several."""
        numbers = {engine_key: ENGINE_HOST}
        for key in rank_keys:
            numbers.setdefault(key, len(numbers))
        host_map = HostMap(layout, tuple(numbers[key] for key in rank_keys))
        for stage in range(layout.num_stages):
            first = stage * layout.tensor_size
            group = host_map.hosts[first : first + layout.tensor_size]
            if len(set(group)) > 1:
                raise ConfigError(
                    f"the {layout.tensor_size} tensor-parallel ranks of stage {stage} are on "
                    f"{len(set(group))} hosts: on CPUs they must share memory"
                )
        return host_map

    @property
    def num_hosts(self) -> int:
        return max(ENGINE_HOST, *self.hosts) + 1

    @property
    def remote_hosts(self) -> range:
        return range(ENGINE_HOST + 1, self.num_hosts)

    @property
    def sampling_host(self) -> int:
        return self.hosts[self.layout.sampling_rank]

    def host_of_stage(self, stage: int) -> int:
        return self.hosts[stage * self.layout.tensor_size]

    def ranks_on(self, host: int) -> list[int]:
        return [rank for rank, its_host in enumerate(self.hosts) if its_host == host]

    def leader_of(self, host: int) -> int:
        """The rank whose process carries what leaves and enters the host."""
        return self.hosts.index(host)

    @property
    def leaders(self) -> list[int]:
        return [self.leader_of(host) for host in sorted(set(self.hosts))]

    @property
    def hops(self) -> list[int]:
        """Stages whose next stage is on another host."""
        return [
            stage
            for stage in range(self.layout.num_stages - 1)
            if self.host_of_stage(stage) != self.host_of_stage(stage + 1)
        ]


def host_key(proc: Path = Path("/proc")) -> str:
    """Equal in processes that can hand each other memory: of one kernel and one network namespace.

    Containers of one machine that have networks of their own count as hosts.
    """
    boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {(proc / 'self/ns/net').readlink()}"
