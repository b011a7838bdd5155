"""The used parts of a step, one after the other: what goes over a wire instead of whole buffers.

Buffers are made for the largest step; a decode step uses a thousandth of one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from takt.types.step import StepInput, StepOutput

_ALIGNMENT = 8
_LISTS = {
    "history_start": ("history_token", "history_count"),
    "bias_start": ("bias_token", "bias_value"),
}


def used_input(step: StepInput, block_size: int) -> Iterator[np.ndarray]:
    """Views of what the step's header and lengths say is used, in an order of their own.

    Each view is taken after those before it were read or filled, so that a step can be filled
    through them.
    """
    views = step.views
    yield views["header"]
    num_tokens, num_seqs, num_rows, num_copies = (int(n) for n in views["header"][1:5])
    yield views["token_ids"][:num_tokens]
    yield views["positions"][:num_tokens]
    yield views["query_start"][: num_seqs + 1]
    seq_lens = views["seq_lens"][:num_seqs]
    yield seq_lens
    yield views["slot_mapping"][:, :num_tokens]
    num_blocks = -(-int(seq_lens.max(initial=0)) // block_size)
    yield views["block_tables"][:, :num_seqs, :num_blocks]
    yield views["block_copies"][:num_copies]
    for name, view in views.items():
        if name.startswith("row_"):
            yield view[:num_rows]
    if num_rows == 0:
        return
    for start, lists in _LISTS.items():
        starts = views[start][: num_rows + 1]
        yield starts
        for name in lists:
            yield views[name][: int(starts[-1])]


def used_output(output: StepOutput) -> Iterator[np.ndarray]:
    """Likewise: the header, then its rows of every field."""
    header = output.views["header"]
    yield header
    num_rows = int(header[3])
    for name, view in output.views.items():
        if name != "header":
            yield view[:num_rows]


def pack(parts: Iterator[np.ndarray], payload: np.ndarray, at: int) -> int:
    """Writes `parts` into uint8 `payload` from byte `at` on, a multiple of 8; returns the end."""
    for part in parts:
        np.copyto(_place(payload, at, part), part)
        at = _next(at, part)
    return at


def unpack(payload: np.ndarray, at: int, parts: Iterator[np.ndarray]) -> None:
    """Fills `parts` from what `pack` wrote; raises `ValueError` if the payload is another one's."""
    for part in parts:
        if at + part.nbytes > len(payload):
            raise ValueError(f"a step of {len(payload)} bytes is cut short")
        np.copyto(part, _place(payload, at, part))
        at = _next(at, part)
    if at != len(payload):
        raise ValueError(f"a step of {len(payload)} bytes has {at} in use")


def _place(payload: np.ndarray, at: int, part: np.ndarray) -> np.ndarray:
    return payload[at : at + part.nbytes].view(part.dtype).reshape(part.shape)


def _next(at: int, part: np.ndarray) -> int:
    return -(-(at + part.nbytes) // _ALIGNMENT) * _ALIGNMENT
