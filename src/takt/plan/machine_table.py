"""What was measured on this machine, as tables."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from takt.types.machine import MachineFigures


def print_figures(figures: MachineFigures, console: Console) -> None:
    counts = sorted({read.num_threads for read in figures.reads})
    console.print(
        f"{figures.cpu}, {figures.num_threads} CPUs, {figures.memory_bytes / 1e9:.1f} GB, "
        f"kernels: {figures.isa}",
        markup=False,
    )
    console.print(_reads(figures, counts))
    console.print(_peaks(figures, counts))
    if figures.barriers:
        console.print(_barriers(figures))
    console.print(_products(figures))
    if figures.codecs:
        console.print(_codecs(figures))


def _by_threads(title: str, first: str, counts: list[int]) -> Table:
    table = Table(title=title)
    table.add_column(first)
    for count in counts:
        table.add_column(f"{count} thread" if count == 1 else f"{count} threads", justify="right")
    return table


def _reads(figures: MachineFigures, counts: list[int]) -> Table:
    table = _by_threads("Reading, GB/s", "working set", counts)
    rates = {(r.num_bytes, r.num_threads): r.bytes_s for r in figures.reads}
    for size in sorted({r.num_bytes for r in figures.reads}):
        cells = [rates.get((size, count)) for count in counts]
        table.add_row(_bytes(size), *("" if c is None else f"{c / 1e9:.1f}" for c in cells))
    return table


def _peaks(figures: MachineFigures, counts: list[int]) -> Table:
    table = _by_threads("Multiplying from registers, GOP/s", "instruction", counts)
    table.add_column("arithmetic")
    rates = {(p.instruction, p.num_threads): p.ops_s for p in figures.peaks}
    for name, arithmetic in dict.fromkeys((p.instruction, p.arithmetic) for p in figures.peaks):
        cells = (rates.get((name, count)) for count in counts)
        table.add_row(name, *("" if c is None else f"{c / 1e9:.0f}" for c in cells), arithmetic)
    return table


def _barriers(figures: MachineFigures) -> Table:
    table = Table(title="From one instruction of a step to the next, ns")
    for heading in ("threads", "spinning", "sleeping"):
        table.add_column(heading, justify="right")
    costs = {(b.num_threads, b.spins): b.ns for b in figures.barriers}
    for count in sorted({b.num_threads for b in figures.barriers}):
        cells = (costs.get((count, spins)) for spins in (True, False))
        table.add_row(str(count), *("" if c is None else f"{c:.0f}" for c in cells))
    return table


def _products(figures: MachineFigures) -> Table:
    table = Table(title="The engine's products, all threads")
    for heading in ("weights", "rows", "GB/s", "of reading", "GOP/s", "of int8 peak"):
        table.add_column(heading, justify="left" if heading == "weights" else "right")
    read, peak = figures.memory_read().bytes_s, figures.kernel_peak("int8").ops_s
    for product in figures.products:
        table.add_row(
            product.weights,
            str(product.num_rows),
            f"{product.bytes_s / 1e9:.1f}",
            f"{100 * product.bytes_s / read:.0f} %",
            f"{product.ops_s / 1e9:.0f}",
            f"{100 * product.ops_s / peak:.0f} %",
        )
    return table


def _codecs(figures: MachineFigures) -> Table:
    table = Table(title="Values of an all-reduce, one thread, ns each")
    table.add_column("format")
    for heading in ("compress", "expand and add"):
        table.add_column(heading, justify="right")
    for codec in figures.codecs:
        table.add_row(codec.format, f"{codec.encode_ns:.3f}", f"{codec.decode_ns:.3f}")
    return table


def _bytes(size: int) -> str:
    return f"{size / (1 << 20):g} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
