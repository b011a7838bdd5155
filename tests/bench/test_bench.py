"""Whole runs against a scripted server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from fake_sse_server import Answer, FakeSseServer, Script, in_turn, num_fake_tokens, well_behaved
from takt.bench.bench import BenchResult, run_bench
from takt.bench.http_client import ServerError
from takt.bench.options import BenchOptions


def run(server: FakeSseServer, **options: Any) -> BenchResult:
    chosen = {"num_requests": 4, "prompt_tokens": 12, "output_tokens": 5, "num_warmup_requests": 0}
    return run_bench(server.url, BenchOptions(**{**chosen, **options}), lambda *progress: None)


def test_a_good_run_counts_every_token() -> None:
    with FakeSseServer() as server:
        result = run(server, num_warmup_requests=2)
    summary = result.summary
    assert (summary.num_requests, summary.num_ok, summary.errors) == (4, 4, {})
    assert (summary.tokens.num_prompt, summary.tokens.num_output) == (48, 20)
    assert summary.tokens.num_cached == 0
    assert summary.granularity == "token"
    assert summary.tokens_per_event == 1
    assert summary.latencies.itl is not None
    assert summary.latencies.itl.num_samples == 16
    assert summary.usage.num_other_prompt_length == 0
    assert summary.usage.num_short_outputs == 0
    assert summary.client.cpu_s > 0
    assert result.setting.server == "tests 1.2"
    assert result.setting.model == "fake"
    assert len(server.bodies) == 6
    assert len({body["prompt"] for body in server.bodies}) == 6


def test_prompts_have_their_exact_length() -> None:
    with FakeSseServer() as server:
        result = run(server, long_prompt_every=2, long_prompt_tokens=30)
    assert result.setting.has_exact_prompts
    assert [num_fake_tokens(body) for body in server.bodies] == [12, 30, 12, 30]


def test_a_chats_template_counts_too() -> None:
    with FakeSseServer() as server:
        result = run(server, endpoint="chat")
    assert [num_fake_tokens(body) for body in server.bodies] == [12] * 4
    assert result.summary.granularity == "token"
    assert result.summary.tokens.num_output == 20


def test_without_tokenize_lengths_are_the_servers() -> None:
    with FakeSseServer(has_tokenize=False) as server:
        result = run(server)
        expected = sum(num_fake_tokens(body) for body in server.bodies)
    assert not result.setting.has_exact_prompts
    assert result.summary.usage.num_other_prompt_length == 0
    assert result.summary.tokens.num_prompt == expected


def test_requests_carry_what_was_asked_for() -> None:
    with FakeSseServer() as server:
        run(server, api_key="secret", model="mine", temperature=0.5)
        run(server, ignore_eos=False)
    body = server.bodies[0]
    assert body["model"] == "mine"
    assert (body["max_tokens"], body["temperature"], body["ignore_eos"]) == (5, 0.5, True)
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert "ignore_eos" not in server.bodies[-1]
    assert any("Authorization: Bearer secret" in head for head in server.headers)


def test_seeds_repeat_and_their_lack_makes_new_prompts() -> None:
    def prompts(**options: Any) -> list[str]:
        with FakeSseServer() as server:
            run(server, **options)
            return [body["prompt"] for body in server.bodies]

    assert prompts(seed=5) == prompts(seed=5) != prompts(seed=6)
    assert set(prompts()).isdisjoint(prompts())


def test_a_closed_loop_holds_its_concurrency_and_its_connections() -> None:
    async def meeting(answer: Answer) -> None:
        """Answers when three requests have met."""
        await asyncio.wait_for(barrier.wait(), 100)
        await well_behaved(answer)

    barrier = asyncio.Barrier(3)
    with FakeSseServer(meeting) as server:
        result = run(server, num_requests=9, concurrency=3)
    assert result.summary.num_ok == 9
    assert server.max_running == 3
    # Three for the streams; prompts were counted on eight, which the streams take over.
    assert server.num_connections <= 8


def test_an_open_loop_does_not_wait_for_answers() -> None:
    async def meeting(answer: Answer) -> None:
        await asyncio.wait_for(barrier.wait(), 100)
        await well_behaved(answer)

    barrier = asyncio.Barrier(8)
    with FakeSseServer(meeting) as server:
        result = run(server, num_requests=8, qps=1000.0)
    assert result.summary.num_ok == 8
    assert server.max_running == 8


async def batched_chunks(answer: Answer) -> None:
    await answer.head()
    await answer.text("two tokens ")
    await answer.text("three more tokens", "length")
    await answer.usage(12, 5)
    await answer.done()


async def no_usage(answer: Answer) -> None:
    await answer.head()
    for _ in range(3):
        await answer.text("x")
    await answer.text("", "stop")
    await answer.done()


def test_batched_chunks_are_told_from_tokens() -> None:
    with FakeSseServer(batched_chunks) as server:
        summary = run(server).summary
    assert summary.granularity == "chunk"
    assert summary.tokens.num_output == 20
    assert summary.tokens_per_event == 2.5
    assert summary.latencies.itl is not None
    assert summary.latencies.itl.num_samples == 4


def test_missing_usage_is_reported() -> None:
    with FakeSseServer(no_usage) as server:
        summary = run(server).summary
    assert summary.granularity == "unknown"
    assert summary.usage.num_without_usage == 4
    assert summary.tokens.num_output == 12
    assert summary.usage.num_short_outputs == 4
    assert summary.tokens.num_cached is None


async def reset_at_once(answer: Answer) -> None:
    answer.reset()


async def reset_in_the_stream(answer: Answer) -> None:
    await answer.head()
    await answer.text("x")
    answer.reset()


async def cut_chunk(answer: Answer) -> None:
    await answer.head()
    await answer.raw("ff\r\ndata: ")
    answer.reset()


async def truncated(answer: Answer) -> None:
    await answer.head()
    await answer.text("x", "length")
    await answer.end()


async def too_many(answer: Answer) -> None:
    await answer.head("429 Too Many Requests", length=8)
    await answer.raw("busy now")


async def error_event(answer: Answer) -> None:
    await answer.head()
    await answer.text("x")
    await answer.event({"error": {"message": "engine died"}})
    await answer.done()


async def garbage(answer: Answer) -> None:
    await answer.raw("SMTP ready\r\n\r\n")


async def bad_event(answer: Answer) -> None:
    await answer.head()
    await answer.chunk("data: {broken\n\n")
    await answer.done()


async def whole_body(answer: Answer) -> None:
    await answer.head(length=2)
    await answer.raw("{}")


async def hanging(answer: Answer) -> None:
    await answer.head()
    await answer.text("x")
    await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("script", "kind", "num_events"),
    [
        (reset_at_once, "reset", 0),
        (reset_in_the_stream, "reset", 1),
        (cut_chunk, "reset", 0),
        (truncated, "truncated", 1),
        (too_many, "http_429", 0),
        (error_event, "error_event", 1),
        (garbage, "malformed_http", 0),
        (bad_event, "malformed_event", 0),
        (whole_body, "not_a_stream", 0),
        (hanging, "timeout", 1),
    ],
)
def test_failures_are_counted_by_kind_and_kept_out_of_latencies(
    script: Script, kind: str, num_events: int
) -> None:
    scripts = in_turn([well_behaved, script, well_behaved, script])
    with FakeSseServer(scripts) as server:
        options = {"timeout": 5.0, "concurrency": 4} if script is hanging else {"timeout": 200.0}
        summary = run(server, **options).summary
    assert summary.num_requests == 4
    assert summary.num_ok == 2
    assert summary.errors == {kind: 2}
    assert summary.tokens.num_output == 10
    assert summary.tokens.num_failed_output == 2 * num_events
    assert summary.latencies.ttft is not None
    assert summary.latencies.ttft.num_samples == 2


def test_a_status_shows_the_servers_words() -> None:
    with FakeSseServer(too_many) as server:
        summary = run(server).summary
    assert summary.errors == {"http_429": 4}
    assert summary.error_examples == {"http_429": "busy now"}
    assert summary.latencies.ttft is None
    assert summary.output_tokens_per_s == 0


def test_an_answer_that_ends_with_its_connection_is_whole() -> None:
    async def old_style(answer: Answer) -> None:
        await answer.raw("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        await answer.raw('data: {"choices":[{"text":"x","finish_reason":"length"}],')
        await answer.raw('"usage":{"prompt_tokens":12,"completion_tokens":1}}\n\ndata: [DONE]\n\n')
        raise ConnectionError  # the server closes

    with FakeSseServer(old_style) as server:
        summary = run(server, output_tokens=1).summary
    assert summary.errors == {}
    assert summary.tokens.num_output == 4


def test_goodput_counts_requests_that_met_all_targets() -> None:
    with FakeSseServer(in_turn([well_behaved, too_many, well_behaved, well_behaved])) as server:
        summary = run(server, goodput=("ttft:60000", "gap:60000")).summary
        assert summary.num_good == 3
    with FakeSseServer() as server:
        summary = run(server, goodput=("ttft:60000", "e2e:0.000001")).summary
    assert summary.num_good == 0
    assert summary.goodput_per_s == 0


def test_a_server_that_is_not_there_is_one_clear_error() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(ServerError, match=r"/v1/models failed"):
            run_bench(url, BenchOptions(), lambda *progress: None)


def test_progress_ends_at_the_number_of_requests() -> None:
    seen: dict[str, tuple[int, int]] = {}

    def on_progress(stage: str, done: int, total: int) -> None:
        seen[stage] = (done, total)

    with FakeSseServer() as server:
        run_bench(
            server.url, BenchOptions(num_requests=3, prompt_tokens=9, output_tokens=2), on_progress
        )
    assert seen == {"prompts": (4, 4), "requests": (3, 3)}


def test_usage_that_disagrees_is_counted() -> None:
    def with_usage(num_prompt: int, num_output: int) -> Callable[[Answer], Any]:
        async def script(answer: Answer) -> None:
            await answer.head()
            for _ in range(3):
                await answer.text("x")
            await answer.usage(num_prompt, num_output, cached=6)
            await answer.done()

        return script

    scripts = in_turn([with_usage(12, 3), with_usage(13, 3), with_usage(12, 2), with_usage(12, 3)])
    with FakeSseServer(scripts) as server:
        summary = run(server, output_tokens=3).summary
    assert summary.usage.num_other_prompt_length == 1
    assert summary.usage.num_surplus_text == 1
    assert summary.usage.num_short_outputs == 1
    assert summary.granularity == "mixed"
    assert summary.tokens.num_cached == 24
