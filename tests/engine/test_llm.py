"""The offline API, on a model whose words are token numbers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_model import EOS_TOKEN_ID, FakeTokenizer, expected_tokens, fake_model

import takt.llm
from takt import LLM, SamplingParams
from takt.engine.build import LoadedModel
from takt.errors import ConfigError, InvalidRequestError
from takt.types.step import StepInput

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)

MakeLLM = Callable[..., LLM]


@pytest.fixture
def make_llm(monkeypatch: pytest.MonkeyPatch) -> MakeLLM:
    def make(model: LoadedModel | None = None, **options: Any) -> LLM:
        monkeypatch.setattr(
            takt.llm,
            "load_model_and_tokenizer",
            lambda config, progress: (model or fake_model(), FakeTokenizer()),
        )
        return LLM(
            "fake",
            **{
                "max_num_seqs": 64,
                "max_num_batched_tokens": 64,
                "kv_cache_memory_bytes": 1 << 20,
                **options,
            },
        )

    return make


def words(tokens: list[int]) -> str:
    return "".join(f" w{token}" for token in tokens if token != EOS_TOKEN_ID)


def blocks_used(llm: LLM) -> int:
    """After a step that ends all that was aborted."""
    llm.generate("w1", SamplingParams(max_tokens=1))
    return llm._core._scheduler.kv_blocks_used


def test_completions_come_in_the_order_of_the_prompts(make_llm: MakeLLM) -> None:
    with make_llm() as llm:
        prompts = [f"w{i} w{i + 1}" for i in range(100)]
        answers = llm.generate(prompts, GREEDY)
    for i, answer in enumerate(answers):
        expected = expected_tokens([i, i + 1], GREEDY)
        (output,) = answer.outputs
        assert answer.prompt == prompts[i]
        assert answer.prompt_token_ids == [i, i + 1]
        assert output.token_ids == expected
        assert output.text == words(expected)
        assert output.finish_reason == "length"
        assert answer.finished


@pytest.mark.parametrize("prompt", [[5, 6, 7], [[5, 6, 7]], "w5 w6 w7", ["w5 w6 w7"]])
def test_a_prompt_is_text_or_token_ids(make_llm: MakeLLM, prompt: Any) -> None:
    with make_llm() as llm:
        (answer,) = llm.generate(prompt, GREEDY)
    assert answer.outputs[0].token_ids == expected_tokens([5, 6, 7], GREEDY)


def test_parameters_may_differ_by_prompt(make_llm: MakeLLM) -> None:
    params = [SamplingParams(max_tokens=i, temperature=0.0, ignore_eos=True) for i in (1, 5)]
    with make_llm() as llm:
        answers = llm.generate(["w1", "w2"], params)
        assert [len(a.outputs[0].token_ids) for a in answers] == [1, 5]
        with pytest.raises(InvalidRequestError, match="2 sampling parameters for 1 prompts"):
            llm.generate(["w1"], params)


def test_a_drawn_seed_is_reported_and_repeats_the_text(make_llm: MakeLLM) -> None:
    params = SamplingParams(max_tokens=9, n=2, ignore_eos=True)
    with make_llm() as llm:
        first, second = llm.generate(["w3", "w3"], params)
        assert first.outputs[0].token_ids != second.outputs[0].token_ids
        again = SamplingParams(max_tokens=9, n=2, ignore_eos=True, seed=first.seed)
        (repeated,) = llm.generate("w3", again)
    assert [o.text for o in repeated.outputs] == [o.text for o in first.outputs]
    assert first.outputs[0].text != first.outputs[1].text


def test_a_stop_string_cuts_the_text_and_ends_the_choice(make_llm: MakeLLM) -> None:
    tokens = expected_tokens([4], GREEDY)
    stop = f"w{tokens[5]}"
    with make_llm() as llm:
        params = SamplingParams(temperature=0.0, max_tokens=12, stop=(stop,), ignore_eos=True)
        (answer,) = llm.generate("w4", params)
        assert blocks_used(llm) == 0
    output = answer.outputs[0]
    assert output.text == words(tokens[:5]) + " "
    assert output.token_ids == tokens[:6]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)


def test_a_stop_token_is_hidden_and_named(make_llm: MakeLLM) -> None:
    tokens = expected_tokens([4], GREEDY)
    params = SamplingParams(temperature=0.0, max_tokens=12, stop_token_ids=(tokens[3],))
    with make_llm() as llm:
        output = llm.generate("w4", params)[0].outputs[0]
    assert output.text == words(tokens[:3])
    assert (output.finish_reason, output.stop_reason) == ("stop", tokens[3])


def test_logprobs_have_an_entry_per_token(make_llm: MakeLLM) -> None:
    params = SamplingParams(
        temperature=0.0, max_tokens=4, logprobs=2, prompt_logprobs=1, ignore_eos=True
    )
    with make_llm() as llm:
        (answer,) = llm.generate("w4 w5 w6", params)
    output = answer.outputs[0]
    assert output.logprobs is not None
    assert answer.prompt_logprobs is not None
    assert [entry.token_id for entry in output.logprobs] == output.token_ids
    assert output.cumulative_logprob == sum(entry.logprob for entry in output.logprobs)
    assert answer.prompt_logprobs[0] is None
    assert [entry.token_id for entry in answer.prompt_logprobs if entry] == [5, 6]


def test_a_stream_is_the_text_in_pieces(make_llm: MakeLLM) -> None:
    with make_llm() as llm:
        pieces = list(llm.stream("w8", GREEDY))
        assert pieces == [words([token]) for token in expected_tokens([8], GREEDY)]
        with pytest.raises(InvalidRequestError, match="one choice"):
            next(llm.stream("w8", SamplingParams(n=2)))


def test_a_closed_stream_leaves_nothing_running(make_llm: MakeLLM) -> None:
    with make_llm() as llm:
        stream = llm.stream("w8", SamplingParams(max_tokens=100, ignore_eos=True))
        next(stream)
        stream.close()
        assert not llm._core._scheduler.has_work
        assert blocks_used(llm) == 0


def test_one_bad_prompt_ends_the_call_and_leaves_nothing_running(make_llm: MakeLLM) -> None:
    with make_llm() as llm:
        with pytest.raises(InvalidRequestError, match="5001"):
            llm.generate([[1, 2], [5001], [3]], GREEDY)
        assert not llm._core._scheduler.has_work
        assert blocks_used(llm) == 0


@pytest.fixture
def default_interrupt() -> Iterator[None]:
    """Python's own answer to Ctrl-C; a shell's background jobs start with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_interrupt")
