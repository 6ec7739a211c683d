"""Beam search of a token-and-duration transducer, with shallow fusion."""

from collections.abc import Callable
from typing import Annotated, cast

import torch
from torch import Tensor

from asr.decode.fusion.shallow_fusion import NEVER, Bonus, FusionMaker, ShallowFusion
from asr.decode.predictions import PrefixReader
from asr.decode.prefixes import Prefix
from asr.decode.trails import Beams, Paths, add, score, timed_hypotheses
from asr.interfaces import BLANK_ID, DurationHead, Encoded, Head, Hypothesis, Span, Tokenizer
from asr.settings.rule import whole


class TDTBeam:
    """Search for the tokens with the highest total score of all their paths, language model, lexicon and hotwords.

    Each prefix is stored at the frame that its durations lead to; frames are visited in order. Probabilities of paths
    that reach a frame with the same tokens are summed. A path ends when a blank or a token leads to the end of the
    frames or beyond it, as in greedy search. The training loss differs: it counts only paths whose last blank ends
    exactly at the end of the frames.

    *Source*: Xu et al. 2023, arXiv:2304.06795, section 3.4; the search within a frame: Saon et al. 2020,
    "Alignment-length synchronous decoding for RNN transducer", section 2.2 (time-synchronous decoding).

    Args:
        head: a head with a joiner of tokens and durations.
        tokenizer: its pieces spell the words of language model, lexicon and hotwords.
        normalize: the text normaliser, applied to hotwords.
        beam_size: maximum number of prefixes at a frame; the limit also applies after each token within the frame.
        beam_threshold: a prefix is pruned if the best prefix at its frame or at a later one scores higher by more than
            this (natural logarithm).
        tokens_per_frame: number of most likely tokens that extend a prefix, not counting the blank.
        max_symbols: maximum number of tokens in a frame.
        fusion: makes the shallow fusion, given tokenizer and normalize.

    Raises:
        InputError: a setting is invalid, or a file cannot be used.
    """

    streaming = None
    needs = ("duration_joiner",)
    max_seconds = None

    def __init__(
        self,
        head: Head,
        tokenizer: Tokenizer,
        normalize: Callable[[str], str],
        *,
        beam_size: Annotated[int, whole(1, 10_000)],
        beam_threshold: Bonus,
        tokens_per_frame: Annotated[int, whole(1, 10_000)],
        max_symbols: Annotated[int, whole(1, 1_000)],
        fusion: FusionMaker,
    ) -> None:
        self.head = cast(DurationHead, head)
        self.beam_size = self.max_hypotheses = beam_size
        self.beam_threshold = beam_threshold
        self.tokens_per_frame = min(tokens_per_frame, tokenizer.vocab_size - 1)
        self.max_symbols = max_symbols
        self.fusion = fusion(tokenizer, normalize)
        self.hotwords, self.tunable = self.fusion.hotwords, self.fusion.tunable
        self.description = self.fusion.describe(f"beam search, {beam_size} hypotheses")

    def evidence(self, encoded: Encoded) -> list[Tensor]:
        """Return the joiner's input from the frames of each utterance, (T', J)."""
        rows = self.head.duration_joiner.of_frames(encoded.out)  # (B, T', J)
        return [row[:length] for row, length in zip(rows, encoded.frame_counts, strict=True)]

    @torch.inference_mode()
    def search(self, evidence: list[Tensor], **values: float) -> list[list[Hypothesis]]:
        """Find at most `beam_size` hypotheses per utterance."""
        fusion = self.fusion.weighed(**values)
        return [_Search(self, fusion)(frames) for frames in evidence]


