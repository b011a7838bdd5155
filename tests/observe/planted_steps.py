"""Steps of an engine that never was, with a cause of lateness planted wherever it is wanted."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from takt.clock import ManualClock
from takt.engine.messages import StepStats
from takt.observe.ledger.ledger import SLO, Ledger

MS = 1_000_000

SOLO_NS = 3 * MS
PER_SEQ_NS = 40_000
PER_KV_TOKEN_NS = 100
PER_PROMPT_TOKEN_NS = 90_000
HOST_NS = 200_000


@dataclass(slots=True)
class Sequence:
    name: str
    context: int
    written_ns: int = 0
    step: int = -1
    num_tokens: int = 0


@dataclass(slots=True)
class Planted:
    """What happens in one step beside its decodes; times are nanoseconds."""

    prompt_tokens: int = 0
    stolen_ns: int = 0
    stolen_host_ns: int = 0
    gc_ns: int = 0
    host_ns: int = 0
    stolen_behind_ns: int = 0
    """The engine's thread lost its CPU behind the run: the next step reports it."""
    contention_ns: int = 0
    """The run lasts longer because its threads compute for longer."""
    predicted_ns: int = 0
    mystery_ns: int = 0
    """The run lasts longer, and nothing says why."""
    preempts: int = 0
    without: frozenset[str] = frozenset()
    """Sequences that get no token in this step."""
    blocked: dict[str, int] = field(default_factory=dict)
    """Sequences whose client did not read for so long before the token was written."""
    delivery_ns: int = 0
    waited_ns: int = 0
    """Of the delivery: threads of the server had no CPU."""
    server_gc_ns: int = 0


class PlantedEngine:
    """Feeds a ledger as a server would: each token as it is written, each step as it completes."""

    def __init__(self, slo: SLO, num_seqs: int = 4, seed: int = 1) -> None:
        self.clock = ManualClock(1_000 * MS)
        self.ledger = Ledger(self.clock, slo)
        self.collections: list[tuple[int, int]] = []
        self.ledger.collections = lambda: self.collections
        self._random = random.Random(seed)
        self._waited_ns = 0
        self.ledger.waited_ns = lambda: self._waited_ns
        self._stolen_behind_ns = 0
        self._step_id = 0
        self.seqs = [Sequence(f"r{i}", 100 + 50 * i) for i in range(num_seqs)]
        self.planted: dict[tuple[str, int], str] = {}
        """(sequence, token) of each late gap that was meant -> its cause."""

    def step(self, planted: Planted | None = None, cause: str | None = None) -> None:
        """One step; `cause` names what `planted` plants."""
        p = planted or Planted()
        jitter = 1 + self._random.uniform(-0.01, 0.01)
        decoding = [seq for seq in self.seqs if seq.name not in p.without]
        context = sum(seq.context for seq in decoding)
        run_ns = SOLO_NS + PER_SEQ_NS * len(decoding) + PER_KV_TOKEN_NS * context
        run_ns += PER_PROMPT_TOKEN_NS * p.prompt_tokens
        run_ns = round(run_ns * jitter) + p.contention_ns
        computed_ns = round(1.8 * run_ns)
        run_ns += p.stolen_ns + p.mystery_ns
        self.clock.advance(HOST_NS // 2 + p.gc_ns + p.stolen_host_ns + p.host_ns)
        start = self.clock.now_ns()
        self.clock.advance(HOST_NS // 4)
        run_start = self.clock.now_ns()
        self.clock.advance(run_ns)
        run_end = self.clock.now_ns()
        self.clock.advance(HOST_NS // 4 + p.stolen_behind_ns)
        stats = StepStats(
            step_id=self._step_id,
            schedule_start_ns=start,
            run_start_ns=run_start,
            run_end_ns=run_end,
            update_end_ns=self.clock.now_ns(),
            num_decode_seqs=len(decoding),
            num_prefill_tokens=p.prompt_tokens,
            num_kv_tokens_read=context + p.prompt_tokens,
            num_qk_pairs=context + p.prompt_tokens**2 // 2,
            num_running=len(self.seqs),
            num_waiting=0,
            num_waiting_for_capacity=0,
            kv_blocks_used=1,
            kv_blocks_total=100,
            prefix_cache_queries=0,
            prefix_cache_hits=0,
            num_preempted=p.preempts,
            queue_times_ns=[],
            num_redone_tiles=0,
            num_decode_kv_tokens=context,
            stolen_run_ns=p.stolen_ns,
            stolen_host_ns=p.stolen_host_ns + self._stolen_behind_ns,
            gc_ns=p.gc_ns,
            computed_ns=computed_ns,
            predicted_ns=p.predicted_ns,
        )
        self._stolen_behind_ns = p.stolen_behind_ns
        self._waited_ns += p.waited_ns
        self.ledger.observe_step(stats)
        self._deliver(decoding, p, cause)
        self._step_id += 1

    def _deliver(self, decoding: list[Sequence], p: Planted, cause: str | None) -> None:
        sent = self.clock.now_ns()
        if p.server_gc_ns:
            self.collections.append((sent, sent + p.server_gc_ns))
        for seq in decoding:
            blocked = p.blocked.get(seq.name, 0)
            delay = 100_000 + p.delivery_ns + p.waited_ns + p.server_gc_ns + blocked
            self._write(seq, sent + delay, blocked, cause)

    def _write(self, seq: Sequence, now_ns: int, blocked_ns: int, cause: str | None) -> None:
        if seq.num_tokens:
            gap_ns, target_ns = now_ns - seq.written_ns, self.ledger.gap_target_ns
            self.ledger.gap(gap_ns, self._step_id)
            if gap_ns > target_ns:
                self.ledger.late_gap(
                    seq.name,
                    0,
                    seq.num_tokens,
                    seq.written_ns,
                    now_ns,
                    target_ns,
                    seq.step,
                    self._step_id,
                    blocked_ns,
                )
                if cause is not None:
                    self.planted[seq.name, seq.num_tokens] = cause
        seq.written_ns, seq.step = now_ns, self._step_id
        seq.num_tokens += 1
        seq.context += 1
