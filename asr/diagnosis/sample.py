"""Which utterances of a corpus are examined: all that are files of this machine, of other splits a sample."""

from collections.abc import Callable

import numpy as np

from asr.data.corpus import Corpus
from asr.data.seeds import derive_seed
from asr.data.utterances import Utterances
from asr.diagnosis.finding import Fact
from asr.storage.location import is_url
from asr.text.numbers import counted


def sampled(corpus: Corpus, most: int | None, seed: int) -> tuple[Corpus, list[Fact]]:
    """Choose the utterances to examine, and say how many were chosen of how many.

    Splits in shards or at URLs are sampled: one utterance at random of each of `most` equal stretches of rows, so
    that the sample is spread evenly over the shards. The same seed gives the same sample.

    Args:
        corpus: whole.
        most: utterances of a split in shards or at URLs, at most; None: all.
        seed: of the run.
    """
    facts: list[Fact] = []

    def choose(name: str, utterances: Utterances) -> Utterances:
        if most is None or len(utterances) <= most or not _is_far(utterances):
            return utterances
        chosen = utterances.select(_spread(len(utterances), most, derive_seed(seed, "doctor", name)))
        facts.append((f"{name}, sampled", _described(chosen, utterances, most, seed)))
        return chosen

    return _each(corpus, choose), facts


def _each(corpus: Corpus, change: Callable[[str, Utterances], Utterances]) -> Corpus:
    tests, also_tests = (
        {name: change(name, utterances) for name, utterances in given.items()}
        for given in (corpus.tests, corpus.also_tests)
    )
    return Corpus(change("train", corpus.train), change("valid", corpus.valid), tests, also_tests)


def _is_far(utterances: Utterances) -> bool:
    """Tell whether some of the audio is in shards or at URLs, where each utterance is a request."""
    return any(part.index.shards or is_url(part.folder) for part in utterances.parts)


def _spread(number: int, most: int, seed: int) -> np.ndarray:
    """Draw a position of each of `most` equal stretches of `number` positions, (most,) int64, ascending."""
    edges = np.arange(most + 1) * number // most
    return np.random.default_rng(seed).integers(edges[:-1], edges[1:])


def _described(chosen: Utterances, utterances: Utterances, most: int, seed: int) -> str:
    of_all = f"{len(chosen):,} of {counted(len(utterances), 'utterance')}, {utterances.hours:.2f} h"
    shards = sum(len(part.index.shards) for part in utterances.parts)
    touched = len({utterance.audio_filepath for utterance in chosen if utterance.extent is not None})
    where = f", from {touched:,} of {counted(shards, 'shard')}" if shards else ""
    unseen = "audio, texts and speakers of the others were not looked at"
    return f"{of_all}{where} (doctor.max_utterances={most}, seed={seed}); {unseen}"
