"""A plan against a service: what is read, learned, predicted, measured and judged."""

from __future__ import annotations

import asyncio
import itertools
import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_log import simulated_log

from bench_records import make_record
from fake_sse_server import Answer, FakeSseServer, well_behaved
from logged_step import step
from takt.bench.load import LoadRun
from takt.bench.quantiles import Quantile
from takt.cli.main import main
from takt.errors import ConfigError
from takt.observe.step_log import StepLog
from takt.plan.simulate.arrivals import Arrival, LengthDistribution, poisson_arrivals
from takt.plan.simulate.simulator import SimulatedServer, simulate
from takt.plan.workload import Targets
from takt.scheduler.step_time import StepCoefficients, StepTimeModel
from takt.verify import verify as verifying
from takt.verify.calibration import (
    Calibration,
    Limits,
    LoadCalibration,
    fit,
    fit_load,
    step_periods,
)
from takt.verify.comparison import Outcome, compare
from takt.verify.flags import VerifyFlags
from takt.verify.measurement import LoadError, Measurement, measure
from takt.verify.options import VerifyOptions
from takt.verify.outside import left_out
from takt.verify.planned import read_plan
from takt.verify.prediction import Band, Prediction, from_steps
from takt.verify.service import Service, ServiceError, started

MS = 1_000_000
PIECE = StepCoefficients(5.0 * MS, 0.2 * MS, 0.03 * MS, 100.0, 0.0)
TRUTH = StepTimeModel((PIECE, PIECE))
SERVER = SimulatedServer(TRUTH, 32, 256, 16_000)


def quantile_of(value: float) -> Quantile:
    return Quantile(value, value * 0.9, value * 1.1)


def measurement(itl: float = 10.0, ttft: float = 100.0, e2e: float = 1000.0) -> Measurement:
    return Measurement(
        arrivals=(Arrival(0, 10, 5), Arrival(2_000 * MS, 10, 5)),
        itl=quantile_of(itl),
        ttft=quantile_of(ttft),
        e2e=quantile_of(e2e),
        median_ttft_ms=ttft,
        num_failed=0,
        failures={},
        gaps_are_tokens=True,
        start_ns=0,
    )


PREDICTION = Prediction(
    "a test",
    {"itl": Band(10, 9, 11.5), "ttft": Band(100, 80, 105), "e2e": Band(1000, 950, 1050)},
)


def request_of(model: str | None = None, **options: Any) -> verifying.Request:
    return VerifyFlags(model, VerifyOptions(**options)).request()


