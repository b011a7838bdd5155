"""All ranks of a model in this process, a thread each, driven step by step."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from model_driver import precision_of
from step_driver import StepDriver
from takt.loading.checkpoint import open_checkpoint
from takt.models.config import ModelConfig, read_model_config
from takt.models.decoder import Decoder, load_decoder
from takt.models.sharding import model_sizes
from takt.ops.create import create_ops
from takt.parallel.layout import ParallelLayout
from takt.parallel.plan import plan_shards
from takt.parallel.rank_kv import rank_kv_spec
from takt.parallel.segment import Segment, SegmentPlan
from takt.types.kv import KVCacheSpec, KVDtype, KVGroupSpec
from takt.types.step import StepInput, StepOutput


class RankGroup:
    """Stands for one `Ops` and one program towards a `StepDriver`."""

    def __init__(
        self,
        path: Path,
        layout: ParallelLayout,
        backend: str,
        dtype: str = "float32",
        *,
        all_reduce_dtype: str = "float32",
        num_threads: int = 1,
    ) -> None:
        self.layout = layout
        self.all_reduce_dtype = all_reduce_dtype
        checkpoint = open_checkpoint(path)
        self.config: ModelConfig = read_model_config(checkpoint)
        precision = precision_of(dtype)
        self.shards = plan_shards(model_sizes(checkpoint, self.config, precision), layout)
        checkpoint.close()
        self.decoders: list[Decoder] = []
        self.num_bytes_read: list[int] = []
        for shard in self.shards:
            checkpoint = open_checkpoint(path)
            header = checkpoint.num_bytes_read
            ops = create_ops(backend, num_threads, num_peers=layout.num_ranks - 1)
            decoder = load_decoder(checkpoint, self.config, ops, precision=precision, shard=shard)
            self.decoders.append(decoder)
            self.num_bytes_read.append(checkpoint.num_bytes_read - header)
            checkpoint.close()
        self.threads = ThreadPoolExecutor(layout.num_ranks)
        self.programs: list[Any] = []

    def allocate_kv(self, spec: KVCacheSpec, num_blocks: list[int]) -> None:
        for decoder, shard in zip(self.decoders, self.shards, strict=True):
            decoder.ops.allocate_kv(rank_kv_spec(spec, shard), num_blocks)

    def program(self, forward: Any, limits: Any, **options: Any) -> RankGroup:
        plan = SegmentPlan.of(
            self.layout,
            limits,
            hidden_size=self.config.hidden_size,
            shard=self.shards[0],
            num_buffers=1,
        )
        fd = Segment.create_file(plan)
        self.segment = Segment(plan, fd)
        os.close(fd)
        for rank, decoder in enumerate(self.decoders):
            decoder.ops.connect(self.segment.links(rank, 0, self.all_reduce_dtype))
            self.programs.append(decoder.ops.program(decoder.forward, limits, **options))
        self.outputs = [StepOutput(limits) for _ in self.programs]
        return self

    def run(self, step: StepInput, output: StepOutput) -> None:
        self.outputs[self.layout.sampling_rank] = output
        runs = [
            self.threads.submit(program.run, step, out)
            for program, out in zip(self.programs, self.outputs, strict=True)
        ]
        try:
            for each in runs:
                each.result(timeout=120)
        except BaseException:
            self.segment.abort()
            raise

    def drive(self, **options: Any) -> StepDriver:
        options.setdefault("kv_dtype", KVDtype.F32)
        groups: tuple[KVGroupSpec, ...] = self.config.kv_groups()
        return StepDriver(
            self,  # type: ignore[arg-type]
            lambda: None,
            groups,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            **options,
        )

    def close(self) -> None:
        self.threads.shutdown()
        for decoder in self.decoders:
            decoder.ops.close()  # type: ignore[attr-defined]
