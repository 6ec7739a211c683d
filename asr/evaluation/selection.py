"""Which of many trials of a search to keep, and what it will do to the errors of speech that nobody tuned on.

Values with the fewest errors on a small dev set fit its noise. So the choice prefers a weaker language model within one
standard error of the best, as Breiman et al. 1984, "Classification and Regression Trees", section 3.4.3, prefer the
smaller tree; and its gain is measured by cross-validation: on utterances that the same choice was made without.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asr.evaluation.bootstrap import FEWEST, MIDDLE, resample

Array = NDArray[np.float64]

FOLDS = 10
ROUNDS = 20  # of cross-validation, each with other folds
SEED = 0


@dataclass(frozen=True, slots=True)
class Trials:
    """The errors of each trial in each utterance.

    Args:
        words: (T, N) word errors; the first trial is the search as it is without tuning.
        characters: (T, N) character errors, which decide between trials with as many word errors.
        strength: (T,) weight of the language model; 0 where it takes no part.
    """

    words: Array
    characters: Array
    strength: Array

    def of(self, utterances: NDArray[np.bool_]) -> Trials:
        """The same trials on some utterances only, (N,)."""
        return Trials(self.words[:, utterances], self.characters[:, utterances], self.strength)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Errors on held-out utterances, beside those of the first trial.

    Args:
        before: word errors of the first trial.
        after: word errors of the values that were chosen without the utterance, mean over the rounds.
        interval: of 95 %, of after / before - 1; None where there are too few utterances, or no errors before.
    """

    before: float
    after: float
    interval: tuple[float, float] | None

    @property
    def is_certain(self) -> bool:
        """Whether there is less than one chance in forty that unseen speech has no fewer errors."""
        return self.interval is not None and self.interval[1] < 0


def fewest_errors(trials: Trials) -> int:
    """The trial with the fewest errors."""
    return int(np.lexsort((trials.characters.sum(axis=1), trials.words.sum(axis=1)))[0])


def choose(trials: Trials) -> int:
    """The trial with the weakest language model, of those within one standard error of the fewest errors.

    The standard error is that of the difference to the best trial, utterance by utterance.
    """
    difference = trials.words - trials.words[fewest_errors(trials)]  # (T, N)
    count = difference.shape[1]
    error = np.sqrt(count) * difference.std(axis=1, ddof=1) if count > 1 else np.zeros(len(difference))
    near = np.flatnonzero(difference.sum(axis=1) <= error)
    keys = (trials.characters[near].sum(axis=1), trials.words[near].sum(axis=1), trials.strength[near])
    return int(near[np.lexsort(keys)[0]])


def expected_gain(trials: Trials) -> HeldOut:
    """Cross-validate `choose`: what it does to the errors of utterances that it did not see.

    The interval is a bootstrap over utterances. It does not know how the choice itself varies, that utterances of one
    speaker are alike, or that the speech to come may be of another kind than the dev set: in simulations it held the
    true gain 85 % of the time (tests/test_selection.py).
    """
    count = trials.words.shape[1]
    held_out = np.zeros(count)
    generator = np.random.default_rng(SEED)
    for _ in range(ROUNDS):
        fold = generator.permutation(count) % FOLDS
        for number in range(min(FOLDS, count)):
            mine = fold == number
            held_out[mine] += trials.words[choose(trials.of(~mine)), mine] / ROUNDS
    before = trials.words[0]
    return HeldOut(float(before.sum()), float(held_out.sum()), _interval(held_out, before))


def _interval(after: Array, before: Array) -> tuple[float, float] | None:
    if len(before) < FEWEST or not before.any():
        return None
    drawn = resample(np.stack([after - before, before], axis=1))
    drawn = drawn[drawn[:, 1] > 0]
    low, high = np.percentile(drawn[:, 0] / drawn[:, 1], MIDDLE)
    return float(low), float(high)
