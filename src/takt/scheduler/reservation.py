"""Room that running requests may still need, as a counter against the pool."""

from __future__ import annotations

from dataclasses import dataclass

from takt.kvcache.manager import KVCacheManager, PrefixHit
from takt.kvcache.sizing import blocks_for_tokens, peak_blocks
from takt.scheduler.limits import SchedulerLimits
from takt.scheduler.request import Request


@dataclass(slots=True)
class _Share:
    """What one running request holds of the reservation, its unforked siblings included."""

    table_blocks: int
    """Length that its tables may reach, of the groups with full attention."""
    window_blocks: list[int]
    """Per KV group; 0 for full attention."""


class KVReservation:
    """Decides whether a request fits beside those that run, and keeps count.

    Full attention: a table only grows, so the blocks that may still be needed are the lengths that
    tables may reach less the lengths they have, plus the copies that forks may make. Their sum and
    the used blocks stay within the pool, so an `append` within the reservation never fails; a
    prefix shared with a running sequence is counted once, since it is used already.
    Sliding windows: a sequence gives blocks back as it goes, so each counts with the most it ever
    holds, shared blocks too; both modes reserve that.

    With `reserves_output` a table may reach its request's last token (nobody is ever preempted);
    without, the tokens known at admission, and what decodes add later is taken as it comes.
    """

    def __init__(
        self, kv: KVCacheManager, limits: SchedulerLimits, *, reserves_output: bool
    ) -> None:
        self._kv = kv
        self._limits = limits
        self._reserves_output = reserves_output
        groups = range(len(kv.spec.groups))
        self._full = [g for g in groups if kv.spec.groups[g].window is None]
        self._windows = [g for g in groups if kv.spec.groups[g].window is not None]
        self._table_blocks = 0
        self._window_blocks = [0 for _ in groups]
        self._shares: dict[Request, _Share] = {}

    def shortage(self, request: Request) -> tuple[int, int] | None:
        """(needed, existing) blocks of a group that can never hold the request, or None."""
        need = self._need(request, request.max_computed_tokens)
        for g, pool in enumerate(self._kv.pools):
            needed = need.window_blocks[g] if g in self._windows else need.table_blocks
            if needed > pool.num_blocks:
                return needed, pool.num_blocks
        return None

    def fit(self, request: Request, *, use_prefix: bool) -> PrefixHit | None:
        """The prefix to share if the request fits now, else None."""
        need = self._need(request, self._reserved_tokens(request))
        for g in self._windows:
            if self._window_blocks[g] + need.window_blocks[g] > self._kv.pools[g].num_blocks:
                return None
        # Room for each running sequence to grow by a block: without, one that was preempted would
        # come back at once, only to be preempted again.
        headroom = 0 if self._reserves_output else len(self._shares)
        short = {g: need.table_blocks + headroom - self._num_available(g) for g in self._full}
        num_tokens = request.num_tokens if use_prefix else 0
        if max(short.values(), default=0) > num_tokens // self._kv.block_size:
            return None  # not even if all of it were shared: spares the lookup
        hit = self._kv.lookup(request.prefix, request.token_ids if use_prefix else ())
        for g in self._full:
            references = self._kv.pools[g].ref_counts
            if short[g] > sum(references[block] > 0 for block in hit.blocks[g]):
                return None
        if use_prefix and self._kv.restore(request.prefix, request.token_ids):
            hit = self._kv.lookup(request.prefix, request.token_ids)
        return hit

    def admit(self, request: Request) -> None:
        """Reserves what `fit` has just found room for."""
        self._hold(request, self._need(request, self._reserved_tokens(request)))

    def fork(self, parent: Request, children: list[Request]) -> None:
        """Divides the parent's share among all choices, once their tables are forked.

        The sum stays: siblings were reserved from the start, and the pool now counts the copies
        that sharers of a partial block may make.
        """
        blocks = blocks_for_tokens(self._reserved_tokens(parent), self._kv.block_size)
        held = self._shares[parent]
        self._release(held)
        sibling = self._window_need(parent, self._limits.max_steps_in_flight)
        own = [
            total - len(children) * other
            for total, other in zip(held.window_blocks, sibling, strict=True)
        ]
        self._hold(parent, _Share(blocks, own))
        for child in children:
            self._hold(child, _Share(blocks, sibling))

    def end_prefill(self, request: Request) -> None:
        """Gives back what only a prompt's large steps needed of the windows."""
        held = self._shares.get(request)
        if held is not None and self._windows:
            self._release(held)
            held.window_blocks = self._window_need(request, self._limits.max_steps_in_flight)
            self._hold(request, held)

    def take(self, request: Request, num_tokens: int) -> bool:
        """Without reserved output: adds to the share what an append takes, if it is there."""
        num_new = self._kv.num_new_blocks(request, num_tokens)
        if num_new == 0:
            return True
        if any(num_new > self._num_available(g) for g in self._full):
            return False
        self._table_blocks += num_new
        self._shares[request].table_blocks += num_new
        return True

    def free(self, request: Request) -> None:
        """Ends a request's share once its blocks are back in the pool."""
        self._release(self._shares.pop(request))

    @property
    def num_free_tokens(self) -> int:
        """Tokens of KV that are neither used nor reserved, of the scarcest group."""
        free = [self._num_available(g) for g in self._full]
        free += [self._kv.pools[g].num_blocks - self._window_blocks[g] for g in self._windows]
        return max(0, min(free)) * self._kv.block_size

    def unwritten_share(self, num_in_flight_tokens: int) -> float:
        """Slots that are reserved for sequences and hold nothing yet, as a share of their pool.

        Of the group where it is largest. `num_in_flight_tokens` have slots, and steps in flight are
        still to write them. A block that several sequences share counts for each of them, as
        reserved and as written.
        """
        shares = []
        for g, pool in enumerate(self._kv.pools):
            reserved = self._window_blocks[g] if g in self._windows else self._table_blocks
            num_written = max(0, self._kv.num_held_tokens(g) - num_in_flight_tokens)
            num_slots = pool.num_blocks * self._kv.block_size
            shares.append((reserved * self._kv.block_size - num_written) / num_slots)
        return min(max(0.0, *shares), 1.0)

    # -- internals ----------------------------------------------------------------------------
    def _num_available(self, group: int) -> int:
        kv = self._kv
        outstanding = self._table_blocks - kv.num_table_blocks + kv.num_shared_tails
        return kv.pools[group].num_free - outstanding

    def _reserved_tokens(self, request: Request) -> int:
        return request.max_computed_tokens if self._reserves_output else request.num_tokens

    def _need(self, request: Request, num_tokens: int) -> _Share:
        size = self._kv.block_size
        blocks = blocks_for_tokens(num_tokens, size)
        table_blocks = blocks
        windows = self._window_need(request, self._limits.max_in_flight_tokens)
        num_siblings = len(request.pending_choices)
        if num_siblings:
            prompt_blocks = blocks_for_tokens(request.num_prompt_tokens, size)
            table_blocks += num_siblings * (blocks - prompt_blocks)
            if request.num_prompt_tokens % size:
                table_blocks += num_siblings + 1  # each may copy the partial block
            sibling = self._window_need(request, self._limits.max_steps_in_flight)
            windows = [
                own + num_siblings * other for own, other in zip(windows, sibling, strict=True)
            ]
        return _Share(table_blocks, windows)

    def _window_need(self, request: Request, num_in_flight_tokens: int) -> list[int]:
        spec = self._kv.spec
        return [
            peak_blocks(spec, g, request.max_computed_tokens, num_in_flight_tokens)
            if g in self._windows
            else 0
            for g in range(len(spec.groups))
        ]

    def _hold(self, request: Request, share: _Share) -> None:
        self._shares[request] = share
        self._table_blocks += share.table_blocks
        for g in self._windows:
            self._window_blocks[g] += share.window_blocks[g]

    def _release(self, share: _Share) -> None:
        self._table_blocks -= share.table_blocks
        for g in self._windows:
            self._window_blocks[g] -= share.window_blocks[g]
