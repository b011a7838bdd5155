"""A model whose next token is a hash of all that a step may read, so that any mix-up shows.

Its KV cache holds token ids. A row's hash covers the whole context as the block tables give it, the
generator's key, the history and the biases; `expected_tokens` computes the same from lists alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from takt.engine.build import LoadedModel
from takt.engine.executor import Executor, InlineExecutor
from takt.engine.sizing import EngineSizes, KVShape
from takt.types.kv import KVGroupSpec
from takt.types.sampling_params import SamplingParams
from takt.types.step import SAMPLE, StepInput, StepLimits, StepOutput

VOCAB_SIZE = 5000
EOS_TOKEN_ID = 7
MAX_MODEL_LEN = 256
WINDOW = 24
MASK = 2**64 - 1

BeforeStep = Callable[[StepInput], None]


def mix(value: int) -> int:
    """The finaliser of splitmix64."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


POSITION_FACTORS = np.array([mix(p) | 1 for p in range(MAX_MODEL_LEN + 1)], dtype=np.uint64)


def context_hash(tokens: np.ndarray, first_position: int) -> int:
    """Of tokens at `first_position` and following; int `[n]`, all known."""
    factors = POSITION_FACTORS[first_position : first_position + len(tokens)]
    return int(((tokens.astype(np.uint64) + np.uint64(1)) * factors).sum(dtype=np.uint64))


def choose(
    hashes: Sequence[int],
    key: tuple[int, int, int] | None,
    history: dict[int, int],
    forbidden: set[int],
    favoured: dict[int, float],
) -> int:
    """The token that follows; `key` is None for greedy."""
    value = 0
    for h in hashes:
        value = mix(value ^ h)
    for part in key or ():
        value = mix(value ^ part)
    for token, count in sorted(history.items()):
        value = mix(value ^ (token * 1000 + count))
    for token, bias in sorted(favoured.items()):
        value = mix(value ^ (token * 1000 + int(bias * 10)))
    token = value % VOCAB_SIZE
    while token in forbidden:
        token = (token + 1) % VOCAB_SIZE
    return token


def expected_tokens(
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    choice: int = 0,
    window: int | None = None,
    max_tokens: int | None = None,
) -> list[int]:
    """What the engine must return for one choice, from first principles."""
    limit = params.max_tokens if max_tokens is None else max_tokens
    assert limit is not None
    tokens, output = list(prompt), list[int]()
    stops = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS_TOKEN_ID})
    while len(output) < limit:
        hashes = [context_hash(np.array(tokens), 0)]
        if window is not None:
            first = max(0, len(tokens) - window)
            hashes.append(context_hash(np.array(tokens[first:]), first))
        key = None if params.is_greedy else (params.seed or 0, choice, len(tokens))
        history: dict[int, int] = {}
        if params.has_penalties:
            history = {token: output.count(token) for token in tokens}
        early = len(output) < params.min_tokens
        favoured = {t: b for t, b in params.logit_bias.items() if not (early and t in stops)}
        token = choose(hashes, key, history, stops if early else set(), favoured)
        tokens.append(token)
        output.append(token)
        if token in stops:
            break
    return output


def logprob_of(token: int) -> float:
    """Of a token, wherever it stands: enough to see whose entry it is."""
    return -1.0 - token / 8192


