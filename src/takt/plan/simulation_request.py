"""What `takt simulate` is asked, turned into experiments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from takt.plan.errors import PlanInputError, require_positive, require_whole, unknown_name
from takt.plan.hardware import Accelerator, Cluster, parse_cluster
from takt.plan.load_estimate import StepLimits, estimate_load
from takt.plan.memory import MemoryFit, memory_fit
from takt.plan.model_data import find_model
from takt.plan.model_shape import ModelShape
from takt.plan.precision import precision_for
from takt.plan.simulate.arrivals import LengthDistribution
from takt.plan.simulate.kv_io import KVTransfers
from takt.plan.simulate.replicate import Experiment, PoissonLoad, TraceLoad
from takt.plan.simulate.simulator import SimulatedServer
from takt.plan.simulate.traces import read_trace, scale_rate
from takt.plan.step_cost import StepCost
from takt.plan.topology import Pinned, Topology, topologies
from takt.plan.workload import Workload
from takt.scheduler.slo import SLO, is_target_ms

KV_IO = ("none", "sync", "async", "both")
_RESERVATIONS = ("full", "optimistic")
_POLICIES = ("auto", "fcfs", "priority", "pace")
_ADMISSIONS = ("queue", "refuse")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRequest:
    """One topology under one load; either `requests_per_s` or `trace` is given."""

    model: str
    hardware: str
    hardware_file: Path | None = None
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 512
    kv_reservation: str = "full"
    kv_io: str = "none"
    policy: str = "auto"
    slo_itl_p99_ms: float | None = None
    slo_ttft_p99_ms: float | None = None
    admission: str = "queue"
    requests_per_s: float | None = None
    trace: Path | None = None
    rate_factor: float = 1.0
    prompt_tokens: int = 512
    output_tokens: int = 128
    prompt_variation: float = 0.0
    output_variation: float = 0.0
    num_requests: int = 2000
    step_noise: float = 0.0
    seed: int = 0

    def experiments(self) -> dict[str, Experiment]:
        """One for each variant of KV transfers, of one replica with its share of the requests.

        Raises `PlanInputError` for names and figures that cannot be.
        """
        if self.kv_io not in KV_IO:
            raise unknown_name("--kv-io", self.kv_io, KV_IO)
        if self.kv_reservation not in _RESERVATIONS:
            raise unknown_name("--kv-reservation", self.kv_reservation, _RESERVATIONS)
        self._check_contract()
        load = self._load()
        server, accelerator, memory = self._server()
        variants = ("sync", "async") if self.kv_io == "both" else (self.kv_io,)
        experiments = {}
        for variant in variants:
            transfers = None
            if variant != "none":
                transfers = KVTransfers(
                    memory.kv_bytes_per_token, accelerator.host_link_bytes_s, variant == "async"
                )
            name = "no KV transfers" if transfers is None else f"{variant} KV transfers"
            experiments[name] = Experiment(
                replace(server, transfers=transfers), load, noise=self.step_noise, seed=self.seed
            )
        return experiments

    def estimate(self) -> dict[str, float] | None:
        """The closed forms' P99s in milliseconds and mean batch, by the simulation's names.

        None for a trace, for KV transfers, for pace, and where there is no stable state.
        """
        if self.requests_per_s is None or self.kv_io != "none" or self._is_paced:
            return None
        model = find_model(self.model)
        cluster = parse_cluster(self.hardware, self.hardware_file)
        topology = self._topology(model, cluster)
        precision = precision_for(model, self.dtype, self.kv_cache_dtype)
        load = estimate_load(
            StepCost(model, cluster.accelerator, topology, precision),
            memory_fit(model, cluster.accelerator, topology, precision),
            Workload(
                self.prompt_tokens,
                self.output_tokens,
                self.requests_per_s,
                self.prompt_variation,
                self.output_variation,
            ),
            topology.dp,
            StepLimits(self.max_num_batched_tokens, self.max_num_seqs),
        )
        if load.batch is None:
            return None
        return {
            "itl_p99_ms": load.itl_p99_s * 1e3,
            "ttft_p99_ms": load.ttft_p99_s * 1e3,
            "e2e_p99_ms": load.e2e_p99_s * 1e3,
            "mean_running": load.batch.mean_batch * topology.pp,
        }

    @property
    def _is_paced(self) -> bool:
        given = self.slo_itl_p99_ms is not None or self.slo_ttft_p99_ms is not None
        return self.policy == "pace" or (self.policy == "auto" and given)

    def _check_contract(self) -> None:
        for name, value, known in (
            ("--policy", self.policy, _POLICIES),
            ("--admission", self.admission, _ADMISSIONS),
        ):
            if value not in known:
                raise unknown_name(name, value, known)
        for name, target in (
            ("--slo-itl-p99-ms", self.slo_itl_p99_ms),
            ("--slo-ttft-p99-ms", self.slo_ttft_p99_ms),
        ):
            if target is not None and not is_target_ms(target):
                raise PlanInputError(f"{name} must be milliseconds above 0, got {target}")
        if self.admission == "refuse" and not self._is_paced:
            raise PlanInputError("--admission refuse needs --policy pace and a target")

    def _topology(self, model: ModelShape, cluster: Cluster) -> Topology:
        pinned = Pinned(
            self.tensor_parallel_size, self.pipeline_parallel_size, self.data_parallel_size
        )
        return topologies(model, cluster, pinned)[0]

    def _server(self) -> tuple[SimulatedServer, Accelerator, MemoryFit]:
        model = find_model(self.model)
        cluster = parse_cluster(self.hardware, self.hardware_file)
        topology = self._topology(model, cluster)
        precision = precision_for(model, self.dtype, self.kv_cache_dtype)
        memory = memory_fit(model, cluster.accelerator, topology, precision)
        if memory.num_kv_tokens < 1:
            raise PlanInputError(
                f"{model.name} does not fit: weights of {memory.weights_bytes / 1e9:.1f} GB and "
                f"{memory.reserve_bytes / 1e9:.1f} GB of reserve on devices of "
                f"{memory.capacity_bytes / 1e9:.0f} GB; give more devices or another --dtype"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise PlanInputError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is less than "
                f"--max-num-seqs {self.max_num_seqs}; raise the one or lower the other"
            )
        server = SimulatedServer(
            duration=StepCost(model, cluster.accelerator, topology, precision),
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            num_kv_tokens=memory.num_kv_tokens,
            num_stages=topology.pp,
            kv_reservation=self.kv_reservation,
            scheduling_policy=self.policy,
            slo=SLO.from_ms(self.slo_itl_p99_ms, self.slo_ttft_p99_ms),
            admission=self.admission,
        )
        return server, cluster.accelerator, memory

    def _load(self) -> PoissonLoad | TraceLoad:
        if (self.requests_per_s is None) == (self.trace is None):
            raise PlanInputError("give either --qps or --trace")
        replicas = require_whole("--data-parallel-size", self.data_parallel_size)
        if self.trace is not None:
            arrivals = read_trace(self.trace)
            arrivals = scale_rate(arrivals, self.rate_factor)[::replicas]
            return TraceLoad(tuple(arrivals[: self.num_requests]))
        assert self.requests_per_s is not None
        return PoissonLoad(
            require_positive("--qps", self.requests_per_s) / replicas,
            require_whole("--num-requests", self.num_requests),
            LengthDistribution(self.prompt_tokens, self.prompt_variation),
            LengthDistribution(self.output_tokens, self.output_variation),
        )
