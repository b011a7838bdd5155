from pathlib import Path

import pytest

from takt.plan.errors import PlanInputError
from takt.plan.simulate.arrivals import Arrival
from takt.plan.simulate.traces import read_trace, scale_rate


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace"
    path.write_text(text)
    return path


def test_json_lines_in_seconds(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"arrival_s": 3.5, "num_prompt_tokens": 7, "num_output_tokens": 2}\n\n'
        '{"arrival_s": 1.5, "num_prompt_tokens": 5, "num_output_tokens": 1}\n',
    )
    assert read_trace(path) == [Arrival(0, 5, 1), Arrival(2_000_000_000, 7, 2)]
    assert read_trace(path, max_requests=1) == [Arrival(0, 5, 1)]


def test_json_lines_in_milliseconds(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": []}\n'
        '{"timestamp": 250, "input_length": 6, "output_length": 2, "hash_ids": []}\n',
    )
    assert read_trace(path) == [Arrival(0, 5, 1), Arrival(250_000_000, 6, 2)]


def test_azures_columns(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n",
    )
    first, second = read_trace(path)
    assert first == Arrival(0, 374, 44)
    assert second.time_ns == pytest.approx(4_314_579_000, abs=1000)


def test_burstgpts_columns_without_what_failed(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,1087,0,1087,Conversation log\n"
        "118,GPT-4,417,276,693,API log\n",
    )
    assert read_trace(path) == [Arrival(0, 472, 18), Arrival(113_000_000_000, 417, 276)]


def test_a_trace_can_be_replayed_faster() -> None:
    assert scale_rate([Arrival(0, 1, 1), Arrival(1000, 1, 1)], 2.0)[1].time_ns == 500
    with pytest.raises(PlanInputError, match="factor"):
        scale_rate([], 0.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "neither JSON lines nor a table"),
        ("a,b,c\n1,2,3\n", "its first line has: a, b, c"),
        ('{"arrival_s": 1, "num_prompt_tokens": 5}\n', "line 1: num_output_tokens"),
        ('{"arrival_s": 1\n', "line 1: is not JSON"),
        (
            '{"arrival_s": 0, "num_prompt_tokens": 0, "num_output_tokens": 1}\n',
            "line 1: num_prompt_tokens must be a whole number from 1",
        ),
        (
            '{"arrival_s": NaN, "num_prompt_tokens": 5, "num_output_tokens": 1}\n',
            "line 1: arrival_s is not finite",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n",
            "line 2: TIMESTAMP 'yesterday'",
        ),
        ("Timestamp,Request tokens,Response tokens\n1,2\n", "line 2: Response tokens"),
        ("Timestamp,Request tokens,Response tokens\n1,2,0\n", "has no request with output"),
    ],
)
def test_a_wrong_trace_is_refused_by_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(PlanInputError, match="trace") as caught:
        read_trace(write(tmp_path, text))
    assert said in str(caught.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanInputError, match="cannot be read"):
        read_trace(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanInputError, match="UTF-8"):
        read_trace(tmp_path / "binary")
