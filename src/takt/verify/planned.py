"""The plan that is verified: from `takt plan --json`, as far as a check needs it."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

from takt.plan.errors import PlanInputError
from takt.plan.hardware import parse_cluster
from takt.plan.load_estimate import StepLimits
from takt.plan.memory import memory_fit
from takt.plan.model_data import find_model
from takt.plan.precision import parse_precision
from takt.plan.simulate.simulator import SimulatedServer
from takt.plan.step_cost import StepCost
from takt.plan.topology import Topology
from takt.plan.workload import Workload


class _TargetsMs(msgspec.Struct):
    itl_p99: float | None = None
    ttft_p99: float | None = None
    e2e_p99: float | None = None


class _Limits(msgspec.Struct):
    max_num_batched_tokens: int
    max_num_seqs: int


class _Topology(msgspec.Struct):
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    precision: str
    verdict: str
    takt_command: str
    limits: _Limits | None = None


class _Caution(msgspec.Struct):
    bias: float
    noise: float


class Planned(msgspec.Struct):
    """The fields of a plan's JSON; the first topology is the planned one."""

    model: str
    hardware: str
    verdict: str
    workload: dict[str, float]
    targets_ms: _TargetsMs
    topologies: list[_Topology]
    caution: _Caution

    @classmethod
    def read(cls, text: bytes, where: str) -> Planned:
        """Raises `PlanInputError` for what is no plan, or a plan that says no."""
        try:
            plan = msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise PlanInputError(
                f"{where} is not the output of takt plan --json: {error}"
            ) from None
        if not plan.topologies or plan.topologies[0].limits is None:
            raise PlanInputError(
                f"{where} plans nothing that could run: its verdict is {plan.verdict}"
            )
        return plan

    @property
    def offered(self) -> Workload:
        lengths = {
            name: int(self.workload[name])
            for name in ("prompt_tokens", "output_tokens")
            if name in self.workload
        }
        rest = {name: value for name, value in self.workload.items() if name not in lengths}
        try:
            return Workload(**lengths, **rest)  # type: ignore[arg-type]
        except TypeError as error:
            raise PlanInputError(f"the plan's workload is not whole: {error}") from None

    @property
    def serve_arguments(self) -> list[str]:
        """Of `takt serve`, the model first."""
        return shlex.split(self.topologies[0].takt_command)[2:]

    @property
    def num_replicas(self) -> int:
        return self.topologies[0].data_parallel_size

    @property
    def limits(self) -> StepLimits:
        limits = self.topologies[0].limits
        assert limits is not None
        return StepLimits(limits.max_num_batched_tokens, limits.max_num_seqs)

    def simulated_replica(self, hardware_file: Path | None) -> SimulatedServer:
        """One replica with the device model's step times."""
        planned = self.topologies[0]
        model, cluster = find_model(self.model), parse_cluster(self.hardware, hardware_file)
        weights, _, kv = planned.precision.partition(", ")
        precision = parse_precision(weights, kv.removesuffix(" KV") or "auto")
        topology = Topology(
            planned.tensor_parallel_size,
            planned.pipeline_parallel_size,
            planned.data_parallel_size,
        )
        return SimulatedServer(
            duration=StepCost(model, cluster.accelerator, topology, precision),
            max_num_seqs=self.limits.max_num_seqs,
            max_num_batched_tokens=self.limits.max_num_batched_tokens,
            num_kv_tokens=memory_fit(model, cluster.accelerator, topology, precision).num_kv_tokens,
            num_stages=topology.pp,
        )


def read_plan(path: str, standard_input: bytes | None = None) -> Planned:
    """`-` is standard input, whose content is given."""
    if path == "-":
        return Planned.read(standard_input or b"", "standard input")
    try:
        return Planned.read(Path(path).read_bytes(), path)
    except OSError as error:
        raise PlanInputError(f"--plan {path}: {error.strerror}") from None
