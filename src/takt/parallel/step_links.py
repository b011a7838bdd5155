"""Steps and their outputs between the engine's host and others, as `step_packing` packs them.

A message is the step's number, the buffer it has on every host, and the used parts of one struct.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from takt.parallel.host_link import LinkReceiver, LinkSender
from takt.parallel.step_packing import pack, unpack, used_input, used_output
from takt.types.step import StepInput, StepLimits, StepOutput, input_layout, output_layout

STEPS, RESULTS, HOP = "steps", "results", "hop"
_HEAD_BYTES = 16
_SLACK_BYTES = 1024
"""For the alignment of parts."""


def steps_name(host: int) -> str:
    return f"{STEPS} to host {host}"


def hop_name(stage: int) -> str:
    return f"{HOP} from stage {stage}"


def max_step_bytes(limits: StepLimits) -> int:
    """Of the largest message."""
    largest = max(input_layout(limits).nbytes, output_layout(limits).nbytes)
    return _HEAD_BYTES + largest + _SLACK_BYTES


class StepSender:
    """Sends a step to each of several hosts, once, or an output to the engine's."""

    def __init__(self, links: Sequence[LinkSender], limits: StepLimits, block_size: int) -> None:
        self._links = links
        self._block_size = block_size
        self._payload = np.zeros(max_step_bytes(limits), dtype=np.uint8)
        self._head = self._payload[:_HEAD_BYTES].view(np.int64)

    def send_input(self, number: int, buffer: int, step: StepInput) -> None:
        self._send(number, buffer, used_input(step, self._block_size))

    def send_output(self, number: int, buffer: int, output: StepOutput) -> None:
        self._send(number, buffer, used_output(output))

    def _send(self, number: int, buffer: int, parts: Iterator[np.ndarray]) -> None:
        self._head[:] = number, buffer
        end = pack(parts, self._payload, _HEAD_BYTES)
        for link in self._links:
            link.send(self._payload[:end])


class StepReceiver:
    """Puts what arrives into the buffers of this host. Methods return the step's number and
    buffer, None once waits were ended."""

    def __init__(
        self,
        link: LinkReceiver,
        steps: Sequence[StepInput],
        outputs: Sequence[StepOutput],
        block_size: int,
    ) -> None:
        self._link = link
        self._steps = steps
        self._outputs = outputs
        self._block_size = block_size

    def receive_input(self) -> tuple[int, int] | None:
        payload = self._link.receive()
        if payload is None:
            return None
        number, buffer = _head_of(payload)
        unpack(payload, _HEAD_BYTES, used_input(self._steps[buffer], self._block_size))
        return number, buffer

    def receive_output(self) -> tuple[int, int] | None:
        payload = self._link.receive()
        if payload is None:
            return None
        number, buffer = _head_of(payload)
        unpack(payload, _HEAD_BYTES, used_output(self._outputs[buffer]))
        return number, buffer


def _head_of(payload: np.ndarray) -> tuple[int, int]:
    number, buffer = payload[:_HEAD_BYTES].view(np.int64).tolist()
    return number, buffer
