"""Choice of the utterances to examine: all of a local split, and a sample of a split in shards or at URLs."""

from collections.abc import Callable

import numpy as np

from asr.data.corpus import Corpus
from asr.data.seeds import derive_seed
from asr.data.utterances import Utterances
from asr.diagnosis.finding import Fact
from asr.storage.location import is_url
from asr.text.numbers import counted


def sampled(corpus: Corpus, max_utterances: int | None, seed: int) -> tuple[Corpus, list[Fact]]:
    """Choose the utterances to examine, and describe how many were chosen.

    Splits in shards or at URLs are sampled: their rows are divided into `max_utterances` equal ranges, and one
    utterance of each range is drawn. This spreads the sample evenly over the shards. Equal seeds give equal samples.

    Args:
        corpus: the whole corpus.
        max_utterances: maximum number of utterances to choose from a split in shards or at URLs; None: all utterances.
        seed: the run's seed.
    """
    facts: list[Fact] = []

    def choose(name: str, utterances: Utterances) -> Utterances:
        if max_utterances is None or len(utterances) <= max_utterances or not _is_far(utterances):
            return utterances
        chosen = utterances.select(_spread(len(utterances), max_utterances, derive_seed(seed, "doctor", name)))
        facts.append((f"{name}, sampled", _described(chosen, utterances, max_utterances, seed)))
        return chosen

    return _each(corpus, choose), facts


def _each(corpus: Corpus, change: Callable[[str, Utterances], Utterances]) -> Corpus:
    tests, also_tests = (
        {name: change(name, utterances) for name, utterances in given.items()}
        for given in (corpus.tests, corpus.also_tests)
    )
    return Corpus(change("train", corpus.train), change("valid", corpus.valid), tests, also_tests)


def _is_far(utterances: Utterances) -> bool:
    """Return whether some audio is in shards or at URLs, where reading an utterance costs a request."""
    return any(part.index.shards or is_url(part.folder) for part in utterances.parts)


def _spread(number: int, max_utterances: int, seed: int) -> np.ndarray:
    """Draw one position from each of `max_utterances` equal ranges of `number` positions; return int64, ascending."""
    edges = np.arange(max_utterances + 1) * number // max_utterances
    return np.random.default_rng(seed).integers(edges[:-1], edges[1:])


def _described(chosen: Utterances, utterances: Utterances, max_utterances: int, seed: int) -> str:
    of_all = f"{len(chosen):,} of {counted(len(utterances), 'utterance')}, {utterances.hours:.2f} h"
    shards = sum(len(part.index.shards) for part in utterances.parts)
    touched = len({utterance.audio_filepath for utterance in chosen if utterance.extent is not None})
    where = f", from {touched:,} of {counted(shards, 'shard')}" if shards else ""
    unseen = "audio, texts and speakers of the other utterances were not examined"
    return f"{of_all}{where} (doctor.max_utterances={max_utterances}, seed={seed}); {unseen}"
