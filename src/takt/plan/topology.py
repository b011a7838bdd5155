"""Ways to divide a model among devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from takt.plan.errors import PlanInputError
from takt.plan.hardware import Cluster
from takt.plan.model_shape import ModelShape


@dataclass(frozen=True, slots=True, order=True)
class Topology:
    """`tp` ranks share each matrix, `pp` stages share the layers, `dp` replicas the requests."""

    tp: int
    pp: int
    dp: int

    @property
    def devices_per_replica(self) -> int:
        return self.tp * self.pp

    @property
    def num_devices(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def label(self) -> str:
        return f"TP{self.tp} PP{self.pp} DP{self.dp}"


def topologies(model: ModelShape, cluster: Cluster, pinned: Pinned | None = None) -> list[Topology]:
    """All divisions that the model's shape allows; with fewer replicas than fit, too.

    Degrees are powers of two, beside pinned ones. Raises `PlanInputError` for pinned degrees that
    cannot be.
    """
    pinned = pinned or Pinned()
    found = list(_divisions(model, cluster, pinned))
    if not found:
        raise PlanInputError(pinned.refusal(model, cluster))
    return found


@dataclass(frozen=True, slots=True)
class Pinned:
    """Degrees that the user gave; None is searched."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None

    def __post_init__(self) -> None:
        for flag, value in (
            ("--tensor-parallel-size", self.tp),
            ("--pipeline-parallel-size", self.pp),
            ("--data-parallel-size", self.dp),
        ):
            if value is not None and value < 1:
                raise PlanInputError(f"{flag} must be at least 1, got {value}")

    def refusal(self, model: ModelShape, cluster: Cluster) -> str:
        for degree in (self.tp,):
            if degree is not None and not divides(model, degree):
                return (
                    f"--tensor-parallel-size {degree} does not divide {model.name}: "
                    f"{model.num_heads} heads, {model.num_kv_heads} KV heads, "
                    f"intermediate size {model.intermediate_size}"
                )
        if self.pp is not None and self.pp > model.num_layers:
            return f"--pipeline-parallel-size {self.pp} is more than {model.num_layers} layers"
        needed = (self.tp or 1) * (self.pp or 1) * (self.dp or 1)
        return f"the topology needs {needed} devices, but --hardware gives {cluster.num_devices}"


def divides(model: ModelShape, tp: int) -> bool:
    """Whether heads and MLP can be cut into `tp` equal parts; KV heads may be repeated."""
    kv_heads = model.num_kv_heads
    return (
        model.num_heads % tp == 0
        and (kv_heads % tp == 0 or tp % kv_heads == 0)
        and model.intermediate_size % tp == 0
    )


def _divisions(model: ModelShape, cluster: Cluster, pinned: Pinned) -> Iterator[Topology]:
    count = cluster.num_devices
    for tp in [pinned.tp] if pinned.tp else _powers_of_two(count):
        if not divides(model, tp):
            continue
        for pp in [pinned.pp] if pinned.pp else _powers_of_two(count // tp):
            if pp > model.num_layers:
                continue
            most = count // (tp * pp)
            degrees = [pinned.dp] if pinned.dp else sorted({*_powers_of_two(most), most} - {0})
            for dp in degrees:
                if tp * pp * dp <= count:
                    yield Topology(tp, pp, dp)


def _powers_of_two(limit: int) -> list[int]:
    return [1 << i for i in range(limit.bit_length()) if 1 << i <= limit]
