"""A plan as plain data, for machines to read."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from takt.plan.command_lines import command_notes, takt_command, vllm_command
from takt.plan.search import Plan
from takt.plan.verdict import Assessment, Constraint, Latencies


def plan_report(plan: Plan) -> dict[str, Any]:
    """JSON types only; figures that do not exist are null. Times in milliseconds."""
    best = plan.best
    return {
        "model": plan.model.name,
        "num_params": plan.model.num_params,
        "hardware": plan.cluster.label,
        "precision": plan.precision.label,
        "workload": asdict(plan.workload),
        "targets_ms": {
            name: None if value is None else value * 1e3
            for name, value in (
                ("itl_p99", plan.targets.itl_s),
                ("ttft_p99", plan.targets.ttft_s),
                ("e2e_p99", plan.targets.e2e_s),
            )
        },
        "verdict": plan.verdict.value,
        "constraint": _constraint(best.constraint),
        "floors_ms": {
            "token": plan.floors.token_s * 1e3,
            "prefill": plan.floors.prefill_s * 1e3,
            "e2e": plan.floors.e2e_s * 1e3,
        },
        "caution": asdict(plan.caution),
        "topologies": [_assessment(plan, a) for a in plan.assessments],
        "alternatives": [_assessment(plan, a) for a in plan.alternatives],
        "changes": [asdict(change) for change in plan.changes],
    }


def _assessment(plan: Plan, assessment: Assessment) -> dict[str, Any]:
    bounds, memory = assessment.bounds, assessment.memory
    load = assessment.load.batch if assessment.load is not None else None
    topology = assessment.topology
    return {
        "tensor_parallel_size": topology.tp,
        "pipeline_parallel_size": topology.pp,
        "data_parallel_size": topology.dp,
        "num_devices": topology.num_devices,
        "power_w": topology.num_devices * plan.cluster.accelerator.power_w,
        "precision": assessment.precision.label,
        "verdict": assessment.verdict.value,
        "margin": _finite(assessment.margin),
        "constraint": _constraint(assessment.constraint),
        "bounds_ms": {
            "weight_read": bounds.weight_read_s * 1e3,
            "token": bounds.token_s * 1e3,
            "token_with_latency": bounds.token_with_latency_s * 1e3,
            "ttft": bounds.ttft_s * 1e3,
            "e2e": bounds.e2e_s * 1e3,
            "e2e_with_latency": bounds.e2e_with_latency_s * 1e3,
        },
        "alone_ms": _latencies(assessment.alone),
        "p99_ms": _latencies(assessment.predicted),
        "was_simulated": assessment.was_simulated,
        "mean_batch": load.mean_batch if load is not None else None,
        "mixed_step_share": load.mixed_share if load is not None else None,
        "limits": asdict(assessment.limits) if assessment.limits is not None else None,
        "weights_gb": memory.weights_bytes / 1e9,
        "num_kv_tokens": max(0, memory.num_kv_tokens),
        "takt_command": takt_command(plan.model, assessment, plan.workload),
        "vllm_command": vllm_command(plan.model, assessment, plan.workload),
        "command_notes": command_notes(assessment),
    }


def _constraint(constraint: Constraint) -> dict[str, Any]:
    return {name: _finite(value) for name, value in asdict(constraint).items()}


def _latencies(latencies: Latencies | None) -> dict[str, float | None] | None:
    if latencies is None:
        return None
    return {
        "itl": _finite(latencies.itl_s * 1e3),
        "ttft": _finite(latencies.ttft_s * 1e3),
        "e2e": _finite(latencies.e2e_s * 1e3),
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