class TestCalibration:
    def test_a_step_lasts_from_the_end_of_the_one_before_while_there_is_work(self) -> None:
        steps = [
            step(0, 5, num_running=1),
            step(5.5, 11),
            step(40, 46, num_waiting=1),
            step(45, 50),
        ]
        assert [period / MS for _, _, period in step_periods(steps)] == [5, 6, 6, 4]
        assert [end / MS for end, _, _ in step_periods(steps)] == [5, 11, 46, 50]

    def test_the_double_predicts_what_the_service_did(self) -> None:
        """A simulated service logs its steps; the calibration knows nothing else of it."""
        server = SimulatedServer(TRUTH, 32, 256, 16_000)
        logged = simulated_log(server)
        arrivals = poisson_arrivals(6.0, 200, LengthDistribution(60), LengthDistribution(20), 5)
        alone = simulate(server, [Arrival(i * 10**9, 60, 20) for i in range(20)])
        alone_ms = alone.ttft_quantile_s(0.5) * 1e3
        seen = measurement(ttft=alone_ms + 3.0)
        seen = replace(seen, arrivals=tuple(Arrival(i * 10**9, 60, 20) for i in range(20)))
        calibration = fit(logged, Limits(32, 256), seen)
        assert calibration.server.num_kv_tokens == 16_000
        assert calibration.outside_s == pytest.approx(0.003, abs=2e-4)
        found = from_steps(calibration, arrivals, source="of a test", seed=1)
        truth = simulate(server, arrivals)
        assert found.bands["itl"].value == pytest.approx(truth.itl_quantile_s(0.99) * 1e3, rel=0.02)
        assert found.bands["ttft"].value == pytest.approx(
            truth.ttft_quantile_s(0.99) * 1e3 + 3.0, rel=0.02
        )
        band = found.bands["e2e"]
        assert band.low <= band.value <= band.high

    def test_capacity_is_the_rate_at_which_all_that_wait_are_served(self) -> None:
        calibration = Calibration(SimulatedServer(TRUTH, 8, 64, 16_000), 0.0, 1)
        capacity = calibration.capacity_per_s(60, 20)
        lengths = LengthDistribution(60), LengthDistribution(20)
        below, above = (
            simulate(calibration.server, poisson_arrivals(capacity * share, 400, *lengths, 3))
            for share in (0.8, 1.3)
        )
        assert above.ttft_quantile_s(0.9) > 4 * below.ttft_quantile_s(0.9)

    def test_a_service_without_steps_cannot_be_learned_from(self) -> None:
        with pytest.raises(ServiceError, match="no step"):
            fit([], Limits(8, 64), measurement())

    def test_a_slower_machine_is_told_from_a_wrong_model(self) -> None:
        piece = StepCoefficients(*(1.4 * value for value in PIECE))
        slower = SimulatedServer(StepTimeModel((piece, piece)), 32, 256, 16_000)
        calibration = Calibration(SimulatedServer(TRUTH, 32, 256, 16_000), 0.002, 1)
        found = fit_load(calibration, simulated_log(slower), -1)
        assert found is not None
        assert found.slowdown == pytest.approx(1.4, rel=0.02)
        low, high = found.slowdown_range
        assert low == pytest.approx(high, rel=0.02)
        arrivals = [Arrival(i * 10**9, 60, 20) for i in range(20)]
        again = from_steps(found.calibration, arrivals, source="of a test", seed=1)
        truth = simulate(slower, arrivals).itl_quantile_s(0.99) * 1e3
        assert again.bands["itl"].value == pytest.approx(truth, rel=0.02)
        assert fit_load(calibration, [], 0) is None

    def test_what_is_left_out_is_measured(self) -> None:
        """Steps of 5, 5 and 50 ms; the first tokens are under way for 1 ms."""
        steps, now = [], 0.0
        for length in (5.0, 5.0, 50.0) * 30:
            steps.append(step(now, now + length, num_decode_seqs=2, num_running=1))
            now += length
        firsts = tuple(s.update_end_ns + MS for s in steps[::9])
        seen = replace(measurement(), first_stamps_ns=firsts, cached_share=0.25)
        load = LoadCalibration(Calibration(SERVER, 0.0, 1), 1.1, (0.9, 1.3), 0.5)
        found = left_out(steps, seen, load)
        assert found.itl_of_steps == pytest.approx(50.0)
        assert (found.way_p50, found.way_p99) == pytest.approx((1.0, 1.0))
        assert (found.slowdown, found.cached_share, found.autocorrelation) == (1.1, 0.25, 0.5)


