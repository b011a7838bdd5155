from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from bench_records import make_record
from fake_sse_server import Answer, FakeSseServer, in_turn, well_behaved
from takt.bench.goodput import Targets
from takt.bench.html_report import html_report
from takt.bench.load import LoadRun
from takt.bench.options import BenchOptions
from takt.bench.plots import scatter_plot, standalone, step_plot, tail_plot, tails_plot
from takt.bench.record import RequestRecord
from takt.bench.results import make_setting, to_json
from takt.bench.summary import Summary, summarize
from takt.bench.table import print_report
from takt.cli.bench import register
from takt.errors import ConfigError

SVG = "{http://www.w3.org/2000/svg}"
OPTIONS = BenchOptions(label="<b>a & b</b>", api_key="secret")
SETTING = make_setting(OPTIONS, "http://h:1", "m", "takt 0", True)


def load_run(records: list[RequestRecord]) -> LoadRun:
    return LoadRun(records, duration_s=2.0, client_cpu_s=0.1, was_interrupted=False)


def summary_of(run: LoadRun) -> Summary:
    return summarize(run, Targets.parse(["ttft:6"]), has_exact_prompts=True)


MIXED = load_run(
    [
        make_record([5, 7, 17, 18], cached=4),
        make_record([8, 9, 10, 11]),
        make_record([3], error="reset"),
        make_record([], error="http_500"),
    ]
)
ALL_FAILED = load_run([make_record([], error="connect")])


def text_of(run: LoadRun) -> str:
    out = io.StringIO()
    print_report(Console(file=out, width=160), SETTING, summary_of(run))
    return out.getvalue()


def test_the_table_shows_latencies_and_every_failure() -> None:
    text = text_of(MIXED)
    assert re.search(r"TTFT .*2 .*6\.5", text)
    assert re.search(r"ITL .*6 .*2\.667", text)
    assert "2 answered, 2 failed" in text
    assert "0.50 requests/s (1 of 4 met all targets)" in text
    assert "1 x reset: detail" in text
    assert "1 x http_500: detail" in text
    assert "1 events of failed requests" in text
    assert "20.0% of prompt tokens were hits" in text
    assert "0.050 cores" in text


def test_throughput_counts_good_requests_over_the_whole_time() -> None:
    summary = summary_of(MIXED)
    assert summary.requests_per_s == pytest.approx(1.0)
    assert summary.output_tokens_per_s == pytest.approx(4.0)
    assert summary.total_tokens_per_s == pytest.approx(14.0)
    assert summary.client.us_per_event == pytest.approx(0.1e6 / 9)


def test_a_run_of_failures_has_a_report() -> None:
    assert "1 x connect" in text_of(ALL_FAILED)
    assert b"connect" in html_report(SETTING, summary_of(ALL_FAILED), ALL_FAILED)


def test_json_holds_everything_but_the_key() -> None:
    document = json.loads(to_json(SETTING, summary_of(MIXED)))
    assert "secret" not in json.dumps(document)
    assert document["summary"]["errors"] == {"reset": 1, "http_500": 1}
    assert document["summary"]["latencies"]["itl"]["num_samples"] == 6
    assert document["summary"]["latencies"]["itl"]["quantiles"][3]["value"] == 10.0
    assert document["setting"]["options"]["prompt_tokens"] == 400


class Reader(HTMLParser):
    """Collects the tags of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]


def test_the_page_stands_alone_and_escapes() -> None:
    page = html_report(SETTING, summary_of(MIXED), MIXED).decode()
    reader = Reader()
    reader.feed(page)
    assert reader.links == []
    assert not {"script", "link", "img", "b"} & set(reader.tags)
    assert "&lt;b&gt;a &amp; b&lt;/b&gt;" in page
    assert "secret" not in page
    assert reader.tags.count("svg") == 4
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(svg)


def points(svg: str) -> list[tuple[float, float]]:
    root = ET.fromstring(svg)
    line = root.find("polyline")
    if line is not None:
        pairs = [point.split(",") for point in line.attrib["points"].split()]
        return [(float(x), float(y)) for x, y in pairs]
    return [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter("circle")]


def test_plots_stay_inside_their_frame() -> None:
    rng = np.random.default_rng(0)
    values = rng.lognormal(1, 2, 30_000)
    for svg in (
        tail_plot(values, "ITL"),
        scatter_plot(np.arange(30_000) / 10, values, "ITL"),
        tail_plot(np.array([3.0]), "ITL"),
        scatter_plot(np.array([0.0]), np.array([0.0]), "ITL"),
        step_plot(np.array([0.0]), np.array([1.0]), "requests"),
    ):
        placed = points(svg)
        assert placed
        assert len(placed) <= 4000
        assert all(60 <= x <= 744 and 12 <= y <= 220 for x, y in placed)


def test_thinned_plots_keep_the_largest_value() -> None:
    values = np.full(50_000, 2.0)
    values[31_234] = 900.0
    highest = min(y for _, y in points(scatter_plot(np.arange(50_000.0), values, "ITL")))
    assert highest < 30
    assert max(x for x, _ in points(tail_plot(values, "ITL"))) > 730


def test_tails_of_several_runs_share_their_axes_and_stand_alone() -> None:
    runs = {"slow & late": np.array([40.0, 400.0]), "fast": np.array([4.0, 5.0, 6.0])}
    root = ET.fromstring(standalone(tails_plot(runs, "gap", target_ms=20.0), ".target{}"))
    lines = [line.attrib["points"].split() for line in root.iter(SVG + "polyline")]
    ends = [float(points[-1].split(",")[0]) for points in lines]
    (target,) = [line for line in root.iter(SVG + "line") if line.get("class") == "target"]
    assert ends[1] < float(target.attrib["x1"]) < ends[0]
    texts = [text.text for text in root.iter(SVG + "text")]
    assert {"slow & late", "fast", "target 20 ms"} <= set(texts)


@pytest.mark.parametrize("flag", ["--json", "--html"])
def test_a_file_that_could_not_be_written_is_refused_before_the_run(
    flag: str, tmp_path: Path
) -> None:
    app = typer.Typer()
    register(app)
    path = tmp_path / "no" / "where"
    with pytest.raises(ConfigError, match=rf"{flag} .* there is no folder"):
        app(["http://127.0.0.1:1", flag, str(path)], standalone_mode=False)


def test_the_command_writes_its_files_and_exits_by_the_outcome(tmp_path: Path) -> None:
    async def refused(answer: Answer) -> None:
        await answer.head("503 Service Unavailable", length=0)

    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    page = tmp_path / "r.html"
    arguments = ["bench", "-n", "2", "-c", "2", "--prompt-tokens", "9", "--output-tokens", "3"]
    with FakeSseServer() as server:
        good = CliRunner().invoke(app, [*arguments, server.url, "--json", "-", "--html", str(page)])
    assert good.exit_code == 0, good.output
    assert json.loads(good.stdout)["summary"]["num_ok"] == 2
    assert "TTFT" in good.stderr
    assert page.read_bytes().startswith(b"<!doctype html>")
    with FakeSseServer(in_turn([well_behaved, well_behaved, refused])) as server:
        bad = CliRunner().invoke(app, [*arguments, server.url])
    assert bad.exit_code == 1
    assert "1 x http_503" in bad.stdout
