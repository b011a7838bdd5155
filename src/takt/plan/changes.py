"""What would turn a no into a yes, by the closed forms and with a margin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from takt.plan.assess import Question, assess
from takt.plan.hardware import Accelerator, Cluster, known_accelerators
from takt.plan.precision import Precision
from takt.plan.topology import Pinned, Topology, topologies
from takt.plan.verdict import Assessment, Verdict
from takt.plan.workload import Targets

_MARGIN = 1.08
"""A change counts if the estimate leaves this much room."""
_MOST_DEVICES = 64
_MAX_TIGHTENED = 3
_MAX_ROUNDS = 12
_LEAST_RATE_PER_S = 1e-3


@dataclass(frozen=True, slots=True)
class Change:
    """`added_power_w` orders changes; a change of the targets or the load adds none but gives up
    service, so it comes after those that keep it."""

    kind: str  # "precision" | "topology" | "hardware" | "load" | "target"
    text: str
    topology: Topology
    added_power_w: float


def find_changes(
    question: Question,
    cluster: Cluster,
    precision: Precision,
    found: Sequence[Assessment],
    alternatives: Sequence[Assessment],
    pinned: Pinned,
) -> list[Change]:
    """Cheapest first: other precisions asked for, topologies, devices; then less load, then
    targets that the given hardware can hold."""
    changes = [_precision_change(a) for a in alternatives if a.verdict is Verdict.HOLD]
    if pinned != Pinned():
        changes += _topology_change(question, cluster, precision)
    changes += _hardware_changes(question, cluster, precision)
    # What needs no other devices comes first.
    changes.sort(key=lambda change: (change.kind == "hardware", change.added_power_w))
    if any(a.verdict in (Verdict.LOAD_NO, Verdict.CANDIDATE) for a in found):
        changes += _load_change(question, found, precision)
    changes += _target_changes(question, found, precision)
    if pinned != Pinned():
        free = [assess(question, t, precision) for t in topologies(question.model, cluster)]
        others = _target_changes(question, free, precision)
        changes += [change for change in others if change not in changes]
    return changes


def _precision_change(held: Assessment) -> Change:
    return Change(
        "precision", f"--dtype {held.precision.name} ({held.topology.label})", held.topology, 0.0
    )


def _topology_change(question: Question, cluster: Cluster, precision: Precision) -> list[Change]:
    best = _best_estimate(question, cluster, precision)
    if best is None or best.ratio * _MARGIN > 1:
        return []
    return [Change("topology", f"{best.topology.label} instead", best.topology, 0.0)]


def _hardware_changes(question: Question, cluster: Cluster, precision: Precision) -> list[Change]:
    """For each device the smallest count, from one node's worth of what is there, that holds."""
    power_now = cluster.num_devices * cluster.accelerator.power_w
    changes = []
    for accelerator in known_accelerators().values():
        count = 1
        if accelerator.name == cluster.accelerator.name:
            count = 2 * cluster.num_devices
        while count <= max(_MOST_DEVICES, 2 * cluster.num_devices):
            best = _best_estimate(
                replace(question, accelerator=accelerator),
                Cluster(accelerator, count),
                precision,
            )
            if best is not None and best.ratio * _MARGIN <= 1:
                changes.append(_hardware_change(accelerator, count, best, power_now))
                break
            count *= 2
    return changes


def _hardware_change(
    accelerator: Accelerator, count: int, best: Assessment, power_now: float
) -> Change:
    power = count * accelerator.power_w
    text = f"--hardware {count}x{accelerator.name} ({best.topology.label}, {power / 1e3:.1f} kW)"
    return Change("hardware", text, best.topology, power - power_now)


def _load_change(
    question: Question, found: Sequence[Assessment], precision: Precision
) -> list[Change]:
    """The most requests a second that some topology which is fast enough alone takes."""
    best_rate, best_topology = 0.0, None
    for assessment in found:
        if assessment.verdict not in (Verdict.LOAD_NO, Verdict.CANDIDATE):
            continue
        rate = capacity(question, assessment.topology, precision, above=best_rate)
        if rate > best_rate:
            best_rate, best_topology = rate, assessment.topology
    if best_topology is None:
        return []
    text = f"--qps {best_rate:.3g} ({best_topology.label})"
    return [Change("load", text, best_topology, 0.0)]


