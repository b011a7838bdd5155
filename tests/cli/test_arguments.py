"""vLLM's flags on our command line: same, mapped, refused by name; unknown ones get a hint."""

import dataclasses

import pytest

from takt.cli.arguments import translate
from takt.cli.main import known_flags
from takt.cli.options import SERVER_TABLES, flag_of
from takt.cli.reference import OWN_FLAGS
from takt.cli.vllm_flags import VLLM_FLAGS, Mapped
from takt.errors import ConfigError

_, SERVE = known_flags(["serve"])


def test_known_flags_pass_with_underscores_as_dashes() -> None:
    assert translate(["m", "--max_num_seqs", "4", "--port=1"], SERVE) == [
        "m", "--max-num-seqs", "4", "--port=1",
    ]  # fmt: skip


def test_mapped_flag_becomes_ours() -> None:
    assert translate(["--shutdown-timeout", "3"], SERVE) == ["--drain-timeout-seconds", "3"]


def test_short_flags_of_ranks_are_vllms() -> None:
    ours = ["--tensor-parallel-size", "2", "--pipeline-parallel-size=4", "--data-parallel-size=2"]
    assert translate(["-tp", "2", "-pp=4", "-dp=2"], SERVE) == ours


def test_flag_of_a_missing_feature_is_refused_with_its_name_and_reason() -> None:
    with pytest.raises(ConfigError, match=r"--data-parallel-rank.*stages and replicas are all"):
        translate(["--data-parallel-rank", "1"], SERVE)
    with pytest.raises(ConfigError, match=r"--trust-remote-code.*remote code is never run"):
        translate(["--trust-remote-code"], SERVE)


@pytest.mark.parametrize("arguments", [["--seed", "0"], ["--seed=0"]])
def test_neutral_value_asks_for_nothing(arguments: list[str]) -> None:
    assert translate([*arguments, "--port", "1"], SERVE) == ["--port", "1"]


def test_harmless_switch_is_dropped() -> None:
    assert translate(["--disable-log-stats", "m"], SERVE) == ["m"]


def test_unknown_flag_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean --max-num-seqs"):
        translate(["--max-num-seq", "2"], SERVE)


def test_nothing_after_two_dashes_is_touched() -> None:
    assert translate(["--", "--tensor-parallel-size"], SERVE) == ["--", "--tensor-parallel-size"]


def test_negative_numbers_are_values() -> None:
    assert translate(["--temperature", "-1"], known_flags(["generate"])[1]) == [
        "--temperature",
        "-1",
    ]


def test_every_mapped_flag_leads_to_one_of_ours() -> None:
    for flag, disposition in VLLM_FLAGS.items():
        if isinstance(disposition, Mapped):
            assert disposition.flag in SERVE, flag


def test_no_flag_is_both_ours_and_refused() -> None:
    ours = {flag_of(f.name) for table in SERVER_TABLES for f in dataclasses.fields(table)}
    assert not ours & set(VLLM_FLAGS)
    assert ours >= OWN_FLAGS
