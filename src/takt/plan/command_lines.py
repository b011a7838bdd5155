"""The command lines that start a planned service."""

from __future__ import annotations

import shlex

from takt.plan.model_shape import ModelShape
from takt.plan.verdict import Assessment
from takt.plan.workload import Workload


def takt_command(model: ModelShape, assessment: Assessment, workload: Workload) -> str:
    # A server's own choice of KV goes by the weights that it makes.
    kv_dtype = assessment.precision.kv_dtype
    kv = ["--kv-cache-dtype", "bfloat16" if kv_dtype == "bf16" else kv_dtype]
    return shlex.join(["takt", "serve", *_arguments(model, assessment, workload), *kv])


def vllm_command(model: ModelShape, assessment: Assessment, workload: Workload) -> str:
    """As for Takt; vLLM names the quantisation that it makes itself while loading."""
    arguments = _arguments(model, assessment, workload)
    if assessment.precision.kv_dtype == "fp8":
        arguments += ["--kv-cache-dtype", "fp8"]
    if assessment.precision.weights == "fp8":
        arguments += ["--quantization", "fp8"]
    return shlex.join(["vllm", "serve", *arguments])


def command_notes(assessment: Assessment) -> list[str]:
    """Where the command lines do not say all that was planned."""
    notes = []
    if assessment.precision.weights in ("int8", "int4"):
        notes.append(f"the checkpoint itself must have {assessment.precision.weights} weights")
    if assessment.precision.kv_dtype == "int8":
        notes.append(
            "vLLM has no int8 KV: its command keeps 16 bits, about twice the KV memory planned"
        )
    return notes


def _arguments(model: ModelShape, assessment: Assessment, workload: Workload) -> list[str]:
    topology, limits = assessment.topology, assessment.limits
    arguments = [model.repository]
    for flag, degree in (
        ("--tensor-parallel-size", topology.tp),
        ("--pipeline-parallel-size", topology.pp),
        ("--data-parallel-size", topology.dp),
    ):
        if degree > 1:
            arguments += [flag, str(degree)]
    arguments += ["--max-model-len", str(workload.longest_tokens)]
    if limits is not None:
        arguments += ["--max-num-seqs", str(limits.max_num_seqs)]
        arguments += ["--max-num-batched-tokens", str(limits.max_num_batched_tokens)]
    return arguments
