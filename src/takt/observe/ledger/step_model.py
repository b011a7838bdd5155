"""What a step should take, from the steps seen so far, or from a model that was given."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from takt.observe.ledger.linear_fit import LinearFit

Floats = npt.NDArray[np.float64]

MIN_DECODE_STEPS = 8
MIN_MIXED_STEPS = 12
HALF_LIFE_STEPS = 1000.0
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


class OnlineStepTimes:
    """Two linear fits: steps that only decode wait for memory, those with prompts for arithmetic.

    `band` is by how much a step may exceed its prediction and be as it should be: the P95 of what
    steps without an interruption did, within [1.02, 1.15].
    """

    def __init__(self) -> None:
        self._decode = LinearFit(3, HALF_LIFE_STEPS)
        self._mixed = LinearFit(5, HALF_LIFE_STEPS)
        self._ratios = np.ones(0)
        self.band = MAX_BAND

    @property
    def is_ready(self) -> bool:
        """Whether enough steps were seen to predict those that only decode."""
        return self._decode.num_samples >= MIN_DECODE_STEPS

    @property
    def knows_prompts(self) -> bool:
        """Whether enough steps with prompt tokens were seen."""
        return self._mixed.num_samples >= MIN_MIXED_STEPS

    def predict(
        self, seqs: Floats, prefill_tokens: Floats, kv_tokens: Floats, qk_pairs: Floats
    ) -> Floats:
        """Before `knows_prompts`, steps with prompts get the time of their decodes."""
        decode = self._decode.predict(_decode_features(seqs, kv_tokens))
        if not self.knows_prompts:
            return decode
        mixed = self._mixed.predict(_features(seqs, prefill_tokens, kv_tokens, qk_pairs))
        return np.where(prefill_tokens > 0, mixed, decode)

    def learn(
        self,
        seqs: Floats,
        prefill_tokens: Floats,
        kv_tokens: Floats,
        qk_pairs: Floats,
        run_ns: Floats,
        stolen_ns: Floats,
    ) -> None:
        """Takes steps that nothing interrupted."""
        undisturbed = (run_ns > 0) & (stolen_ns <= 0.02 * run_ns)
        is_mixed = prefill_tokens > 0
        predicted = self.predict(seqs, prefill_tokens, kv_tokens, qk_pairs)
        for fit, chosen, features, minimum in (
            (
                self._decode,
                undisturbed & ~is_mixed,
                _decode_features(seqs, kv_tokens),
                MIN_DECODE_STEPS,
            ),
            (
                self._mixed,
                undisturbed & is_mixed,
                _features(seqs, prefill_tokens, kv_tokens, qk_pairs),
                MIN_MIXED_STEPS,
            ),
        ):
            if not chosen.any():
                continue
            if fit.num_samples >= minimum:
                ratios = run_ns[chosen] / np.maximum(predicted[chosen], 1.0)
                is_usual = ratios <= OUTLIER_RATIO
                if is_usual.mean() >= RELEARN_SHARE:
                    chosen[np.flatnonzero(chosen)[~is_usual]] = False
                    self._note_ratios(ratios[is_usual])
            fit.add(features[chosen], run_ns[chosen])

    def _note_ratios(self, ratios: Floats) -> None:
        self._ratios = np.concatenate([self._ratios, ratios])[-NUM_RATIOS:]
        if len(self._ratios) >= 20:
            self.band = float(np.clip(np.percentile(self._ratios, 95), MIN_BAND, MAX_BAND))

    @property
    def error(self) -> float | None:
        """Mean absolute error of the last predictions, relative; None before there were any."""
        if not len(self._ratios):
            return None
        return float(np.mean(np.abs(1 - 1 / self._ratios)))


def _decode_features(seqs: Floats, kv_tokens: Floats) -> Floats:
    return np.stack([np.ones(len(seqs)), seqs, kv_tokens], axis=1)


def _features(seqs: Floats, prefill_tokens: Floats, kv_tokens: Floats, qk_pairs: Floats) -> Floats:
    return np.stack([np.ones(len(seqs)), seqs, prefill_tokens, kv_tokens, qk_pairs], axis=1)