class TestMeasurement:
    def test_the_warm_up_counts_nowhere_and_gaps_only_while_load_was_on(self) -> None:
        records = [
            make_record([900.0, 950.0], planned_ms=0.0),
            *(make_record([10.0, 15.0], planned_ms=1000.0 + 100 * i) for i in range(9)),
        ]
        records[-1].stamps.append(records[-1].planned_ns + 500 * MS)
        records[-1].text_flags.append(1)
        assert records[-1].usage is not None
        records[-1].usage.num_output_tokens = 3
        found = measure(LoadRun(records, 2.0, 0.0, False), {})
        assert found.ttft.value == pytest.approx(10.0)
        assert found.itl is not None
        assert found.itl.value == pytest.approx(5.0)
        assert [a.time_ns // MS for a in found.arrivals][:3] == [0, 1000, 1100]
        assert found.arrivals[0].num_output_tokens == 2

    def test_failed_requests_are_counted_and_in_no_latency(self) -> None:
        records = [make_record([10.0]) for _ in range(5)] + [make_record([], error="reset")]
        found = measure(LoadRun(records, 1.0, 0.0, False), {"reset": 1})
        assert (found.num_failed, found.itl) == (1, None)
        with pytest.raises(LoadError, match="reset"):
            measure(LoadRun(records[-1:], 1.0, 0.0, False), {"reset": 1})


class TestComparison:
    @pytest.mark.parametrize(
        ("itl", "outcome"),
        [
            (11.4, Outcome.AS_PREDICTED),
            (11.6, Outcome.SLOWER),
            (9.05, Outcome.AS_PREDICTED),
            (8.9, Outcome.FASTER),
        ],
    )
    def test_within_the_band_or_the_tolerance_is_as_predicted(
        self, itl: float, outcome: Outcome
    ) -> None:
        found = compare(PREDICTION, measurement(itl), None, tolerance=0.1)
        assert found.rows[0].outcome is outcome
        assert found.passes is (outcome is not Outcome.SLOWER)

    def test_a_missed_target_fails_though_it_was_predicted(self) -> None:
        found = compare(PREDICTION, measurement(), Targets(itl_s=0.009), tolerance=0.1)
        assert not found.passes
        assert [row.meets_target for row in found.rows] == [False, True, True]

    def test_a_failed_request_fails_all(self) -> None:
        failed = replace(measurement(), num_failed=1, failures={"reset": 1})
        assert not compare(PREDICTION, failed, None, tolerance=0.1).passes

    def test_a_load_of_single_tokens_has_no_gaps_to_compare(self) -> None:
        found = compare(PREDICTION, replace(measurement(), itl=None), None, tolerance=0.1)
        assert [row.name for row in found.rows] == ["ttft", "e2e"]


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    with pytest.MonkeyPatch.context() as patch, path.open("w") as file:
        patch.setattr("sys.stdout", file)
        with pytest.raises(SystemExit) as ended:
            main(["plan", "qwen3-1.7b", "--qps", "40", "--osl", "8", "--isl", "64", "--json", *SLO])
        assert ended.value.code == 0
    return path


SLO = ["--slo-itl-p99-ms", "6", "--slo-ttft-p99-ms", "80"]


class TestPlan:
    def test_a_plans_json_gives_load_targets_limits_and_command(self, plan_file: Path) -> None:
        request = request_of(plan=str(plan_file), num_requests=50)
        assert request.workload.requests_per_s == 40
        assert request.targets == Targets(itl_s=0.006, ttft_s=0.08)
        assert request.by_plan
        assert request.serve_arguments[0] == "Qwen/Qwen3-1.7B"
        assert f"--max-num-seqs {request.limits.max_num_seqs}" in " ".join(request.serve_arguments)
        local = request_of("local.gguf", plan=str(plan_file), qps=3.0, slo_itl_p99_ms=9.0)
        assert local.serve_arguments[0] == "local.gguf"
        assert local.workload.requests_per_s == 3
        assert local.targets == Targets(itl_s=0.009, ttft_s=0.08)

    def test_the_same_flags_make_the_same_plan(self, plan_file: Path) -> None:
        made = request_of(
            "qwen3-1.7b",
            hardware="1xH200",
            qps=40.0,
            osl=8,
            isl=64,
            slo_itl_p99_ms=6.0,
            slo_ttft_p99_ms=80.0,
            url="http://h",
        )
        assert made.planned == read_plan(str(plan_file))

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("{", "is not the output of takt plan"),
            ('{"model": "m"}', "is not the output of takt plan"),
            (None, "No such file"),
        ],
    )
    def test_what_is_no_plan_is_named(
        self, tmp_path: Path, content: str | None, words: str
    ) -> None:
        path = tmp_path / "plan.json"
        if content is not None:
            path.write_text(content)
        with pytest.raises(ConfigError, match=words):
            request_of(plan=str(path))

    def test_a_plan_that_says_no_cannot_be_verified(self, plan_file: Path, tmp_path: Path) -> None:
        report = json.loads(plan_file.read_text())
        report["topologies"][0]["limits"] = None
        path = tmp_path / "no.json"
        path.write_text(json.dumps(report | {"verdict": "PHYSICAL_NO"}))
        with pytest.raises(ConfigError, match="PHYSICAL_NO"):
            request_of(plan=str(path))


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (None, {"qps": 1.0}, "a MODEL, a --plan, or a --url"),
        ("m", {}, "--qps, --load, or a --plan"),
        ("m", {"qps": 1.0, "load": 0.5}, "exclude each other"),
        ("m", {"qps": float("nan")}, "--qps must be"),
        ("m", {"load": 1.5}, "--load is a share"),
        ("m", {"qps": 1.0, "num_requests": 3}, "--num-requests"),
        ("m", {"qps": 1.0, "tolerance": 0.0}, "--tolerance"),
        ("m", {"qps": 1.0, "by": "plan"}, "needs --plan"),
        ("m", {"qps": 1.0, "by": "guess"}, "--by"),
        ("m", {"qps": 1.0, "url": "http://h"}, "are not known"),
        ("m", {"qps": 1.0, "hardware": "1xH200"}, "--slo-itl-p99-ms"),
        (None, {"qps": 1.0, "hardware": "1xH200"}, "needs a model"),
        ("m", {"qps": 1.0, "slo_itl_p99_ms": -1.0}, "--slo-itl-p99-ms"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    model: str | None, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        request_of(model, **options)


class TestWholeRuns:
    def test_a_service_at_a_url_is_loaded_as_planned(
        self, plan_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with FakeSseServer() as server, pytest.raises(SystemExit) as ended:
            arguments = ["--plan", str(plan_file), "--url", server.url, "-n", "40", "--json", "-"]
            main(["verify", *arguments, "--slo-ttft-p99-ms", "60000", "--tolerance", "0.9"])
        report = json.loads(capsys.readouterr().out)
        assert ended.value.code == (0 if report["passes"] else 1)
        assert report["num_requests"] == 40 and report["num_failed"] == 0
        assert [body["max_tokens"] for body in server.bodies[-40:]] == [8] * 40
        assert set(report["p99_ms"]) == {"itl", "ttft", "e2e"}
        assert report["p99_ms"]["ttft"]["target"] == 60000

    def test_a_service_that_fails_requests_fails(
        self, plan_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        async def half(answer: Answer) -> None:
            if len(server.bodies) % 2:
                answer.reset()
            else:
                await well_behaved(answer)

        with FakeSseServer(half) as server, pytest.raises(SystemExit) as ended:
            main(["verify", "--plan", str(plan_file), "--url", server.url, "-n", "30"])
        assert ended.value.code == 1
        assert "requests failed: reset" in capsys.readouterr().out

    def test_a_service_is_started_learned_from_and_loaded(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        log = tmp_path / "steps"
        writer = StepLog(log)
        made = itertools.cycle(simulated_log(SimulatedServer(TRUTH, 8, 64, 16_000)))

        async def at_pace(answer: Answer) -> None:
            for one in itertools.islice(made, 150):
                writer.add(one)
            await answer.head()
            num_tokens = answer.body["max_tokens"]
            for i in range(num_tokens):
                await asyncio.sleep(0.005)
                await answer.text("x", "length" if i + 1 == num_tokens else None)
            await answer.usage(30, num_tokens, cached=0)
            await answer.done()

        asked: list[tuple[str, ...]] = []
        told: list[tuple[str, int, int]] = []
        with FakeSseServer(at_pace) as server:

            @contextmanager
            def fake_started(arguments: tuple[str, ...]) -> Any:
                asked.append(arguments)
                yield Service(server.url, log)

            monkeypatch.setattr(verifying, "started", fake_started)
            request = request_of(
                "local.gguf", load=0.5, isl=30, osl=4, num_requests=25, max_num_seqs=8
            )
            request = replace(request, calibration_rounds=0.3)
            found = verifying.verify(request, lambda *progress: told.append(progress))
            writer.close()
        assert asked[0][:3] == ("local.gguf", "--max-num-seqs", "8")
        assert found.num_requests == 25
        assert "steps measured before the load" in found.source
        assert any("min at" in stage and total == 25 for stage, _, total in told)
        capacity = Calibration(SimulatedServer(TRUTH, 8, 512, 16_000), 0, 0).capacity_per_s(30, 4)
        assert found.offered_per_s == pytest.approx(capacity * 0.5, rel=0.6)

    def test_a_service_that_does_not_start_ends_with_its_own_line(self) -> None:
        with pytest.raises(ServiceError, match="no-such-model"), started(["no-such-model"]):
            pass
