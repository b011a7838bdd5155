"""/v1/completions through OpenAI's client against a real server with a fake engine."""

from __future__ import annotations

import httpx
import openai
import pytest
from server_fakes import BOS, IM_END, ByteTokenizer, FakeEngine, FakeServer, fixed_reply


def test_text_and_usage(client: openai.OpenAI, engine: FakeEngine, model: str) -> None:
    engine.reply = fixed_reply("Hé!")
    engine.num_cached_tokens = 2
    answer = client.completions.create(model=model, prompt="abc", max_tokens=9)
    assert answer.choices[0].text == "Hé!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 5)
    assert answer.usage.prompt_tokens_details.cached_tokens == 2


def test_defaults_are_openais(client: openai.OpenAI, engine: FakeEngine, model: str) -> None:
    answer = client.completions.create(model=model, prompt="abc")
    assert answer.choices[0].finish_reason == "length"
    sampling = engine.requests[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (16, 1.0, 1.0)
    assert sampling.seed is not None


def test_without_a_seed_each_request_draws_its_own(
    client: openai.OpenAI, engine: FakeEngine, model: str
) -> None:
    for _ in range(2):
        client.completions.create(model=model, prompt="abc")
    first, second = (request.sampling.seed for request in engine.requests)
    assert first != second


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [[97, 98]]),
        (["ab", "c"], [[97, 98], [99]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, BOS]], [[97], [98, BOS]]),
        ("a<|im_end|>", [[97, IM_END]]),
    ],
)
def test_every_shape_of_prompt(
    client: openai.OpenAI, engine: FakeEngine, model: str, prompt: object, expected: list[list[int]]
) -> None:
    answer = client.completions.create(model=model, prompt=prompt, n=2, seed=5)  # type: ignore[call-overload]
    asked = sorted(request.prompt_token_ids for request in engine.requests)
    assert asked == sorted(expected)
    assert [choice.index for choice in answer.choices] == list(range(2 * len(expected)))
    assert len({choice.text for choice in answer.choices}) == 2 * len(expected)


def test_begin_token_comes_once_and_never_to_ids() -> None:
    with (
        FakeServer(tokenizer=ByteTokenizer(adds_bos=True)) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        for prompt in ("a", "<bos>a", [97], ""):
            assert http.post("/v1/completions", json={"prompt": prompt}).status_code == 200
        asked = [request.prompt_token_ids for request in server.engine.requests]
        assert asked == [[BOS, 97], [BOS, 97], [97], [BOS]]
        response = http.post("/v1/completions", json={"prompt": "a", "add_special_tokens": False})
        assert response.status_code == 200
        assert server.engine.requests[-1].prompt_token_ids == [97]


def test_n_choices_with_a_seed_differ_and_repeat(client: openai.OpenAI, model: str) -> None:
    def texts(n: int) -> list[str]:
        answer = client.completions.create(model=model, prompt="ab", n=n, seed=3, max_tokens=8)
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 8 * n)
        return [choice.text for choice in answer.choices]

    assert len(set(texts(3))) == 3
    assert texts(3) == texts(3)
    assert texts(3)[:1] == texts(1)


def test_negative_seed_is_its_bit_pattern(
    client: openai.OpenAI, engine: FakeEngine, model: str
) -> None:
    client.completions.create(model=model, prompt="a", seed=-1)
    assert engine.requests[0].sampling.seed == 2**64 - 1


def test_character_cut_by_max_tokens_becomes_one_mark(
    client: openai.OpenAI, engine: FakeEngine, model: str
) -> None:
    engine.reply = fixed_reply("a😀", ends=False)
    answer = client.completions.create(model=model, prompt="p", max_tokens=3)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("a\ufffd", "length")
    assert answer.usage is not None and answer.usage.completion_tokens == 3


def test_stop_string_cuts_text_and_aborts_the_choice(
    client: openai.OpenAI, engine: FakeEngine, model: str
) -> None:
    engine.reply = fixed_reply("one STOP two three", ends=False)
    answer = client.completions.create(
        model=model, prompt="a", stop=["STOP", "x"], max_tokens=50, logprobs=1
    )
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == ("one ", "stop")
    assert choice.model_extra is not None and choice.model_extra["stop_reason"] == "STOP"
    assert engine.aborted == [(engine.requests[0].request_id, 0)]
    logprobs = choice.logprobs
    assert logprobs is not None and logprobs.tokens is not None
    assert logprobs.token_logprobs is not None and logprobs.text_offset is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == 8
    assert logprobs.text_offset[3:] == [3, 4, 4, 4, 4]


def test_stop_string_is_kept_on_request(
    client: openai.OpenAI, engine: FakeEngine, model: str
) -> None:
    engine.reply = fixed_reply("one STOP two")
    answer = client.completions.create(
        model=model, prompt="a", stop="STOP", extra_body={"include_stop_str_in_output": True}
    )
    assert answer.choices[0].text == "one STOP"


