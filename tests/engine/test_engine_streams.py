"""The client's end of running requests: who gets which of a step's tokens."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from takt.engine.messages import IN_OUTPUTS, AddRequest, EngineEvent, StepMessage
from takt.engine.streams import Stream, Streams
from takt.types.sampling_params import SamplingParams


def streams_of(*names: str, n: int = 1) -> tuple[Streams, dict[str, Stream]]:
    loop = asyncio.new_event_loop()
    loop.close()  # nobody waits here: outputs only pile up
    streams = Streams()
    made = {
        name: Stream(AddRequest(name, [1], SamplingParams(n=n, temperature=1.0)), loop)
        for name in names
    }
    for stream in made.values():
        streams.add(stream)
    return streams, made


def taken(stream: Stream) -> list[tuple[int, list[int], int]]:
    outputs = []
    while stream.has_unread:
        output = asyncio.run(stream.next())
        assert output is not None
        outputs.append((output.choice, output.token_ids, output.step_id))
    return outputs


def test_each_member_gets_its_token_until_others_are_named() -> None:
    streams, made = streams_of("a", "b", n=2)
    streams.dispatch_tokens([("a", 0), ("b", 1)], [5, 6], 1)
    streams.dispatch_tokens(None, [7, 8], 2)
    streams.dispatch_tokens([("b", 0)], [9], 3)
    assert taken(made["a"]) == [(0, [5], 1), (0, [7], 2)]
    assert taken(made["b"]) == [(1, [6], 1), (1, [8], 2), (0, [9], 3)]


def test_tokens_that_come_as_outputs_and_those_of_requests_that_are_gone_are_left_out() -> None:
    streams, made = streams_of("a", "b")
    streams.dispatch_tokens([("a", 0), ("b", 0), ("gone", 0)], [IN_OUTPUTS, 6, 7], 1)
    assert taken(made["a"]) == []
    assert taken(made["b"]) == [(0, [6], 1)]


def test_a_step_without_decodes_leaves_the_members_as_they_are() -> None:
    streams, made = streams_of("a")
    streams.dispatch_tokens([("a", 0)], [5], 1)
    streams.dispatch_tokens(None, [], 2)
    streams.dispatch_tokens(None, [6], 3)
    assert taken(made["a"]) == [(0, [5], 1), (0, [6], 3)]


def test_tokens_without_an_owner_are_an_error() -> None:
    streams, _ = streams_of("a")
    with pytest.raises(ValueError, match="zip"):
        streams.dispatch_tokens([("a", 0)], [5, 6], 1)


def test_a_message_of_plain_tokens_is_small_and_comes_back_as_it_was() -> None:
    message = StepMessage(3, [], None, [11, 12], [("a", 0), ("b", 2)])
    payload = msgspec.msgpack.encode(message)
    decoded = msgspec.msgpack.decode(payload, type=EngineEvent)
    assert decoded == message
    following = msgspec.msgpack.encode(StepMessage(3, [], None, [13, 14]))
    assert b"members" not in following
    assert msgspec.msgpack.decode(following, type=EngineEvent).members is None
