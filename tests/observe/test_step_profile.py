"""From stamps of threads to times of instructions, and from work to rates."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from takt.observe.profile_svg import profile_html, profile_svg
from takt.observe.profile_tables import (
    Peaks,
    markdown_table,
    profile_json,
    profile_tables,
    summary,
)
from takt.observe.step_profile import ProfiledStep, StepProfile, instruction_times
from takt.types.instruction import InstructionLabel, StepTimes, StepWork

LABELS = [
    InstructionLabel("block copy"),
    InstructionLabel("embed"),
    InstructionLabel("qkv", 0, 4000, 96, 64),
    InstructionLabel("attention", 0, window=20, query_width=64),
    InstructionLabel("qkv", 1, 4000, 96, 64),
    InstructionLabel("logits", None, 9000, 300, 64, is_per_row=True),
]


def times_of(*rows: list[tuple[int, int, int, int] | None], end: int = 1000) -> StepTimes:
    """Each thread's (first start, last end, busy, tiles) by instruction."""
    table = [[entry or (0, 0, 0, 0) for entry in row] for row in rows]
    return StepTimes(np.array(table, dtype=np.int64), 50, 100, end, end + 5)


def test_times_follow_the_slowest_thread_and_add_up_to_the_step() -> None:
    times = times_of(
        [None, (110, 150, 40, 1), (160, 300, 100, 2), (420, 600, 180, 1), (610, 700, 90, 1), None],
        [None, None, (155, 400, 240, 3), None, (605, 900, 295, 2), (910, 990, 80, 1)],
        end=995,
    )
    spans, busy = instruction_times(times)
    assert spans.tolist() == [0, 50, 250, 200, 300, 90]
    assert busy.tolist() == [0, 40, 340, 180, 385, 80]
    assert spans.sum() == 990 - times.run_start_ns


def test_a_tile_that_another_thread_did_again_delays_nothing() -> None:
    """Thread 1 lost its core in instruction 1 and comes back long after the step went on."""
    times = times_of(
        [(100, 200, 100, 2), (200, 300, 100, 2), (310, 400, 90, 2)],
        [(100, 190, 90, 1), (205, 950, 745, 1), None],
    )
    spans, _ = instruction_times(times)
    assert spans.tolist() == [100, 110, 90]


def step(times: StepTimes, work: StepWork) -> ProfiledStep:
    return ProfiledStep(times, work, schedule_ns=2000, update_ns=3000, num_redone_tiles=1)


@pytest.fixture
def profile() -> StepProfile:
    """Two threads of which one has all the work; two steps, the second one twice as long."""
    steps = []
    for scale in (1000, 2000):
        entries = [None] + [(at, at + scale, scale, 1) for at in range(100, 100 + 5 * scale, scale)]
        times = times_of(entries, [None] * 6, end=100 + 5 * scale)  # type: ignore[arg-type]
        steps.append(step(times, StepWork(((9, 1), (30, 1)), num_rows=2)))
    return StepProfile(LABELS, steps, kv_token_bytes=8)


def test_kinds_have_percentiles_shares_and_waiting(profile: StepProfile) -> None:
    rows = {row.name: row for row in profile.kinds()}
    assert set(rows) == {"embed", "qkv", "attention", "logits"}, "what has no tile is left out"
    qkv = rows["qkv"]
    assert qkv.count == 2
    assert (qkv.p50_us, qkv.total_us) == (1.5, 3.0)
    assert qkv.p99_us == pytest.approx(np.percentile([1, 1, 2, 2], 99))
    assert qkv.share == pytest.approx(2 / 5)
    assert qkv.waiting_share == pytest.approx(0.5)
    assert sum(row.share for row in rows.values()) == pytest.approx(1)
    assert profile.total().total_us == pytest.approx(7.5)


def test_layers_stand_in_order(profile: StepProfile) -> None:
    names = [row.name for row in profile.layers()]
    assert names == ["before layers", "layer 0", "layer 1", "after layers"]
    assert profile.layers()[1].total_us == pytest.approx(3.0)


def test_bytes_and_operations_by_hand(profile: StepProfile) -> None:
    rows = {row.name: row for row in profile.kinds()}
    assert rows["qkv"].num_bytes == 8000
    assert rows["qkv"].num_ops == 2 * (2 * 2 * 96 * 64)
    assert rows["logits"].num_ops == 2 * 2 * 300 * 64
    # Contexts of 10 and 31, the second one cut by the window of 20.
    assert rows["attention"].num_bytes == 8 * (10 + 20)
    assert rows["attention"].num_ops == 4 * 64 * (10 + 20)
    assert rows["qkv"].bytes_s == pytest.approx(8000 / 3e-6)


def test_pairs_and_keys_of_chunks() -> None:
    work = StepWork(((0, 5), (100, 3)), num_rows=1)
    assert work.num_tokens == 8
    assert work.kv_tokens(None) == 5 + 103
    assert work.qk_pairs(None) == 15 + 101 + 102 + 103
    assert work.kv_tokens(4) == 5 + 6
    assert work.qk_pairs(4) == 1 + 2 + 3 + 4 + 4 + 3 * 4


def test_reports_of_a_profile(profile: StepProfile) -> None:
    peaks = Peaks(read_bytes_s=1e10, int8_ops_s=1e12, int8_instruction="vpdpbusd zmm")
    kinds, host, layers = profile_tables(profile, peaks)
    assert len(kinds.rows) == 5 and len(layers.rows) == 4
    assert {len(row) for row in kinds.rows} == {len(kinds.headings)}
    assert kinds.rows[-1][0] == "all"
    assert host.rows[0][:2] == ("schedule and fill", "2.0")
    qkv = next(row for row in kinds.rows if row[0] == "qkv")
    assert qkv[kinds.headings.index("of reading")] == "27 %"
    plain = profile_tables(profile, None)[0]
    assert len(plain.headings) == len(kinds.headings) - 2
    assert markdown_table(host).splitlines()[1] == "|---|---:|---:|---:|"
    document = profile_json(profile, peaks)
    assert document["num_redone_tiles"] == 2
    assert len(document["instructions"]) == 5  # type: ignore[arg-type]
    assert "2 steps on 2 threads" in summary(profile)


def test_the_chart_has_a_bar_for_each_instruction(profile: StepProfile) -> None:
    root = ElementTree.fromstring(profile_svg(profile, "a < b"))
    titles = [t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "qkv, layer 1: 1.5 us" in titles
    assert "layer 0: 3.0 us" in titles and "instructions: 7.5 us" in titles
    assert len(titles) == 5 + 2 + 5
    page = profile_html([("Decode", profile)], [None], "x & y")
    assert "x &amp; y" in page and "<script" not in page and page.count("<table>") == 3


def test_no_steps_make_no_profile() -> None:
    with pytest.raises(ValueError, match="one step"):
        StepProfile(LABELS, [], 8)


def test_blocks_of_logits_share_the_rows() -> None:
    """Two blocks of rows: each reads the head, together they compute all rows."""
    labels = [LABELS[5], dataclasses.replace(LABELS[5])]
    times = times_of([(100, 200, 100, 1), (200, 300, 100, 1)], end=300)
    made = StepProfile(labels, [step(times, StepWork(((0, 8),), num_rows=8))], 8)
    (row,) = made.kinds()
    assert row.num_bytes == 2 * 9000 and row.num_ops == 2 * 8 * 300 * 64