class FakeProgram:
    """Runs a step on a KV cache of token ids, poisoned where nothing was written."""

    def __init__(self, sizes: EngineSizes, before_step: BeforeStep | None = None) -> None:
        self._block_size = sizes.kv.block_size
        self._windows = [group.window for group in sizes.kv.groups]
        self._kv = [
            np.full(n * self._block_size, -1, dtype=np.int64) for n in sizes.num_blocks_in_memory
        ]
        self._before_step = before_step

    def run(self, step: StepInput, output: StepOutput) -> None:
        if self._before_step is not None:
            self._before_step(step)
        size, n = self._block_size, step.num_tokens
        for group, source, target in step["block_copies"][: step.num_block_copies].tolist():
            pool = self._kv[group]
            pool[target * size : (target + 1) * size] = pool[source * size : (source + 1) * size]
        assert step["token_ids"][:n].min() >= 0
        for group, pool in enumerate(self._kv):
            pool[step["slot_mapping"][group, :n]] = step["token_ids"][:n]
        starts = step["query_start"][: step.num_seqs + 1]
        assert starts[-1] == n
        self._check_padding(step)
        for row in range(step.num_rows):
            token = int(step["row_tokens"][row])
            seq = int(np.searchsorted(starts, token, side="right")) - 1
            position = int(step["positions"][token])
            last = int(step["seq_lens"][seq]) - 1
            assert position == last - (int(starts[seq + 1]) - 1 - token)
            self._run_row(step, output, row, seq, position)
        output["header"][0] = step["header"][0]
        output["header"][3] = step.num_rows

    def _check_padding(self, step: StepInput) -> None:
        """Past its last block, the table of each sequence of the step is -1."""
        for seq in range(step.num_seqs):
            num_blocks = -(-int(step["seq_lens"][seq]) // self._block_size)
            assert (step["block_tables"][:, seq, num_blocks:] == -1).all()

    def _run_row(
        self, step: StepInput, output: StepOutput, row: int, seq: int, position: int
    ) -> None:
        target = int(step["row_targets"][row])
        if target == SAMPLE:
            token = self._sample(step, row, seq, position)
            assert int(step["row_position"][row]) == position + 1
        else:
            token = target
        output["token_ids"][row] = token
        num_top = int(step["row_num_logprobs"][row])
        if num_top >= 0:
            output["logprobs"][row] = logprob_of(token)
            output["ranks"][row] = token % 9 + 1
            top = (token + np.arange(num_top)) % VOCAB_SIZE
            output["top_token_ids"][row, :num_top] = top
            output["top_logprobs"][row, :num_top] = -np.arange(num_top)

    def _sample(self, step: StepInput, row: int, seq: int, position: int) -> int:
        hashes = []
        for group, window in enumerate(self._windows):
            first = 0 if window is None else max(0, position + 1 - window)
            positions = np.arange(first, position + 1)
            blocks = step["block_tables"][group, seq, positions // self._block_size]
            assert blocks.min() >= 0
            slots = blocks.astype(np.int64) * self._block_size + positions % self._block_size
            tokens = self._kv[group][slots]
            assert tokens.min() >= 0, "a slot was read before it was written"
            hashes.append(context_hash(tokens, first))
        greedy = float(step["row_temperature"][row]) == 0.0
        key = (
            int(step["row_seed"][row]),
            int(step["row_choice"][row]),
            int(step["row_position"][row]),
        )
        span = slice(*step["history_start"][row : row + 2].tolist())
        history = dict(
            zip(
                step["history_token"][span].tolist(),
                step["history_count"][span].tolist(),
                strict=True,
            )
        )
        span = slice(*step["bias_start"][row : row + 2].tolist())
        biases = dict(
            zip(step["bias_token"][span].tolist(), step["bias_value"][span].tolist(), strict=True)
        )
        forbidden = {t for t, b in biases.items() if b == -np.inf}
        favoured = {t: b for t, b in biases.items() if b != -np.inf}
        return choose(hashes, None if greedy else key, history, forbidden, favoured)


class FakeTokenizer:
    """Every token is ` w` and its number; the texts it encodes are such words."""

    vocab_size = VOCAB_SIZE
    bos_token_id = None
    adds_bos = False
    eos_token_id = EOS_TOKEN_ID
    eos_token_ids = frozenset({EOS_TOKEN_ID})
    special_token_ids = frozenset({EOS_TOKEN_ID})
    chat_template: str | None = None

    def encode(self, text: str, *, parse_special: bool, add_bos: bool) -> list[int]:
        return [int(word.removeprefix("w")) for word in text.split()]

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == EOS_TOKEN_ID else f" w{token_id}".encode()

    def token_text(self, token_id: int) -> str:
        return "<end>" if token_id == EOS_TOKEN_ID else f" w{token_id}"

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return "".join(self.token_bytes(token_id).decode() for token_id in token_ids)

    def special_tokens(self) -> Mapping[str, int]:
        return {"<end>": EOS_TOKEN_ID}


class LazyExecutor:
    """Runs nothing before it must, so that steps really are ahead of their results."""

    runs_native = True

    def __init__(self, program: FakeProgram, max_num_rows: int, max_steps_in_flight: int) -> None:
        self.max_steps_in_flight = max_steps_in_flight
        self.most_in_flight = 0
        self._program = program
        self._max_num_rows = max_num_rows
        self._queue: list[tuple[StepInput, StepOutput]] = []
        self._sampled: dict[int, list[int]] = {}

    def step_memory(self, limits: StepLimits, index: int) -> tuple[StepInput, StepOutput]:
        return StepInput(limits), StepOutput(limits)

    def submit(self, step: StepInput, output: StepOutput) -> None:
        self._queue.append((step, output))
        self.most_in_flight = max(self.most_in_flight, len(self._queue))
        assert len(self._queue) <= self.max_steps_in_flight

    def wait(self) -> None:
        step, output = self._queue.pop(0)
        step_id = int(step["header"][0])
        tokens = step["token_ids"][: step.num_tokens]
        for index in np.flatnonzero(tokens < 0):
            steps_back, row = divmod(-1 - int(tokens[index]), self._max_num_rows)
            tokens[index] = self._sampled[step_id - steps_back - 1][row]
        self._program.run(step, output)
        self._sampled[step_id] = output["token_ids"][: step.num_rows].tolist()


def fake_model(
    *,
    window: int | None = None,
    max_steps_in_flight: int = 1,
    before_step: BeforeStep | None = None,
    on_executor: Callable[[Executor], None] | None = None,
    native: bool = True,
) -> LoadedModel:
    """Two layers of full attention, and with `window` two that slide.

    `native`: steps are written and read as those of native programs are.
    """
    groups = [KVGroupSpec((0, 1), None)]
    if window is not None:
        groups.append(KVGroupSpec((2, 3), window))

    def make_executor(sizes: EngineSizes) -> Executor:
        program = FakeProgram(sizes, before_step)
        inline = InlineExecutor(program)
        inline.runs_native = native
        executor: Executor = inline
        if max_steps_in_flight > 1:
            executor = LazyExecutor(program, sizes.limits.max_num_rows, max_steps_in_flight)
        if on_executor is not None:
            on_executor(executor)
        return executor

    return LoadedModel(
        kv_shape=KVShape(groups=groups, num_kv_heads=1, head_dim=2, max_model_len=MAX_MODEL_LEN),
        vocab_size=VOCAB_SIZE,
        eos_token_ids=FakeTokenizer.eos_token_ids,
        precision="fake",
        weight_bytes=0,
        num_threads=1,
        max_steps_in_flight=max_steps_in_flight,
        make_executor=make_executor,
        close=lambda: None,
    )
