"""Perplexity per word of texts under token models, with its confidence interval."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from asr.apps.language_models.text_set import Sentences
from asr.base.language_model.kenlm import SPACE, NgramModel
from asr.base.language_model.kneser_ney import Array
from asr.base.language_model.token_scores import token_log_probs
from asr.core.data.batch_plan import BatchBounds
from asr.core.evaluation.bootstrap import intervals
from asr.core.evaluation.perplexity import of_loss, written
from asr.errors import InputError
from asr.interfaces import TokenModel


@dataclass(frozen=True)
class TextPerplexity:
    """Log-probability and perplexity of texts under a language model.

    The end of a sentence counts as a word, as in KenLM and SRILM. Perplexities per word of word models and of token
    models are comparable if they are computed on the same texts.

    Args:
        log_prob: log-probability of all sentences including their ends, natural logarithm.
        words: number of words, without sentence ends.
        sentences: number of sentences.
        tokens: number of tokens, including sentence ends.
        per_word: exp(- log_prob / (words + sentences)), or `of_loss`'s bound.
        interval: 95 % interval of per_word, from a bootstrap over sentences; None for too few sentences.
    """

    log_prob: float
    words: int
    sentences: int
    tokens: int
    per_word: float
    interval: tuple[float, float] | None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain types."""
        return asdict(self)

    def summary(self) -> str:
        """Return a summary on one line."""
        low_high = "" if self.interval is None else " (95 % interval {} to {})".format(*map(written, self.interval))
        size = f"{self.words:,} words in {self.sentences:,} sentences"
        return f"perplexity per word {written(self.per_word)}{low_high}, {size}"


def text_perplexity(log_probs: Sequence[float] | Array, num_words: Sequence[int], num_tokens: int) -> TextPerplexity:
    """Compute the perplexity from the log-probability and the number of words of each sentence.

    Args:
        log_probs: natural logarithm of p(text, end) of each sentence.
        num_words: number of words of each sentence, without its end.
        num_tokens: number of tokens of all sentences, including sentence ends.
    """
    losses = -np.asarray(log_probs, dtype=np.float64)[:, None]
    units = np.asarray(num_words, dtype=np.float64)[:, None] + 1
    [interval] = intervals(losses, units)
    return TextPerplexity(
        -float(losses.sum()),
        words=int(sum(num_words)),
        sentences=len(losses),
        tokens=num_tokens,
        per_word=of_loss(float(losses.sum() / units.sum())),
        interval=None if interval is None else (of_loss(interval[0]), of_loss(interval[1])),
    )


def measure(model: TokenModel, sentences: Sentences, bounds: BatchBounds, device: torch.device) -> TextPerplexity:
    """Compute the perplexity of sentences under a neural model; arguments as in `neural_log_probs`."""
    return perplexity_of(neural_log_probs(model, sentences, bounds, device), sentences)


def perplexity_of(log_probs: Array, sentences: Sentences) -> TextPerplexity:
    """Compute the perplexity of sentences from log p of each token and sentence end, (T,)."""
    begins = (sentences.lengths.cumsum(0) - sentences.lengths).numpy()
    return text_perplexity(np.add.reduceat(log_probs, begins), sentences.num_words.tolist(), len(log_probs))


@torch.inference_mode()
def neural_log_probs(model: TokenModel, sentences: Sentences, bounds: BatchBounds, device: torch.device) -> Array:
    """Compute log p of each token and sentence end under a neural model in eval mode, (T,), sentence by sentence."""
    rows: list[Array] = [np.zeros(0)] * len(sentences)
    for indices in sentences.batches(bounds):
        batch = sentences.batch(indices).to(device)
        log_probs = token_log_probs(model, batch.tokens, batch.token_lengths).cpu().double().numpy()
        for index, row, length in zip(indices, log_probs, batch.token_lengths.tolist(), strict=True):
            rows[index] = row[: length + 1]
    return np.concatenate(rows)


def ngram_log_probs(model: NgramModel, pieces: Sequence[str], sentences: Sentences) -> Array:
    """Compute log p of each token and sentence end under an n-gram model over tokens, (T,).

    Args:
        model: made by `asr.ngram --tokens`.
        pieces: the text of each token.
        sentences: token ids of each sentence.
    """
    names = [piece.replace(" ", SPACE) for piece in pieces]
    if len(model.words & set(names)) < len(model.words) / 2:
        must = "LM must be a model over the recogniser's tokens, from asr.ngram --tokens"
        raise InputError(f"{must}; {len(model.words & set(names))} of its {len(model.words)} entries are tokens.")
    log_probs = []
    for index in range(len(sentences)):
        state = model.start()
        for token in sentences.batch([index]).tokens[0].tolist():
            log_prob, state = model.score(state, names[token])
            log_probs.append(log_prob)
        log_probs.append(model.end(state))
    return np.array(log_probs, dtype=np.float64)


def mixed_log_probs(log_probs: Array, weights: Array) -> Array:
    """Return the log of the models' weighted mean probability of each token.

    Args:
        log_probs: (models, T) natural logarithms.
        weights: (models,) weights that sum to one.
    """
    mixed: Array = np.logaddexp.reduce(log_probs + np.log(weights)[:, None], axis=0)
    return mixed
