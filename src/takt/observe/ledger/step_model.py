"""What a step should take, from the steps seen so far, or from a model that was given."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from takt.observe.ledger.linear_fit import LinearFit
from takt.observe.ledger.recent import Recent

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

MIN_DECODE_STEPS = 8
MIN_MIXED_STEPS = 12
HALF_LIFE_STEPS = 1000.0
STOLEN_SHARE = 0.02
"""Of a step's time: with less of it stolen, a step counts as undisturbed."""
LEAST_DISTURBED = 0.25
"""Of the last steps, this share is learned from however much was stolen: a machine that is never
quiet has an undisturbed step too, and it is among these."""
NUM_STOLEN = 4096
OUTLIER_RATIO = 1.5
"""Of measured to predicted time: steps beyond it are explained, and not learned from."""
RELEARN_SHARE = 0.5
"""Of a batch's steps beyond that: then it is the machine that has changed, and all are learned."""
NUM_RATIOS = 1000
MAX_BAND = 1.15
MIN_BAND = 1.02


class StepTimes(Protocol):
    """Predicts runs of the program; arrays are float64 `[num_steps]`, times in nanoseconds."""

    def predict(
        self, seqs: Floats, prefill_tokens: Floats, kv_tokens: Floats, qk_pairs: Floats
    ) -> Floats: ...


class _Kind:
    """Steps of one kind: the fit of their times, and what is usual among them."""

    def __init__(self, num_features: int, min_steps: int) -> None:
        self._fit = LinearFit(num_features, HALF_LIFE_STEPS)
        self._min_steps = min_steps
        self._stolen = Recent(NUM_STOLEN)
        self._computing = Recent(NUM_RATIOS)

    @property
    def is_known(self) -> bool:
        return self._fit.num_samples >= self._min_steps

    @property
    def computing_share(self) -> float:
        """Time that threads compute, summed, over the time of an undisturbed run; 0 if unknown."""
        return self._computing.quantile(0.5) if len(self._computing) else 0.0

    def predict(self, features: Floats) -> Floats:
        return self._fit.predict(features)

    def learn(
        self, features: Floats, run_ns: Floats, stolen_ns: Floats, computed_ns: Floats
    ) -> Floats:
        """Takes the steps that nothing disturbed; returns measured / predicted of the usual ones,
        each predicted before it was learned."""
        shares = stolen_ns / run_ns
        self._stolen.add(shares)
        chosen = shares <= max(STOLEN_SHARE, self._stolen.quantile(LEAST_DISTURBED))
        ratios = np.ones(0)
        if self.is_known and chosen.any():
            ratios = run_ns[chosen] / np.maximum(self.predict(features[chosen]), 1.0)
            is_usual = ratios <= OUTLIER_RATIO
            if is_usual.mean() >= RELEARN_SHARE:
                chosen[chosen] = is_usual
                ratios = ratios[is_usual]
            else:
                ratios = np.ones(0)
        self._fit.add(features[chosen], run_ns[chosen])
        measured = chosen & (computed_ns > 0)
        self._computing.add(computed_ns[measured] / run_ns[measured])
        return ratios


class OnlineStepTimes:
    """Two linear fits: steps that only decode wait for memory, those with prompts for arithmetic.

    `band` is by how much a step may exceed its prediction and be as it should be: the P95 of what
    steps without an interruption did, within [1.02, 1.15].
    """

    def __init__(self) -> None:
        self._decode = _Kind(3, MIN_DECODE_STEPS)
        self._mixed = _Kind(5, MIN_MIXED_STEPS)
        self._ratios = Recent(NUM_RATIOS)
        self.band = MAX_BAND

    @property
    def is_ready(self) -> bool:
        """Whether enough steps were seen to predict those that only decode."""
        return self._decode.is_known

    @property
    def knows_prompts(self) -> bool:
        """Whether enough steps with prompt tokens were seen."""
        return self._mixed.is_known

    def predict(
        self, seqs: Floats, prefill_tokens: Floats, kv_tokens: Floats, qk_pairs: Floats
    ) -> Floats:
        """Before `knows_prompts`, steps with prompts get the time of their decodes."""
        decode = self._decode.predict(_decode_features(seqs, kv_tokens))
        if not self.knows_prompts:
            return decode
        mixed = self._mixed.predict(_features(seqs, prefill_tokens, kv_tokens, qk_pairs))
        return np.where(prefill_tokens > 0, mixed, decode)

    def computing_share(self, prefill_tokens: Floats) -> Floats:
        """Time that threads compute, summed, over the time of an undisturbed run; 0 if unknown."""
        shares = self._mixed.computing_share, self._decode.computing_share
        return np.where(prefill_tokens > 0, *shares)

    def learn(
        self,
        seqs: Floats,
        prefill_tokens: Floats,
        kv_tokens: Floats,
        qk_pairs: Floats,
        run_ns: Floats,
        stolen_ns: Floats,
        computed_ns: Floats,
    ) -> None:
        """Takes steps that nothing interrupted."""
        has_run, is_mixed = run_ns > 0, prefill_tokens > 0
        for kind, chosen, features in (
            (self._decode, has_run & ~is_mixed, _decode_features(seqs, kv_tokens)),
            (self._mixed, has_run & is_mixed, _features(seqs, prefill_tokens, kv_tokens, qk_pairs)),
        ):
            if chosen.any():
                self._ratios.add(
                    kind.learn(
                        features[chosen], run_ns[chosen], stolen_ns[chosen], computed_ns[chosen]
                    )
                )
        if len(self._ratios) >= 20:
            self.band = float(np.clip(self._ratios.quantile(0.95), MIN_BAND, MAX_BAND))

    @property
    def error(self) -> float | None:
        """Mean absolute error of the last predictions, relative; None before there were any."""
        if not len(self._ratios):
            return None
        return float(np.mean(np.abs(1 - 1 / self._ratios.values)))


def _decode_features(seqs: Floats, kv_tokens: Floats) -> Floats:
    return np.stack([np.ones(len(seqs)), seqs, kv_tokens], axis=1)


def _features(seqs: Floats, prefill_tokens: Floats, kv_tokens: Floats, qk_pairs: Floats) -> Floats:
    return np.stack([np.ones(len(seqs)), seqs, prefill_tokens, kv_tokens, qk_pairs], axis=1)
