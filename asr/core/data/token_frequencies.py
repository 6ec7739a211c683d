"""The loss of a model that knows only how frequent each token is, which a recogniser must fall below to be of use."""

import math
from collections import Counter
from collections.abc import Callable

from asr.core.data.utterances import Utterances

MAX_TEXTS = 10_000  # evenly spaced


def frequency_loss(utterances: Utterances, encode: Callable[[str], list[int]]) -> float:
    """Return the entropy of the tokens of up to `MAX_TEXTS` texts, in nats per token; 0 without tokens.

    Args:
        utterances: the training set, with normalised texts.
        encode: converts a text to tokens.
    """
    counts = Counter(token for text in utterances.sample(MAX_TEXTS).texts for token in encode(text))
    total = counts.total()
    return -math.fsum(count / total * math.log(count / total) for count in counts.values())
