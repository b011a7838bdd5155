"""What each rank holds, and the sizes that work."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takt.errors import ConfigError
from takt.parallel.layout import ParallelLayout
from takt.parallel.plan import ModelSizes, plan_shards, tensor_sizes
from takt.parallel.rank_kv import rank_kv_spec, total_kv_heads
from takt.parallel.shard import Span
from takt.parallel.stages import LayerCosts, divide_layers
from takt.types.kv import KVCacheSpec, KVDtype, KVGroupSpec

SMOLLM2 = ModelSizes(
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    vocab_size=49_152,
    output_group=32,
    down_group=32,
    costs=LayerCosts((2.2,) * 30, embedding=0.0, head=30.0),
)
GEMMA = replace(
    SMOLLM2,
    num_heads=4,
    num_kv_heads=1,
    head_dim=256,
    intermediate_size=2048,
    vocab_size=262_144,
    output_group=256,
    down_group=256,
    costs=LayerCosts((3.0,) * 18, embedding=0.0, head=30.0),
)


def test_sizes_that_work_are_known() -> None:
    assert tensor_sizes(SMOLLM2) == [1, 3]
    assert tensor_sizes(GEMMA) == [1, 2, 4]


@pytest.mark.parametrize(
    ("sizes", "layout", "sentence"),
    [
        (SMOLLM2, ParallelLayout(2), "9 attention heads cannot .* sizes that work: 1, 3$"),
        (SMOLLM2, ParallelLayout(9), "inner features .* groups of 32; sizes that work: 1, 3$"),
        (GEMMA, ParallelLayout(3), "sizes that work: 1, 2, 4$"),
        (replace(GEMMA, output_group=512), ParallelLayout(4), "256 columns .* groups of 512"),
        (replace(GEMMA, num_heads=12, num_kv_heads=4), ParallelLayout(3), "4 KV heads cannot"),
        (SMOLLM2, ParallelLayout(1, 31), "30 layers; sizes that work: 1 to 30$"),
    ],
)
def test_sizes_that_do_not_are_refused_with_those_that_do(
    sizes: ModelSizes, layout: ParallelLayout, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        plan_shards(sizes, layout)


def test_ranks_hold_everything_once() -> None:
    for sizes, tensor_size in ((SMOLLM2, 3), (GEMMA, 4)):
        layout = ParallelLayout(tensor_size, 2)
        shards = plan_shards(sizes, layout)
        assert len(shards) == layout.num_ranks
        for stage in range(2):
            group = shards[stage * tensor_size : (stage + 1) * tensor_size]
            assert len({shard.layers for shard in group}) == 1
            for field, total in (
                ("heads", sizes.num_heads),
                ("mlp", sizes.intermediate_size),
                ("vocab", sizes.vocab_size),
            ):
                spans = [getattr(shard, field) for shard in group]
                assert [span.first for span in spans] == [0, *(span.end for span in spans[:-1])]
                assert spans[-1].end == total
        assert shards[0].layers.end == shards[tensor_size].layers.first
        assert shards[-1].is_last_stage and not shards[-1].is_first_stage


def test_a_rank_has_the_kv_heads_of_its_heads() -> None:
    for sizes in (SMOLLM2, GEMMA, replace(GEMMA, num_heads=8, num_kv_heads=2)):
        heads_per_kv = sizes.num_heads // sizes.num_kv_heads
        for tensor_size in tensor_sizes(sizes):
            for shard in plan_shards(sizes, ParallelLayout(tensor_size)):
                needed = {head // heads_per_kv for head in range(*shard.heads)}
                assert needed == set(range(*shard.kv_heads))


def test_vocabulary_is_cut_between_panels() -> None:
    (*inner, last) = plan_shards(replace(GEMMA, vocab_size=1001), ParallelLayout(4))
    assert all(shard.vocab.end % 16 == 0 for shard in inner)
    assert last.vocab.end == 1001


def test_kv_groups_keep_their_numbers() -> None:
    groups = (KVGroupSpec((5, 11, 17), None), KVGroupSpec((0, 1, 2, 3, 4), 512))
    spec = KVCacheSpec(groups, 1, 256, 16, KVDtype.BF16)
    first = plan_shards(GEMMA, ParallelLayout(2, 6))[0]
    assert first.layers == Span(0, 3)
    kv = rank_kv_spec(spec, first)
    assert [group.layers for group in kv.groups] == [(), (0, 1, 2)]
    assert kv.block_bytes(0) == 0
    assert total_kv_heads(first) == 2, "each rank of the group has a copy"


@settings(max_examples=200, deadline=None)
@given(
    costs=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    num_stages=st.integers(1, 4),
    first=st.integers(0, 9),
    last=st.integers(0, 20),
)
def test_stages_are_as_even_as_can_be(
    costs: list[int], num_stages: int, first: int, last: int
) -> None:
    num_stages = min(num_stages, len(costs))

    def worst(cuts: tuple[int, ...]) -> float:
        borders = (0, *cuts, len(costs))
        stages = [sum(costs[a:b]) for a, b in itertools.pairwise(borders)]
        stages[0] += first
        stages[-1] += last
        return max(stages)

    best = min(worst(cuts) for cuts in itertools.combinations(range(1, len(costs)), num_stages - 1))
    spans = divide_layers(costs, num_stages, first_cost=first, last_cost=last)
    assert worst(tuple(span.end for span in spans[:-1])) == best
    assert [span.first for span in spans] == [0, *(span.end for span in spans[:-1])]
    assert spans[-1].end == len(costs)
    assert all(span.size > 0 for span in spans)
