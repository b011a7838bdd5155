"""Where a step's time goes, instruction by instruction, over some profiled steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takt.types.instruction import InstructionLabel, StepTimes, StepWork

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """A step that ran, with the host's time before and after it, and tiles that were redone."""

    times: StepTimes
    work: StepWork
    schedule_ns: int
    update_ns: int
    num_redone_tiles: int


@dataclass(frozen=True, slots=True)
class PartRow:
    """Instructions of one kind, or of one layer. Percentiles are of a single instruction's time
    for a kind, and of a whole layer's for a layer; all else is the mean of a step."""

    name: str
    count: int
    p50_us: float
    p99_us: float
    total_us: float
    share: float
    """Of the time between the first instruction's start and the last one's end."""
    num_bytes: float
    """Weights and KV read, each once."""
    num_ops: float
    waiting_share: float
    """Of the threads' time, that in which they had no tile."""

    @property
    def bytes_s(self) -> float:
        return self.num_bytes / (self.total_us * 1e-6) if self.total_us > 0 else 0.0

    @property
    def ops_s(self) -> float:
        return self.num_ops / (self.total_us * 1e-6) if self.total_us > 0 else 0.0


@dataclass(frozen=True, slots=True)
class LayerSeconds:
    """Time of a step's parts, in seconds."""

    layers: list[float]
    before: float
    """Of what comes before the first layer; `after`: after the last one."""
    after: float
    excess: float
    """By which the medians over steps exceed these least times: a busy machine's is large."""