def capacity(
    question: Question, topology: Topology, precision: Precision, above: float = 0.0
) -> float:
    """Requests a second up to which the estimate leaves the margin; 0 if `above` is not reached.

    Within 2 %, by bisection of the logarithm between `above` and the question's own rate.
    """
    low, high = max(above, _LEAST_RATE_PER_S), question.workload.requests_per_s
    if low >= high or not _holds_at(question, topology, precision, low):
        return 0.0
    while high > 1.02 * low:
        middle = math.sqrt(low * high)
        if _holds_at(question, topology, precision, middle):
            low = middle
        else:
            high = middle
    return low


def _holds_at(question: Question, topology: Topology, precision: Precision, rate: float) -> bool:
    slower = replace(question, workload=replace(question.workload, requests_per_s=rate))
    answer = assess(slower, topology, precision)
    return answer.verdict is Verdict.CANDIDATE and answer.ratio * _MARGIN <= 1


def _target_changes(
    question: Question, found: Sequence[Assessment], precision: Precision
) -> list[Change]:
    """The tightest targets, each rounded up, that the best topology holds under this load."""
    answers = []
    for assessment in found:
        if assessment.constraint.name == "memory":
            continue
        relaxed = replace(question, targets=_scaled(question.targets, 1e6))
        answer = assess(relaxed, assessment.topology, precision)
        if answer.predicted is not None and math.isfinite(answer.predicted.e2e_s):
            answers.append(answer)
    answers.sort(key=lambda answer: _worst(question, answer))
    tightened = [_tightened(question, answer, precision) for answer in answers[:_MAX_TIGHTENED]]
    if not tightened:
        return []
    answer = min(tightened, key=lambda answer: _worst(question, answer))
    assert answer.predicted is not None
    flags = []
    for name, ratio in answer.predicted.ratios(question.targets).items():
        if ratio * _MARGIN > 1:
            target = getattr(question.targets, f"{name}_s")
            flags.append(f"--slo-{name}-p99-ms {_round_up(ratio * _MARGIN * target * 1e3):g}")
    if not flags:
        return []
    return [Change("target", f"{' '.join(flags)} ({answer.topology.label})", answer.topology, 0.0)]


def _worst(question: Question, answer: Assessment) -> float:
    assert answer.predicted is not None
    return answer.predicted.worst(question.targets)[1]


def _tightened(question: Question, answer: Assessment, precision: Precision) -> Assessment:
    """The step budget that misses the targets by the smallest common factor.

    With targets at what it has, a budget is chosen again as long as that leaves room.
    """
    for _ in range(_MAX_ROUNDS):
        factor = _worst(question, answer)
        targets = _scaled(question.targets, factor)
        better = assess(replace(question, targets=targets), answer.topology, precision)
        if better.predicted is None or _worst(question, better) >= factor * (1 - 1e-6):
            break
        answer = better
    return answer


def _best_estimate(question: Question, cluster: Cluster, precision: Precision) -> Assessment | None:
    """With all devices in use; None if no topology is fast enough alone.

    Pipelines shorten no token: they are tried only where the model does not fit without.
    """
    best: Assessment | None = None
    divisions = topologies(question.model, cluster)
    for topology in sorted(divisions, key=lambda t: t.pp):
        if topology.pp > 1 and best is not None:
            break
        if topology.dp != cluster.num_devices // topology.devices_per_replica:
            continue
        answer = assess(question, topology, precision)
        if answer.verdict is Verdict.CANDIDATE and (best is None or answer.ratio < best.ratio):
            best = answer
        elif answer.verdict is Verdict.LOAD_NO and best is None and topology.pp == 1:
            best = answer  # it fits, so that no pipeline is needed
    return best


def _scaled(targets: Targets, factor: float) -> Targets:
    def scaled(value: float | None) -> float | None:
        return None if value is None else value * factor

    return Targets(scaled(targets.itl_s), scaled(targets.ttft_s), scaled(targets.e2e_s))


def _round_up(value: float) -> float:
    """Two digits that count."""
    step = 10 ** (math.floor(math.log10(value)) - 1)
    return float(math.ceil(value / step - 1e-9) * step)
