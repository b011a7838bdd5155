from __future__ import annotations

import json
from pathlib import Path

import pytest

from takt.bench.endpoint import Endpoint
from takt.bench.goodput import Targets
from takt.bench.options import BenchOptions
from takt.bench.request_times import request_times
from takt.bench.workload import plan_requests
from takt.errors import ConfigError

from bench_records import make_record  # isort: skip


def test_a_closed_loop_has_no_arrivals() -> None:
    planned = plan_requests(BenchOptions(num_requests=3, prompt_tokens=9, output_tokens=4))
    assert [(p.index, p.arrival_s, p.num_prompt_tokens) for p in planned] == [
        (0, None, 9),
        (1, None, 9),
        (2, None, 9),
    ]


def test_poisson_arrivals_have_their_rate_and_repeat_with_the_seed() -> None:
    options = BenchOptions(num_requests=4000, qps=8.0, seed=3)
    arrivals = [p.arrival_s or 0.0 for p in plan_requests(options)]
    assert arrivals == sorted(arrivals)
    # The mean of 4,000 exponential gaps lies within 8 % of its value at five sigma.
    assert arrivals[-1] / 4000 == pytest.approx(1 / 8, rel=0.08)
    assert plan_requests(options) == plan_requests(options)
    other = plan_requests(BenchOptions(num_requests=4000, qps=8.0, seed=4))
    assert other[0].arrival_s != arrivals[0]


def test_every_nth_prompt_is_long_and_the_others_share_prefixes() -> None:
    options = BenchOptions(
        num_requests=40,
        long_prompt_every=4,
        long_prompt_tokens=900,
        num_prefixes=2,
        prefix_tokens=300,
        seed=0,
    )
    planned = plan_requests(options)
    assert [p.index for p in planned if p.is_long] == list(range(3, 40, 4))
    assert all(p.num_prompt_tokens == 900 and p.prefix_id is None for p in planned if p.is_long)
    assert {p.prefix_id for p in planned if not p.is_long} == {0, 1}
    assert all(p.num_prefix_tokens == 300 for p in planned if not p.is_long)


def write_trace(path: Path, *lines: object) -> str:
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    return str(path)


def line(arrival_s: float = 0.0, prompt: int = 4, output: int = 2, **more: object) -> object:
    return {
        "arrival_s": arrival_s,
        "num_prompt_tokens": prompt,
        "num_output_tokens": output,
        **more,
    }


def test_a_trace_is_read_in_order_and_cut(tmp_path: Path) -> None:
    lines = [line(0.5), line(0.5, 8, prefix_id=1, num_prefix_tokens=3), line(2)]
    trace = write_trace(tmp_path / "t.jsonl", *lines)
    planned = plan_requests(BenchOptions(trace=trace))
    assert [(p.index, p.arrival_s, p.num_prompt_tokens) for p in planned] == [
        (0, 0.5, 4),
        (1, 0.5, 8),
        (2, 2.0, 4),
    ]
    assert (planned[1].prefix_id, planned[1].num_prefix_tokens) == (1, 3)
    assert len(plan_requests(BenchOptions(trace=trace, num_requests=2))) == 2


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([line(2), line(1)], "t.jsonl:2: arrival_s is before"),
        ([line(0, 0)], "t.jsonl:1: .*at least 1"),
        ([line(-1)], "t.jsonl:1: arrival_s must be"),
        ([line(0, 4, num_prefix_tokens=4)], "num_prefix_tokens must be less"),
        ([line(0, speed=3)], "t.jsonl:1: .*speed"),
        ([{"arrival_s": 0}], "t.jsonl:1: .*num_prompt_tokens"),
        ([], "has no requests"),
    ],
)
def test_a_bad_trace_is_refused_by_line(tmp_path: Path, lines: list[object], message: str) -> None:
    trace = write_trace(tmp_path / "t.jsonl", *lines)
    with pytest.raises(ConfigError, match=message):
        plan_requests(BenchOptions(trace=trace))


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl"):
        plan_requests(BenchOptions(trace=str(tmp_path / "nowhere.jsonl")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"qps": 1.0, "trace": "x"}, "exclude each other"),
        ({"qps": 1.0, "concurrency": 4}, "closed loop"),
        ({"qps": 0.0}, "--qps must be above 0"),
        ({"qps": float("nan")}, "--qps must be above 0"),
        ({"num_prefixes": 2}, "together"),
        ({"num_prefixes": 2, "prefix_tokens": 400}, "less than --prompt-tokens"),
        ({"concurrency": 0}, "--concurrency must be at least 1"),
        ({"endpoint": "responses"}, "--endpoint"),
        ({"timeout": 0.0}, "--timeout"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BenchOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://h/v1", "http://h:80"),
        ("https://h/api/v1/", "https://h:443/api"),
        ("http://[::1]:9", "http://[::1]:9"),
    ],
)
def test_urls(url: str, shown: str) -> None:
    assert str(Endpoint.parse(url)) == shown


@pytest.mark.parametrize(
    "url", ["ftp://h", "http://", "http://h:port", "http://u:p@h", "http://[::1"]
)
def test_bad_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        Endpoint.parse(url)


def test_targets_are_bounds_on_each_request() -> None:
    times = request_times(make_record([5, 7, 17, 18]))
    for text, is_met in [
        ("ttft:5", True),
        ("ttft:4.9", False),
        ("tpot:4.4", True),
        ("tpot:4.3", False),
        ("gap:10", True),
        ("gap:9", False),
        ("itl:10", True),
        ("itl:9", False),
        ("e2e:18", True),
        ("e2e:17", False),
    ]:
        assert Targets.parse([text]).are_met(times) is is_met, text
    assert not Targets.parse(["ttft:5", "gap:9"]).are_met(times)
    assert not Targets.parse([])


@pytest.mark.parametrize("text", ["ttft", "ttft:x", "ttft:0", "itl:inf", "speed:3"])
def test_bad_targets_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--goodput"):
        Targets.parse([text])


def test_two_targets_for_one_measure_are_refused() -> None:
    with pytest.raises(ConfigError, match="two targets for ttft"):
        Targets.parse(["ttft:1", "ttft:2"])