def test_stop_token_is_not_part_of_the_text(
    client: openai.OpenAI, engine: FakeEngine, model: str
) -> None:
    engine.reply = fixed_reply("abXcd")
    answer = client.completions.create(
        model=model, prompt="a", extra_body={"stop_token_ids": [ord("X")]}
    )
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == ("ab", "stop")
    assert choice.model_extra is not None and choice.model_extra["stop_reason"] == ord("X")


def test_logprobs_have_equal_length_and_offsets(
    client: openai.OpenAI, engine: FakeEngine, model: str
) -> None:
    engine.reply = fixed_reply("a€b", ends=False)
    answer = client.completions.create(model=model, prompt="p", logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "b"]
    assert logprobs.text_offset == [0, 1, 1, 1, 2]
    assert logprobs.token_logprobs == [-0.5] * 5
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {"a": -0.5, "b": -2.0}


def test_scoring_gives_one_entry_per_prompt_token(
    client: openai.OpenAI, engine: FakeEngine, model: str
) -> None:
    answer = client.completions.create(
        model=model, prompt="abc", max_tokens=0, echo=True, logprobs=1
    )
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == ("abc", "length")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["a", "b", "c"]
    assert choice.logprobs.token_logprobs == [None, -0.5, -0.5]
    assert choice.logprobs.text_offset == [0, 1, 2]
    assert answer.usage is not None and answer.usage.completion_tokens == 0
    assert engine.requests[0].sampling.prompt_logprobs == 1


def test_echo_with_written_markers_and_begin_token_keeps_offsets() -> None:
    engine = FakeEngine(fixed_reply("z", ends=False))
    with (
        FakeServer(engine, ByteTokenizer(adds_bos=True)) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        body = {"prompt": "a<|im_end|>b", "echo": True, "logprobs": 0}
        choice = http.post("/v1/completions", json=body).json()["choices"][0]
    assert choice["text"] == "a<|im_end|>bz"
    assert choice["logprobs"]["tokens"] == ["<bos>", "a", "<|im_end|>", "b", "z"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 11, 12]
    assert choice["logprobs"]["top_logprobs"] is None


def test_echo_of_token_ids_is_their_text(
    client: openai.OpenAI, engine: FakeEngine, model: str
) -> None:
    engine.reply = fixed_reply("!")
    answer = client.completions.create(model=model, prompt=[104, 105], echo=True)
    assert answer.choices[0].text == "hi!"


def test_prompt_logprobs_in_vllms_shape(http: httpx.Client) -> None:
    body = {"prompt": "ab", "prompt_logprobs": 1}
    choice = http.post("/v1/completions", json=body).json()["choices"][0]
    first, second = choice["prompt_logprobs"]
    assert first is None
    assert second == {"98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}}


def test_prompt_and_output_must_fit_the_context(http: httpx.Client, engine: FakeEngine) -> None:
    too_long = http.post("/v1/completions", json={"prompt": "a" * 300})
    assert too_long.status_code == 400
    assert "300" in too_long.text and "256" in too_long.text
    no_room = http.post("/v1/completions", json={"prompt": "a" * 200, "max_tokens": 57})
    assert no_room.status_code == 400
    assert "57" in no_room.text and "256" in no_room.text
    assert http.post("/v1/completions", json={"prompt": "a" * 250}).status_code == 200
    assert engine.requests[-1].sampling.max_tokens == 6
    engine.num_kv_tokens = 20
    no_pool = http.post("/v1/completions", json={"prompt": "abcdef", "max_tokens": 15})
    assert no_pool.status_code == 400
    assert "21" in no_pool.text and "20" in no_pool.text


def test_text_that_cannot_fit_is_refused_before_it_is_tokenised(http: httpx.Client) -> None:
    text = "a" * 4_000_000
    for path, body, param in (
        ("/v1/completions", {"prompt": ["b", text]}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}, "messages"),
        ("/generate", {"prompt": text}, "prompt"),
    ):
        error = http.post(path, json=body).json()["error"]
        assert (error["param"], error["code"]) == (param, "context_length_exceeded")
        assert "at least 333333 tokens" in error["message"]


def test_many_logprobs_are_written_off_the_event_loop(http: httpx.Client) -> None:
    body = {"prompt": "a" * 200, "echo": True, "logprobs": 5, "prompt_logprobs": 2}
    choice = http.post("/v1/completions", json=body).json()["choices"][0]
    assert len(choice["logprobs"]["tokens"]) == 216
    assert len(choice["prompt_logprobs"]) == 200


def test_vllms_generate(http: httpx.Client, engine: FakeEngine) -> None:
    engine.reply = fixed_reply("cd")
    assert http.post("/generate", json={"prompt": "ab"}).json() == {"text": ["abcd"]}
    lines = http.post("/generate", json={"prompt": "ab", "stream": True}).text.splitlines()
    assert lines == ['{"text":["abc"]}', '{"text":["abcd"]}', '{"text":["abcd"]}']