def test_ctrl_c_in_a_step_ends_the_call_and_leaves_the_engine_whole(make_llm: MakeLLM) -> None:
    pressed = False

    def press(step: StepInput) -> None:
        nonlocal pressed
        if not pressed and step["positions"][0] == 5:
            pressed = True
            os.kill(os.getpid(), signal.SIGINT)

    with make_llm(fake_model(before_step=press)) as llm:
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["w1"], GREEDY)
        assert pressed
        assert not llm._core._scheduler.has_work
        (answer,) = llm.generate(["w1"], GREEDY)
        assert answer.outputs[0].token_ids == expected_tokens([1], GREEDY)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_chat_is_rendered_by_the_models_template(
    make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [{"role": "user", "content": "w11 w12"}]
    with make_llm() as llm, pytest.raises(InvalidRequestError, match="no chat template"):
        llm.chat(messages, GREEDY)
    template = "{% for m in messages %}w1 {{ m.content }} {% endfor %}w2"
    monkeypatch.setattr(FakeTokenizer, "chat_template", template)
    with make_llm() as llm:
        (answer,) = llm.chat(messages, GREEDY)
        assert answer.prompt_token_ids == [1, 11, 12, 2]
        assert answer.outputs[0].token_ids == expected_tokens([1, 11, 12, 2], GREEDY)
        assert [a.prompt_token_ids for a in llm.chat([messages, messages], GREEDY)] == [
            [1, 11, 12, 2]
        ] * 2
        assert "".join(llm.stream_chat(messages, GREEDY)) == answer.outputs[0].text


def test_an_unknown_option_is_refused_with_the_nearest_known() -> None:
    with pytest.raises(ConfigError, match=r"max_num_seq; did you mean max_num_seqs\?"):
        LLM("fake", max_num_seq=4)


def test_a_closed_llm_says_so(make_llm: MakeLLM) -> None:
    llm = make_llm()
    llm.close()
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("w1", GREEDY)


def test_importing_the_package_loads_no_heavy_module() -> None:
    code = "import sys, takt; print([m for m in ('numpy', 'torch', 'zmq') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