class StepProfile:
    """Times of `steps`, all of one program whose instructions are named by `labels`.

    An instruction's time is from the end of the one before it to its own end, so times add up to
    the step's. `kv_token_bytes` are those of one token in one layer, keys and values.
    """

    def __init__(
        self,
        labels: Sequence[InstructionLabel],
        steps: Sequence[ProfiledStep],
        kv_token_bytes: int,
    ) -> None:
        if not steps:
            raise ValueError("a profile needs one step at least")
        self.labels = labels
        self.steps = steps
        measured = [instruction_times(step.times) for step in steps]
        self.spans_us: Floats = np.array([spans for spans, _ in measured]) / 1e3
        """`[num_steps, num_instructions]`"""
        self._busy_us: Floats = np.array([busy for _, busy in measured]) / 1e3
        self._is_active = np.array([step.times.threads[:, :, 3].sum(axis=0) > 0 for step in steps])
        self._kv_token_bytes = kv_token_bytes
        self.num_threads = int(steps[0].times.threads.shape[0])

    @property
    def run_us(self) -> Floats:
        """First instruction's start to last one's end, `[num_steps]`."""
        return np.array([s.times.run_end_ns - s.times.run_start_ns for s in self.steps]) / 1e3

    def host_us(self) -> dict[str, Floats]:
        """Time around the instructions by part, each `[num_steps]`."""
        steps = self.steps
        return {
            "schedule and fill": np.array([s.schedule_ns for s in steps]) / 1e3,
            "copy the input": np.array([s.times.run_start_ns - s.times.begin_ns for s in steps])
            / 1e3,
            "write the output": np.array([s.times.end_ns - s.times.run_end_ns for s in steps])
            / 1e3,
            "read and update": np.array([s.update_ns for s in steps]) / 1e3,
        }

    def active(self) -> list[int]:
        """Instructions that had a tile in some step."""
        return [int(i) for i in np.flatnonzero(self._is_active.any(axis=0))]

    def kinds(self) -> list[PartRow]:
        """By kind, the longest first."""
        rows = self._parts(lambda label: label.kind, per_instruction=True)
        return sorted(rows, key=lambda row: -row.total_us)

    def layers(self) -> list[PartRow]:
        """By layer in order; what lies outside layers stands first and last."""
        return self._parts(_layer_name, per_instruction=False)

    def total(self) -> PartRow:
        (row,) = self._parts(lambda _: "all", per_instruction=False)
        return row

    def mean_spans_us(self) -> list[tuple[InstructionLabel, float]]:
        """Of the active instructions, in order."""
        means = self.spans_us.mean(axis=0)
        return [(self.labels[i], float(means[i])) for i in self.active()]

    def layer_seconds(self) -> LayerSeconds:
        """The least time of each layer over the steps: what it takes undisturbed."""
        order = [label.layer for label in self.labels]
        num_layers = 1 + max((layer for layer in order if layer is not None), default=-1)
        first = order.index(0) if num_layers else 0
        places = [
            layer if layer is not None else -1 if i < first else num_layers
            for i, layer in enumerate(order)
        ]
        sums = np.zeros((len(self.steps), num_layers + 2))
        for i, place in enumerate(places):
            sums[:, place + 1] += self.spans_us[:, i]
        least = sums.min(axis=0)
        excess = float(np.median(sums, axis=0).sum() / max(least.sum(), 1e-9) - 1)
        before, *layers, after = (least * 1e-6).tolist()
        return LayerSeconds(layers, before, after, excess)

    def _parts(
        self, name_of: Callable[[InstructionLabel], str], *, per_instruction: bool
    ) -> list[PartRow]:
        groups: dict[str, list[int]] = {}
        for i in self.active():
            groups.setdefault(name_of(self.labels[i]), []).append(i)
        return [self._row(name, members, per_instruction) for name, members in groups.items()]

    def _row(self, name: str, members: list[int], per_instruction: bool) -> PartRow:
        spans = self.spans_us[:, members]
        samples = spans[self._is_active[:, members]] if per_instruction else spans.sum(axis=1)
        p50, p99 = (float(v) for v in np.percentile(samples, [50, 99]))
        total = float(spans.sum(axis=1).mean())
        busy = float(self._busy_us[:, members].sum(axis=1).mean())
        work = [self._work(i) for i in members]
        return PartRow(
            name=name,
            count=len(members),
            p50_us=p50,
            p99_us=p99,
            total_us=total,
            share=total / float(self.run_us.mean()),
            num_bytes=sum(num_bytes for num_bytes, _ in work),
            num_ops=sum(num_ops for _, num_ops in work),
            waiting_share=max(0.0, 1 - busy / (self.num_threads * total)) if total > 0 else 0.0,
        )

    def _work(self, instruction: int) -> tuple[float, float]:
        """Bytes and operations of an instruction, mean of the steps."""
        label = self.labels[instruction]
        blocks = [i for i in self.active() if self.labels[i] == label] if label.is_per_row else [0]
        num_bytes, num_ops = [], []
        for step in self.steps:
            rows = step.work.num_rows / len(blocks) if label.is_per_row else step.work.num_tokens
            read, ops = float(label.weight_bytes), 2.0 * rows
            ops *= label.weight_rows * label.weight_columns
            if label.query_width:
                read += self._kv_token_bytes * step.work.kv_tokens(label.window)
                # Scores and weighted sums: a multiply-add each per query value and key.
                ops += 4.0 * label.query_width * step.work.qk_pairs(label.window)
            num_bytes.append(read)
            num_ops.append(ops)
        return float(np.mean(num_bytes)), float(np.mean(num_ops))


def instruction_times(times: StepTimes) -> tuple[Floats, Floats]:
    """Nanoseconds of each instruction, and of all threads' tiles in it, `[num_instructions]`.

    An instruction ends with its last tile, but not later than a tile of any later one begins:
    threads go on only when all tiles are published, so whatever ends afterwards is a tile that
    another thread had done again.
    """
    threads = times.threads.astype(np.float64)
    has_tiles = threads[:, :, 3] > 0
    ends = np.where(has_tiles, threads[:, :, 1], -np.inf).max(axis=0)
    starts = np.where(has_tiles, threads[:, :, 0], np.inf).min(axis=0)
    later_starts = np.append(np.minimum.accumulate(starts[::-1])[::-1][1:], np.inf)
    ends = np.minimum(ends, np.minimum(later_starts, times.run_end_ns))
    ends = np.maximum.accumulate(np.maximum(ends, times.run_start_ns))
    return np.diff(ends, prepend=times.run_start_ns), threads[:, :, 2].sum(axis=0)


def _layer_name(label: InstructionLabel) -> str:
    if label.layer is not None:
        return f"layer {label.layer}"
    return "before layers" if label.kind in ("block copy", "embed") else "after layers"
