"""Perplexity per word of texts, and how sure it is."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from asr.data.batch_plan import BatchBounds
from asr.data.text_set import Sentences
from asr.errors import InputError
from asr.evaluation.bootstrap import intervals
from asr.interfaces import TokenModel
from asr.language_model.kenlm import SPACE, NgramModel
from asr.language_model.token_scores import text_log_probs


@dataclass(frozen=True)
class TextPerplexity:
    """What a language model gives texts.

    The end of a sentence counts as a word, as KenLM and SRILM count. Perplexities per word can be compared between
    models over words and over any tokens, if all spell the same texts.

    Args:
        log_prob: of all sentences and their ends, natural logarithm.
        words: without the ends.
        sentences: how many.
        tokens: with the ends.
        per_word: exp(- log_prob / (words + sentences)).
        interval: of per_word, 95 %, by a bootstrap over sentences; None where there are too few.
    """

    log_prob: float
    words: int
    sentences: int
    tokens: int
    per_word: float
    interval: tuple[float, float] | None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain types."""
        return asdict(self)

    def summary(self) -> str:
        """Say it in a line."""
        low_high = "" if self.interval is None else " (95 % interval {:.1f} to {:.1f})".format(*self.interval)
        size = f"{self.words:,} words in {self.sentences:,} sentences"
        return f"perplexity per word {self.per_word:.1f}{low_high}, {size}"


def text_perplexity(log_probs: Sequence[float], num_words: Sequence[int], num_tokens: int) -> TextPerplexity:
    """Compute it from log p(text, end) and the number of words of each sentence.

    Args:
        log_probs: natural logarithms.
        num_words: of each sentence, its end not counted.
        num_tokens: of all, ends counted.
    """
    losses = -np.asarray(log_probs, dtype=np.float64)[:, None]
    units = np.asarray(num_words, dtype=np.float64)[:, None] + 1
    [interval] = intervals(losses, units)
    return TextPerplexity(
        -float(losses.sum()),
        int(sum(num_words)),
        len(losses),
        num_tokens,
        math.exp(float(losses.sum() / units.sum())),
        None if interval is None else (math.exp(interval[0]), math.exp(interval[1])),
    )


@torch.inference_mode()
def measure(model: TokenModel, sentences: Sentences, bounds: BatchBounds, device: torch.device) -> TextPerplexity:
    """Compute the perplexity that a neural model gives sentences.

    Args:
        model: on the device, not in training mode.
        sentences: over its tokens.
        bounds: of a batch.
        device: to compute on.
    """
    log_probs = torch.zeros(len(sentences), dtype=torch.float64)
    for indices in sentences.batches(bounds):
        batch = sentences.batch(indices).to(device)
        log_probs[indices] = text_log_probs(model, batch.tokens, batch.token_lengths).cpu().double()
    return text_perplexity(log_probs.tolist(), sentences.num_words.tolist(), int(sentences.lengths.sum()))


def measure_ngram(model: NgramModel, pieces: Sequence[str], sentences: Sentences) -> TextPerplexity:
    """Compute the perplexity that an n-gram model over tokens gives sentences.

    Args:
        model: made by `asr.ngram --tokens`.
        pieces: what each token spells.
        sentences: over these tokens.

    Raises:
        InputError: the model is over words, or other tokens.
    """
    names = [piece.replace(" ", SPACE) for piece in pieces]
    if len(model.words & set(names)) < len(model.words) / 2:
        must = "LM must be over the recogniser's tokens, as asr.ngram --tokens makes it"
        raise InputError(f"{must}; of its {len(model.words)} entries {len(model.words & set(names))} are tokens.")
    log_probs = []
    for index in range(len(sentences)):
        state, total = model.start(), 0.0
        for token in sentences.batch([index]).tokens[0].tolist():
            log_prob, state = model.score(state, names[token])
            total += log_prob
        log_probs.append(total + model.end(state))
    return text_perplexity(log_probs, sentences.num_words.tolist(), int(sentences.lengths.sum()))