class _Search:
    """Search over the frames of one utterance."""

    def __init__(self, settings: TDTBeam, fusion: ShallowFusion) -> None:
        self.settings = settings
        self.fusion = fusion
        self.gains = fusion.at_most()
        self.joiner = settings.head.duration_joiner
        self.durations = settings.head.durations
        self.empty = Prefix(None, BLANK_ID, fusion.start(), 0.0)
        self.reader = PrefixReader(settings.head.predictor, self.joiner, self.empty)
        self.num_frames = 0
        self.pending: dict[int, Beams] = {}  # beams by the next frame of their paths; `num_frames` means the end
        self.best = NEVER  # best score of the prefixes at later frames

    def __call__(self, frames: Tensor) -> list[Hypothesis]:
        """Return the hypotheses of frames (T', J), the best first."""
        self.num_frames = len(frames)
        self.pending = {0: {self.empty: Paths(0.0, 0.0, None)}}
        for number, frame in enumerate(frames):
            if number in self.pending:
                self._visit(number, frame)
                self.reader.forget_all_but({prefix for beams in self.pending.values() for prefix in beams})
        ended = self._best_of(self.pending[self.num_frames])
        return [hypothesis._replace(has_ends=True) for hypothesis in timed_hypotheses(self.fusion, ended)]

    def _visit(self, number: int, frame: Tensor) -> None:
        """Extend all prefixes at a frame by tokens and by blanks, until each has left the frame."""
        here = self.pending.pop(number)
        self.best = max((score(*pair) for beams in self.pending.values() for pair in beams.items()), default=NEVER)
        here = self._best_of(here)
        for count in range(self.settings.max_symbols + 1):
            if not here:
                break
            logits = self.joiner(frame, self.reader(here))
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            parts = [logits.shape[1] - len(self.durations), len(self.durations)]
            token_logits, duration_logits = logits.split(parts, dim=1)
            token_log_probs, rows = token_logits.log_softmax(dim=1), duration_logits.log_softmax(dim=1).tolist()
            for pair, blank, row in zip(here.items(), token_log_probs[:, BLANK_ID].tolist(), rows, strict=True):
                self._pass(number, *pair, blank, row)
            if count == self.settings.max_symbols:
                break
            here = self._best_of(self._write(number, here, token_log_probs, rows))

    def _pass(self, number: int, prefix: Prefix, paths: Paths, blank: float, duration_log_probs: list[float]) -> None:
        """Extend paths at a frame by a blank of each duration, so that they leave the frame."""
        for duration, log_prob in zip(self.durations, duration_log_probs, strict=True):
            if duration > 0:
                self._store(number + duration, prefix, paths.passed(blank + log_prob))

    def _write(self, number: int, here: Beams, token_log_probs: Tensor, duration_log_probs: list[list[float]]) -> Beams:
        """Extend prefixes by tokens of each duration; return the extensions of duration 0, which stay in the frame."""
        staying: Beams = {}
        token_log_probs[:, BLANK_ID] = NEVER
        values, tokens = token_log_probs.topk(self.settings.tokens_per_frame, dim=1)
        self.fusion.read(prefix.context for prefix in here)
        for pair, row, *top in zip(here.items(), duration_log_probs, values.tolist(), tokens.tolist(), strict=True):
            (prefix, paths), longest = pair, max(row)
            for value, token in zip(*top, strict=True):
                if score(prefix, paths) + value + longest + self.gains[token] < self._floor():
                    continue
                child = prefix.extend(self.fusion, token)
                if child is None:
                    continue
                for duration, log_prob in zip(self.durations, row, strict=True):
                    frames = Span(number, min(number + max(duration, 1), self.num_frames))
                    longer = paths.wrote(value + log_prob, frames, value)
                    if duration > 0:
                        self._store(number + duration, child, longer)
                    elif score(child, longer) >= self._floor():
                        add(staying, child, longer)
        return staying

    def _store(self, number: int, prefix: Prefix, paths: Paths) -> None:
        """Store a prefix at a frame, or at the end of the frames, unless its score is below the floor."""
        if score(prefix, paths) >= self._floor():
            beams = self.pending.setdefault(min(number, self.num_frames), {})
            add(beams, prefix, paths)
            self.best = max(self.best, score(prefix, beams[prefix]))

    def _best_of(self, beams: Beams) -> Beams:
        """Prune the prefixes of a frame; return the remaining ones, best prefix first."""
        best = sorted(beams.items(), key=lambda pair: score(*pair), reverse=True)[: self.settings.beam_size]
        floor = max(self._floor(), score(*best[0]) - self.settings.beam_threshold) if best else NEVER
        return {prefix: paths for prefix, paths in best if score(prefix, paths) >= floor}

    def _floor(self) -> float:
        """Return the minimum score of a prefix, given the prefixes at later frames."""
        return self.best - self.settings.beam_threshold
