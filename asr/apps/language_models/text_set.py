"""Tokenised texts, and the batches of an epoch."""

import hashlib
import logging
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from asr.apps.language_models.text_lines import text_lines
from asr.base.settings.rule import PATH, list_of, number, whole
from asr.base.text.printable import listed
from asr.core.data.batch import on_device, padded_tokens, page_locked
from asr.core.data.batch_plan import BatchBounds, BatchOrder, Plan, Speeds, plan_evaluation, plan_training
from asr.core.data.epoch_plan import EpochPlan, plan_current_part
from asr.core.data.mixture import each_once
from asr.core.data.position import Position
from asr.errors import InputError
from asr.interfaces import Tokenizer

FILES = "of files of text or manifests, such as [text.txt]"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextSettings:
    """Texts and batches of a language model's training.

    Args:
        train: training texts: files with a sentence per line, which may be compressed (.gz), or manifests.
        valid: validation texts.
        test: texts whose perplexity is reported at the end.
        batch_tokens: maximum number of tokens in a padded batch, including one end token per sentence.
        max_sentences: maximum number of sentences in a batch.
        jitter: maximum random shift of a sentence, in batches, from its position in the order of lengths.
    """

    train: Annotated[list[str], list_of(PATH, f"{FILES}, at least one", least=1)]
    valid: Annotated[list[str], list_of(PATH, f"{FILES}, at least one", least=1)]
    test: Annotated[list[str], list_of(PATH, FILES)]
    batch_tokens: Annotated[int, whole(1)]
    max_sentences: Annotated[int, whole(1)]
    jitter: Annotated[float, number(0)]

    @property
    def bounds(self) -> BatchBounds:
        """Limits of a batch, in which a token counts as a second of audio."""
        return BatchBounds(self.batch_tokens, self.max_sentences)


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Sentences padded to the longest one. Shapes: tokens (B, U), token_lengths (B,), num_words (B,)."""

    tokens: Tensor
    token_lengths: Tensor
    num_words: Tensor
    ids: tuple[str, ...]

    to = on_device
    pin_memory = page_locked
    rejected = ()  # texts are in memory, so no text is unreadable

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def sizes(self) -> Tensor:
        """Number of tokens of each sentence, including its end, (B,)."""
        return self.token_lengths + 1

    @property
    def padded_size(self) -> int:
        """Number of tokens, including ends and padding."""
        return self.tokens.shape[0] * (self.tokens.shape[1] + 1)

    @property
    def contents(self) -> dict[str, Tensor]:
        """The tensors, by name."""
        return {"tokens": self.tokens, "token_lengths": self.token_lengths}


@dataclass(frozen=True)
class Sentences:
    """Tokenised texts.

    Args:
        tokens: tokens of all texts, concatenated, (T,) int32.
        starts: start of each text in `tokens`, and the end of the last text, (N + 1,).
        num_words: number of words of each text, (N,).
        unspelled: `file:line` of lines that the tokenizer cannot encode.
        empty: number of lines without a word.
    """

    tokens: Tensor
    starts: Tensor
    num_words: Tensor
    unspelled: Sequence[str] = ()
    empty: int = 0

    def __len__(self) -> int:
        return len(self.num_words)

    @property
    def lengths(self) -> Tensor:
        """Number of tokens of each text, including its end token, (N,)."""
        return self.starts.diff() + 1

    @property
    def fingerprint(self) -> str:
        """Hash of the tokens; it does not depend on the paths of the files."""
        digest = hashlib.sha256(self.tokens.numpy().tobytes())
        digest.update(self.starts.numpy().tobytes())
        return f"{len(self)} sentences, sha256 {digest.hexdigest()[:16]}"

    def batch(self, indices: Sequence[int]) -> TextBatch:
        """Pad the texts with these indices to a batch."""
        texts = [self.tokens[self.starts[index] : self.starts[index + 1]].long() for index in indices]
        ids = tuple(f"sentence {index + 1}" for index in indices)
        return TextBatch(*padded_tokens(texts), self.num_words[list(indices)], ids)

    def batches(self, bounds: BatchBounds, rank: int = 0, world_size: int = 1) -> list[list[int]]:
        """Plan one rank's batches of an evaluation; over all ranks, each text occurs once."""
        return plan_evaluation(self.lengths.tolist(), bounds, rank=rank, world_size=world_size)

    def only(self, indices: Tensor) -> "Sentences":
        """Return the texts with these indices, in this order."""
        texts = [self.tokens[self.starts[index] : self.starts[index + 1]] for index in indices.tolist()]
        ends = torch.tensor([0, *(len(text) for text in texts)]).cumsum(0)
        tokens = torch.cat([self.tokens[:0], *texts])
        return Sentences(tokens, ends, self.num_words[indices], self.unspelled, self.empty)


def read_sentences(
    paths: Iterable[Path], normalize: Callable[[str], str], tokenizer: Tokenizer, setting: str
) -> Sentences:
    """Read texts, and normalise and tokenise them; log the lines that are left out.

    `setting` is the name of the setting that gives the paths, for messages.
    """
    tokens, ends, words, unspelled, empty = array("i"), [0], [], [], 0
    for path in paths:
        for line_number, line in text_lines(str(path), lambda read: None):
            text = normalize(line)
            if not text:
                empty += 1
                continue
            try:
                tokens.extend(tokenizer.encode(text))
            except InputError:
                unspelled.append(f"{path}:{line_number}")
                continue
            ends.append(len(tokens))
            words.append(len(text.split()))
    if unspelled:
        reason = f"lines are left out, because the tokenizer cannot encode them ({listed(unspelled)})"
        logger.warning("%s: %d of %d %s", setting, len(unspelled), len(unspelled) + len(words), reason)
    if not words:
        raise InputError(f"{setting} must have a sentence that the tokenizer can encode; got {empty} empty lines.")
    flat = torch.frombuffer(tokens, dtype=torch.int32)
    return Sentences(flat, torch.tensor(ends), torch.tensor(words), unspelled, empty)


class TextSet:
    """Sentences to train on, and the batches of each epoch.

    Args:
        sentences: all sentences; sentences with more than `batch_tokens` tokens are dropped.
        settings: bounds and order of the batches.
        seed: seed of the plans.
    """

    def __init__(self, sentences: Sentences, settings: TextSettings, seed: int) -> None:
        self._bounds, self._seed = settings.bounds, seed
        self._order = BatchOrder(settings.jitter, 0)
        fits = (sentences.lengths <= settings.batch_tokens).nonzero()[:, 0]
        self.num_dropped = len(sentences) - len(fits)
        if not len(fits):
            must = f"text.batch_tokens must be at least {int(sentences.lengths.min())}"
            raise InputError(f"{must}, the length of the shortest sentence; got {settings.batch_tokens}.")
        self.sentences = sentences.only(fits) if self.num_dropped else sentences
        self._lengths = self.sentences.lengths.double()

    def __len__(self) -> int:
        return len(self.sentences)

    def epoch(self, position: Position) -> EpochPlan:
        """Plan the part of an epoch that contains `position`; the plan begins with the first batch of that part."""

        def plan_part(left: Tensor | slice, world_size: int, part: int) -> Plan:
            lengths, epoch = self._lengths[left], position.epoch
            return plan_training(
                lengths, self._bounds, self._order, seed=self._seed, epoch=epoch, world_size=world_size, part=part
            )

        plan = plan_current_part(len(self), position, plan_part)
        lengths, speeds = self._lengths, Speeds.normal(len(self))
        return EpochPlan(position.epoch, plan, each_once(len(self)), lengths, speeds, kept_speed=0)
