"""Carries steps, hidden states and outputs between the shared memory of hosts.

Instructions of a program know rings in shared memory only. Where the stage that follows is on
another host, a thread here empties the ring and sends what it held; a thread there fills the ring
that the next stage reads. The ranks of a group hold the same bits after each sum, so their hidden
states cross once, and are dealt out to the group on the other side.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from takt.errors import EngineDeadError
from takt.parallel.host_link import LinkHub, LinkReceiver, LinkSender
from takt.parallel.host_map import ENGINE_HOST, HostMap
from takt.parallel.segment import TRANSFERS_PER_STEP, Segment
from takt.parallel.step_links import (
    RESULTS,
    StepReceiver,
    StepSender,
    hop_name,
    max_step_bytes,
    steps_name,
)
from takt.types.step import StepInput, StepLimits, StepOutput

if TYPE_CHECKING:
    from takt import _native


class HostBridge:
    """What the leader of a host runs beside its own rank.

    The engine itself sends the steps and takes the outputs of its own host's ranks.
    """

    def __init__(
        self,
        hub: LinkHub,
        host_map: HostMap,
        host: int,
        segment: Segment,
        limits: StepLimits,
        *,
        block_size: int,
        hidden_size: int,
    ) -> None:
        self._hub = hub
        self._map = host_map
        self._host = host
        self._segment = segment
        self._limits = limits
        self._block_size = block_size
        self._hidden_size = hidden_size
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        self.cause = ""
        """Why it ended, if it did so by itself."""
        buffers = range(segment.plan.num_buffers)
        self._steps = [StepInput(limits, segment.input_buffer(i)) for i in buffers]
        self._outputs = [StepOutput(limits, segment.output_buffer(i)) for i in buffers]
        hop_bytes = limits.max_num_tokens * hidden_size * 4
        self._receivers: dict[str, LinkReceiver] = {
            hop_name(stage): hub.receiver(hop_name(stage), hop_bytes) for stage in self._arriving
        }
        if host != ENGINE_HOST:
            name = steps_name(host)
            self._receivers[name] = hub.receiver(name, max_step_bytes(limits))
        self._senders: dict[str, LinkSender] = {}

    @property
    def addresses(self) -> dict[str, str]:
        """Where others connect, by the name of the connection."""
        return {name: receiver.address for name, receiver in self._receivers.items()}

    def connect(self, addresses: dict[str, str]) -> None:
        """Makes this host's connections and waits for those of others; raises `ConfigError`."""
        names = [hop_name(stage) for stage in self._leaving]
        if self._sends_outputs:
            names.append(RESULTS)
        for name in names:
            self._senders[name] = self._hub.sender(name, addresses[name])
        for receiver in self._receivers.values():
            receiver.accept()

    def start(self) -> None:
        for stage in self._leaving:
            self._run(partial(self._send_hop, stage))
        for stage in self._arriving:
            self._run(partial(self._receive_hop, stage))
        if self._host != ENGINE_HOST:
            self._run(self._take_steps)
        if self._sends_outputs:
            self._run(self._send_outputs)
        self._hub.watch()

    def end(self, cause: str) -> None:
        """Ends all waits of this host's ranks and of this bridge."""
        with self._lock:
            self.cause = self.cause or cause
        self._segment.abort()
        self._hub.stop()

    def join(self) -> None:
        """After `end`: returns once nothing is carried any more. Connections stay open."""
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        """Ends the connections too, which is how other hosts hear of it. May be called again."""
        self.end("")
        with self._closing:
            self.join()
            self._hub.close()

    # -- which way things go ------------------------------------------------------------------
    @property
    def _leaving(self) -> list[int]:
        return [s for s in self._map.hops if self._map.host_of_stage(s) == self._host]

    @property
    def _arriving(self) -> list[int]:
        return [s for s in self._map.hops if self._map.host_of_stage(s + 1) == self._host]

    @property
    def _sends_outputs(self) -> bool:
        return self._host == self._map.sampling_host != ENGINE_HOST

    # -- threads ------------------------------------------------------------------------------
    def _run(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except EngineDeadError as error:
                self.end(str(error))
            except Exception as error:
                # An abort wakes the waits of channels with an error, which is no cause.
                if not self._segment.is_aborted:
                    self.end(f"host {self._host} failed: {type(error).__name__}: {error}")

        thread = threading.Thread(target=guarded, name="takt-bridge", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _take_steps(self) -> None:
        link = self._receivers[steps_name(self._host)]
        steps = StepReceiver(link, self._steps, self._outputs, self._block_size)
        submitted, _ = self._segment.signals(0)
        while (received := steps.receive_input()) is not None:
            number, buffer = received
            self._segment.order[number % len(self._segment.order)] = buffer
            submitted.post(number)

    def _send_outputs(self) -> None:
        sender = StepSender([self._senders[RESULTS]], self._limits, self._block_size)
        _, completed = self._segment.signals(0)
        number = 1
        while completed.wait(number):
            buffer = self._buffer_of(number)
            sender.send_output(number, buffer, self._outputs[buffer])
            number += 1

    def _send_hop(self, stage: int) -> None:
        link = self._senders[hop_name(stage)]
        channels = self._channels(stage)
        values = np.zeros(self._limits.max_num_tokens * self._hidden_size, dtype=np.float32)
        submitted, _ = self._segment.signals(0)
        number = 1
        while submitted.wait(number):
            # The step's buffer is filled again only once the step has left the pipeline.
            num_tokens = self._steps[self._buffer_of(number)].num_tokens
            used = values[: num_tokens * self._hidden_size]
            for _ in range(TRANSFERS_PER_STEP):
                for channel in reversed(channels):
                    channel.receive(used)
                link.send(used.view(np.uint8))
            number += 1

    def _receive_hop(self, stage: int) -> None:
        link = self._receivers[hop_name(stage)]
        channels = self._channels(stage)
        while (payload := link.receive()) is not None:
            values = payload.view(np.float32)
            for channel in channels:
                channel.send(values)

    def _channels(self, stage: int) -> list[_native.Channel]:
        return [
            self._segment.channel(stage, rank, 0) for rank in range(self._map.layout.tensor_size)
        ]

    def _buffer_of(self, number: int) -> int:
        return int(self._segment.order[number % len(self._segment.order)])
