"""The number of tokens of each text of a corpus, and the number of encoder frames that the tokens need."""

import logging
import math
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asr.base.system.parallel import num_cores
from asr.base.system.processes import start_method
from asr.base.system.progress import ProgressLog
from asr.base.text.numbers import counted
from asr.base.text.printable import listed, printable
from asr.core.data.dataset import Reference
from asr.core.data.index_cache import IndexCache, spread
from asr.core.data.labels import LANGUAGE
from asr.core.data.tokenizer_extension import spells
from asr.core.data.utterances import Utterances
from asr.errors import InputError

MAX_TEXTS = 10_000  # of `frequency_loss`, evenly spaced
CHUNK = 10_000  # number of texts that a process encodes per task
MIN_PARALLEL = 5 * CHUNK  # with fewer texts, starting processes takes longer than encoding
CURE = "add text with these characters to corpus.train"  # advice if the tokenizer is fitted to the training texts
CURE_OF_TRAIN = "append them to the tokenizer of the model in init.from (init.extend_tokenizer=texts)"

logger = logging.getLogger(__name__)

# Arguments of `_encode`. Forked processes inherit them, because they cannot be pickled.
_work: tuple[Utterances, Reference, str]


class TokenCounts(NamedTuple):
    """Two counts for each utterance, (N,) int32 each.

    Args:
        num_tokens: number of tokens of the text.
        min_frames: number of encoder frames that the head needs for these tokens.
    """

    num_tokens: Tensor
    min_frames: Tensor


def count_tokens(utterances: Utterances, reference: Reference, split: str = "train") -> TokenCounts:
    """Encode all texts and count their tokens; many texts are encoded in parallel.

    Args:
        utterances: utterances with normalised texts.
        reference: converts a text to tokens.
        split: name of the utterances, for errors.
    """
    with _all_missing(utterances, reference, split):
        return _split(_encoded(utterances, reference, split))


def stored_counts(utterances: Utterances, reference: Reference, cache: IndexCache, components: str) -> TokenCounts:
    """Return the result of `count_tokens` for the training split, and store it in `cache` for later calls.

    `components`, part of the cache's key, identifies the tokenizer, its fitted files, the normaliser and the head.
    """
    if utterances.source is None:
        return count_tokens(utterances, reference)
    some = utterances.select(np.array(spread(len(utterances)), dtype=np.int64))
    with _all_missing(utterances, reference, "train"):
        probes = _encoded(some, reference, "train").tolist()
        key = repr(("token counts", utterances.source, components, probes))
        return _split(cache.numbers(key, lambda: _encoded(utterances, reference, "train")))


def _split(counts: np.ndarray) -> TokenCounts:
    num_tokens, min_frames = torch.from_numpy(counts)
    return TokenCounts(num_tokens, min_frames)


def _encoded(utterances: Utterances, reference: Reference, split: str) -> np.ndarray:
    """Return, for each text, the number of tokens and the number of frames that the tokens need, (2, N) int32."""
    global _work
    _work = utterances, reference, split
    starts = range(0, len(utterances), CHUNK)
    progress = ProgressLog(logger, f"counted the tokens of %s of {len(utterances):,} texts")
    chunks = []
    for number, chunk in enumerate(_chunks(starts, len(utterances)), start=1):
        if isinstance(chunk, str):
            raise InputError(chunk)
        chunks.append(chunk)
        progress.update(min(number * CHUNK, len(utterances)))
    return np.concatenate(chunks, axis=1) if chunks else np.zeros((2, 0), dtype=np.int32)


def _chunks(starts: Sequence[int], number: int) -> Iterator[np.ndarray | str]:
    processes = min(num_cores(), len(starts))
    if number < MIN_PARALLEL or processes < 2:
        yield from map(_encode, starts)
        return
    with multiprocessing.get_context(start_method(processes)).Pool(processes) as pool:
        yield from pool.imap(_encode, starts)


def _encode(start: int) -> np.ndarray | str:
    """Return the numbers of tokens and of needed frames for a chunk of texts, (2, n) int32, or an error message."""
    utterances, reference, split = _work
    chunk = utterances.select(np.arange(start, min(start + CHUNK, len(utterances))))
    languages = chunk.label(LANGUAGE) if reference.reads_language else repeat(None)
    num_tokens: list[int] = []
    needed: list[int] = []
    try:
        for text, language in zip(chunk.texts, languages, strict=False):
            tokens = reference.tokens(text, language)
            num_tokens.append(len(tokens))
            needed.append(reference.min_frames(tokens))
    except InputError as error:
        return f"{split}: {error} (id {utterances[start + len(num_tokens)].id!r})."
    return np.array([num_tokens, needed], dtype=np.int32)


@contextmanager
def _all_missing(utterances: Utterances, reference: Reference, split: str) -> Iterator[None]:
    """Replace an error about one text by an error with all missing characters and the number of affected utterances."""
    try:
        yield
    except InputError:
        missing = {character for character in set().union(*utterances.texts) if not spells(reference.encode, character)}
        texts = zip(utterances.ids, utterances.texts, strict=True)
        ids = [name for name, text in texts if not missing.isdisjoint(text)]
        if not ids:  # every character can be encoded on its own
            raise
        number = f"{len(ids):,} of {counted(len(utterances), 'utterance')}"
        must = f"{split}: the tokenizer must cover every character; {number} have characters without a token"
        characters = f"{', '.join(map(repr, sorted(missing)))} ({printable(listed(ids))})"
        cure = f"Correct the texts, remove the utterances, or {CURE_OF_TRAIN if split == 'train' else CURE}"
        raise InputError(f"{must}: {characters}. {cure}.") from None


def frequency_loss(utterances: Utterances, encode: Callable[[str], list[int]]) -> float:
    """Return the loss of a model that knows only how frequent each token is, in nats per token; 0 without tokens.

    It is the entropy of the tokens of up to `MAX_TEXTS` texts; a recogniser must fall below it to be of use.

    Args:
        utterances: the training set, with normalised texts.
        encode: converts a text to tokens.
    """
    counts = Counter(token for text in utterances.sample(MAX_TEXTS).texts for token in encode(text))
    total = counts.total()
    return -math.fsum(count / total * math.log(count / total) for count in counts.values())
