"""Tries every topology, simulates the most promising, and says why the others fall."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from takt.plan.assess import Caution, Question, assess, confirm
from takt.plan.bounds import ClusterFloors, cluster_floors
from takt.plan.changes import Change, find_changes
from takt.plan.errors import PlanInputError
from takt.plan.hardware import Cluster
from takt.plan.model_shape import ModelShape
from takt.plan.precision import Precision
from takt.plan.topology import Pinned, topologies
from takt.plan.verdict import Assessment, Verdict
from takt.plan.workload import Targets, Workload

_MAX_SIMULATIONS = 3
_SECOND_CHANCE_RATIO = 1.05
"""Once a surer candidate has failed, those estimated above this are not worth a simulation."""
_TOKENS_PER_SIMULATION = 150_000
"""Bounds a simulation's time; long outputs are simulated with fewer requests."""
_LEAST_REQUESTS = 500

OnProgress = Callable[[str, int, int], None]
"""Stage, done, total."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer for a cluster: assessments from the best on."""

    model: ModelShape
    cluster: Cluster
    precision: Precision
    workload: Workload
    targets: Targets
    caution: Caution
    floors: ClusterFloors
    assessments: list[Assessment]
    alternatives: list[Assessment]
    """The best topology at each other precision that was asked for."""
    changes: list[Change]
    """What would make it hold, the cheapest first; empty for HOLD."""

    @property
    def best(self) -> Assessment:
        return self.assessments[0]

    @property
    def verdict(self) -> Verdict:
        return self.best.verdict


@dataclass(frozen=True, slots=True)
class PlanRequest:
    model: ModelShape
    cluster: Cluster
    precision: Precision
    workload: Workload
    targets: Targets
    pinned: Pinned = field(default_factory=Pinned)
    caution: Caution = field(default_factory=Caution)
    other_precisions: Sequence[Precision] = ()


def make_plan(request: PlanRequest, on_progress: OnProgress | None = None) -> Plan:
    """Raises `PlanInputError` for degrees that the model or the cluster cannot have, and for
    requests longer than the model's context."""
    longest, limit = request.workload.longest_tokens, request.model.max_position_embeddings
    if longest > limit:
        raise PlanInputError(
            f"requests of up to {longest} tokens (--isl and --osl with their variation) are longer "
            f"than {request.model.name}'s context, {limit}"
        )
    requests_fit = _TOKENS_PER_SIMULATION // request.workload.output_tokens
    fewest = min(_LEAST_REQUESTS, request.caution.num_requests)
    caution = replace(
        request.caution,
        num_requests=max(fewest, min(request.caution.num_requests, requests_fit)),
    )
    question = Question(
        request.model, request.cluster.accelerator, request.workload, request.targets, caution
    )
    found = _search(question, request, request.precision, on_progress)
    alternatives = []
    for other in request.other_precisions:
        if other != request.precision:
            alternatives.append(_search(question, request, other, None)[0])
    changes: list[Change] = []
    if found[0].verdict is not Verdict.HOLD:
        changes = find_changes(
            question, request.cluster, request.precision, found, alternatives, request.pinned
        )
    return Plan(
        model=request.model,
        cluster=request.cluster,
        precision=request.precision,
        workload=request.workload,
        targets=request.targets,
        caution=caution,
        floors=cluster_floors(request.model, request.cluster, request.precision, request.workload),
        assessments=found,
        alternatives=alternatives,
        changes=changes,
    )


def _search(
    question: Question,
    request: PlanRequest,
    precision: Precision,
    on_progress: OnProgress | None,
) -> list[Assessment]:
    """Assessments, best first: by verdict, then fewer devices if it holds, then the margin."""
    divisions = topologies(request.model, request.cluster, request.pinned)
    found: list[Assessment] = []
    for topology in divisions:
        found.append(assess(question, topology, precision))
        if on_progress is not None:
            on_progress("topologies", len(found), len(divisions))
    _confirm_best(question, found, on_progress)
    return sorted(found, key=_order)


def _confirm_best(
    question: Question, found: list[Assessment], on_progress: OnProgress | None
) -> None:
    """Simulates the surest candidate first, then the cheapest that should hold.

    A surer one that fails leaves the next to try; candidates left over keep their estimate.
    """
    has_held = False
    for done in range(_MAX_SIMULATIONS):
        candidates = [a for a in found if a.verdict is Verdict.CANDIDATE]
        if done and not has_held:
            candidates = [a for a in candidates if a.ratio <= _SECOND_CHANCE_RATIO]
        if has_held:
            cheapest = min(a.topology.num_devices for a in found if a.verdict is Verdict.HOLD)
            candidates = [
                a for a in candidates if a.ratio <= 0.95 and a.topology.num_devices < cheapest
            ]
        if not candidates:
            return
        if on_progress is not None:
            on_progress("simulations", done, _MAX_SIMULATIONS)
        if has_held:
            chosen = min(candidates, key=lambda a: (a.topology.num_devices, a.ratio))
        else:
            chosen = min(candidates, key=lambda a: a.ratio)
        confirmed = confirm(question, chosen)
        has_held = has_held or confirmed.verdict is Verdict.HOLD
        found[found.index(chosen)] = confirmed


def _order(assessment: Assessment) -> tuple[float, ...]:
    verdict = assessment.verdict
    rank = verdict.rank
    if verdict is Verdict.CANDIDATE:
        rank = Verdict.LOAD_NO.rank  # nothing vouches for it yet
    devices = assessment.topology.num_devices if verdict is Verdict.HOLD else 0
    return (-rank, devices, not assessment.was_simulated, assessment.ratio)
