"""How layers come to the stages of a pipeline: as given, measured or modelled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from takt import LLM
from takt.config import EngineConfig, ModelConfigOptions, ParallelOptions
from takt.engine.layer_cost_file import layer_cost_path, read_layer_costs, write_layer_costs
from takt.engine.stage_division import divide_stages, pipeline_info, with_division
from takt.errors import ConfigError
from takt.loading.checkpoint import open_checkpoint
from takt.models.config import read_model_config
from takt.models.layer_costs import PRODUCTS_S, READ_BYTES_S, ROWS
from takt.models.sharding import model_sizes
from takt.parallel.plan import ModelSizes
from takt.parallel.shard import Span
from takt.parallel.stages import LayerCosts

EVEN = LayerCosts((1.0,) * 12, embedding=0.0, head=0.0)
SIZES = ModelSizes(
    num_heads=4,
    num_kv_heads=1,
    head_dim=256,
    intermediate_size=2048,
    vocab_size=1024,
    output_group=1,
    down_group=1,
    costs=EVEN,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAKT_CACHE", str(tmp_path / "cache"))


def config(**parallel: Any) -> EngineConfig:
    options = ParallelOptions(**{"pipeline_parallel_size": 3, **parallel})
    return EngineConfig(model=ModelConfigOptions(model="any"), parallel=options)


def test_measured_costs_go_before_modelled_ones_and_given_layers_before_both() -> None:
    modelled = divide_stages(config(), SIZES)
    assert (modelled.source, modelled.shares) == ("modelled", (1 / 3,) * 3)
    heavy_head = LayerCosts((1.0,) * 12, embedding=1.0, head=5.0)
    write_layer_costs(layer_cost_path(config()), heavy_head)
    measured = divide_stages(config(), SIZES)
    assert measured.source == "measured"
    assert [span.size for span in measured.spans] == [5, 6, 1]
    assert measured.shares == pytest.approx([1 / 3] * 3)
    given = divide_stages(config(pp_layer_partition="1,2,9"), SIZES)
    assert (given.source, given.spans) == ("given", (Span(0, 1), Span(1, 3), Span(3, 12)))
    assert given.shares == pytest.approx([2 / 18, 2 / 18, 14 / 18])


def test_all_ranks_are_told_the_division_and_clients_too() -> None:
    division = divide_stages(config(), SIZES)
    told = with_division(config(), division)
    assert told.parallel.stage_layers == (4, 4, 4)
    info = pipeline_info(config(pipeline_depth="2"), division)
    assert info is not None
    assert (info.stage_layers, info.costs, info.depth) == ([4, 4, 4], "modelled", "2")
    assert pipeline_info(config(), divide_stages(config(pipeline_parallel_size=1), SIZES)) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"layers": [], "embedding": 0, "head": 1}',
        '{"layers": [1, 1], "embedding": 0, "head": 0}',
        '{"layers": [1, -1], "embedding": 0, "head": 1}',
        '{"layers": [1, 1e999], "embedding": 0, "head": 1}',
        '{"layers": [1, 1, 1], "embedding": 0, "head": 1}',
    ],
)
def test_a_file_that_cannot_be_the_models_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "costs.json"
    assert read_layer_costs(path, 2) is None
    path.write_text(text)
    assert read_layer_costs(path, 2) is None
    write_layer_costs(path, LayerCosts((1e-3, 2e-3), 0.0, 5e-4))
    assert read_layer_costs(path, 2) == LayerCosts((1e-3, 2e-3), 0.0, 5e-4)


@pytest.mark.oracle
def test_a_layers_model_is_the_longer_of_reading_and_computing(
    divisible: Callable[..., Path],
) -> None:
    def costs(kind: str | None) -> LayerCosts:
        checkpoint = open_checkpoint(divisible("gemma3", kind))
        try:
            return model_sizes(checkpoint, read_model_config(checkpoint)).costs
        finally:
            checkpoint.close()

    floats, packed = costs(None), costs("Q4_0")
    # 4 bytes an element take longer than 8 products, and 4 bits do not.
    elements = floats.head * READ_BYTES_S / 4
    assert packed.head == pytest.approx(ROWS * elements / PRODUCTS_S)
    assert floats.layers[0] > packed.layers[0] > 0
    assert packed.embedding == 0


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"pp_layer_partition": "3,2"}, "partition 3,2 is 5 layers in all; the model has 6$"),
        ({"pp_layer_partition": "6"}, "must be auto or 2 numbers"),
        ({"pp_layer_partition": "6,0"}, "must be auto or 2 numbers"),
        ({"pp_layer_partition": "six,0"}, "must be auto or 2 numbers"),
        ({"pipeline_depth": "0"}, "must be auto or a number from 1 to 8, got '0'"),
        ({"pipeline_depth": 9}, "must be auto or a number from 1 to 8, got '9'"),
        ({"pipeline_depth": "deep"}, "must be auto or a number from 1 to 8"),
        (
            {"pipeline_depth": "2", "pipeline_parallel_size": 1},
            "auto or a number from 1 to 1, since there is one stage, got '2'",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    divisible: Callable[..., Path], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        LLM(str(divisible("gemma3")), **{"pipeline_parallel_size": 2, **options})
