"""From the options of `takt verify` to what is verified."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from takt.plan.errors import PlanInputError
from takt.plan.hardware import parse_cluster
from takt.plan.load_estimate import StepLimits
from takt.plan.model_data import find_model
from takt.plan.precision import precision_for
from takt.plan.report import plan_report
from takt.plan.search import PlanRequest, make_plan
from takt.plan.workload import Targets, Workload
from takt.verify.options import VerifyOptions
from takt.verify.planned import Planned, read_plan
from takt.verify.verify import Request


@dataclass(frozen=True, slots=True)
class VerifyFlags:
    """The options, and the model named beside them; `standard_input` goes with `--plan -`."""

    model: str | None
    options: VerifyOptions
    standard_input: bytes = b""

    def request(self) -> Request:
        """Raises `ConfigError` for flags that contradict each other."""
        options = self.options
        planned = self._planned()
        workload = self._workload(planned)
        return Request(
            workload=workload,
            targets=self._targets(planned),
            limits=self._limits(planned),
            planned=planned,
            hardware_file=_path(options.hardware_file),
            url=options.url,
            serve_arguments=() if options.url is not None else self._serve_arguments(planned),
            by_plan=options.by == "plan" or (options.by == "auto" and planned is not None),
            by_load=options.by == "load",
            load=options.load,
            num_requests=options.num_requests,
            tolerance=options.tolerance,
            model_name=options.served_model_name,
            endpoint=options.endpoint,
            api_key=options.api_key,
            seed=options.seed,
        )

    def _planned(self) -> Planned | None:
        options = self.options
        if options.plan is not None:
            if options.hardware is not None:
                raise PlanInputError("--plan names the hardware: leave --hardware out")
            return read_plan(options.plan, self.standard_input)
        if options.hardware is None:
            return None
        if self.model is None:
            raise PlanInputError("--hardware makes a plan, which needs a model")
        targets = self._targets(None)
        if targets is None:
            raise PlanInputError("--hardware makes a plan, which needs one of --slo-itl-p99-ms, …")
        shape = find_model(self.model)
        made = make_plan(
            PlanRequest(
                model=shape,
                cluster=parse_cluster(options.hardware, _path(options.hardware_file)),
                precision=precision_for(shape, options.dtype, options.kv_cache_dtype),
                workload=self._workload(None),
                targets=targets,
            )
        )
        return Planned.read(msgspec.json.encode(plan_report(made)), "the plan")

    def _workload(self, planned: Planned | None) -> Workload:
        options = self.options
        if planned is not None:
            offered = planned.offered
            return offered if options.qps is None else replace(offered, requests_per_s=options.qps)
        if options.qps is None and options.load is None:
            raise PlanInputError("the load is not given: --qps, --load, or a --plan")
        if options.qps is not None and options.load is not None:
            raise PlanInputError("--qps and --load exclude each other")
        rate = 1.0 if options.qps is None else options.qps
        return Workload(
            options.isl, options.osl, rate, options.isl_variation, options.osl_variation
        )

    def _targets(self, planned: Planned | None) -> Targets | None:
        options = self.options
        given = [options.slo_itl_p99_ms, options.slo_ttft_p99_ms, options.slo_e2e_p99_ms]
        if planned is not None:
            of_plan = planned.targets_ms
            planned_ms = [of_plan.itl_p99, of_plan.ttft_p99, of_plan.e2e_p99]
            given = [b if a is None else a for a, b in zip(given, planned_ms, strict=True)]
        return None if given == [None, None, None] else Targets.from_ms(*given)

    def _limits(self, planned: Planned | None) -> StepLimits:
        options = self.options
        if planned is not None:
            return planned.limits
        return StepLimits(options.max_num_batched_tokens, options.max_num_seqs)

    def _serve_arguments(self, planned: Planned | None) -> tuple[str, ...]:
        options = self.options
        if planned is not None:
            arguments = planned.serve_arguments
            if self.model is not None and options.hardware is None:
                arguments[0] = self.model
        elif self.model is None:
            raise PlanInputError("nothing is named to verify: a MODEL, a --plan, or a --url")
        else:
            arguments = [self.model, "--max-num-seqs", str(options.max_num_seqs)]
            arguments += ["--max-num-batched-tokens", str(options.max_num_batched_tokens)]
        return (*arguments, *shlex.split(options.serve_flags))


def _path(value: str | None) -> Path | None:
    return None if value is None else Path(value)
