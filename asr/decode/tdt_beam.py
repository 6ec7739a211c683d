"""Beam search of a token-and-duration transducer, with shallow fusion."""

from collections.abc import Callable
from typing import Annotated, cast

import torch
from torch import Tensor

from asr.decode.fusion.shallow_fusion import NEVER, Bonus, ShallowFusion
from asr.decode.predictions import PrefixReader
from asr.decode.prefixes import Prefix
from asr.decode.trails import Beams, Paths, add, score, timed_hypotheses
from asr.interfaces import BLANK_ID, DurationHead, Head, Hypothesis, Span, Tokenizer, Tunable
from asr.settings.rule import whole


class TDTBeam:
    """Search for the tokens that score highest over all their paths, with language model, lexicon and hotwords.

    Prefixes wait at the frame that their durations lead to; frames are visited in order. Paths that reach a frame with
    the same tokens are summed. A path ends where a blank or a token leads to the end of the frames or beyond it, as in
    greedy search; the loss knows only paths that a blank ends there exactly.

    *Source*: Xu et al. 2023, arXiv:2304.06795, section 3.4; the search within a frame: Saon et al. 2020,
    "Alignment-length synchronous decoding for RNN transducer", section 2.2 (time-synchronous decoding).

    Args:
        head: with a joiner of tokens and durations.
        tokenizer: says what tokens spell.
        normalize: as texts are normalised that the hotwords have to fit.
        beam_size: prefixes kept at a frame, and from token to token within one.
        beam_threshold: those that score less than the best one at this frame or a later one by more than this are
            dropped (natural logarithm).
        tokens_per_frame: the most likely tokens, which are tried after a prefix, as blank always is.
        max_symbols: tokens in a frame, at most.
        fusion: makes what is added to the acoustic score, given tokenizer and normalize.

    Raises:
        InputError: a setting does not hold, or a file cannot be used.
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
        fusion: Callable[[Tokenizer, Callable[[str], str]], ShallowFusion],
    ) -> None:
        self.head = cast(DurationHead, head)
        self.beam_size = self.max_hypotheses = beam_size
        self.beam_threshold = beam_threshold
        self.tokens_per_frame = min(tokens_per_frame, tokenizer.vocab_size - 1)
        self.max_symbols = max_symbols
        self.fusion = fusion(tokenizer, normalize)
        self.hotwords = self.fusion.hotwords

    @property
    def tunable(self) -> dict[str, Tunable]:
        """Weight and word insertion bonus of the language model, if there is one."""
        return self.fusion.tunable

    @property
    def description(self) -> str:
        """The search, and what takes part in it."""
        return ", ".join([f"beam search, {self.beam_size} hypotheses", *self.fusion.description])

    def evidence(self, encoder_out: Tensor, lengths: Tensor) -> list[Tensor]:
        """What the joiner takes of each frame, (T', J), utterance by utterance."""
        rows = self.head.duration_joiner.of_frames(encoder_out)  # (B, T', J)
        return [row[:length] for row, length in zip(rows, lengths.tolist(), strict=True)]

    @torch.inference_mode()
    def search(self, evidence: list[Tensor], **values: float) -> list[list[Hypothesis]]:
        """Find at most `beam_size` hypotheses an utterance.

        Args:
            evidence: as `evidence` returns it.
            values: of what is tunable, instead of its own.
        """
        fusion = self.fusion.weighed(**values)
        return [_Search(self, fusion)(frames) for frames in evidence]


class _Search:
    """The search in one utterance's frames."""

    def __init__(self, settings: TDTBeam, fusion: ShallowFusion) -> None:
        self.settings = settings
        self.fusion = fusion
        self.gains = fusion.at_most()
        self.joiner = settings.head.duration_joiner
        self.durations = settings.head.durations
        self.empty = Prefix(None, BLANK_ID, fusion.start(), 0.0)
        self.reader = PrefixReader(settings.head.predictor, self.joiner, self.empty)
        self.num_frames = 0
        self.waiting: dict[int, Beams] = {}  # by the frame where they wait; the last is the end
        self.best = NEVER  # score of any that waits at a later frame

    def __call__(self, frames: Tensor) -> list[Hypothesis]:
        """Find the hypotheses in frames (T', J), the best first."""
        self.num_frames = len(frames)
        self.waiting = {0: {self.empty: Paths(0.0, 0.0, None)}}
        for number, frame in enumerate(frames):
            if number in self.waiting:
                self._visit(number, frame)
                self.reader.forget_all_but({prefix for beams in self.waiting.values() for prefix in beams})
        found = self._best_of(self.waiting[self.num_frames])
        return [hypothesis._replace(has_ends=True) for hypothesis in timed_hypotheses(self.fusion, found)]

    def _visit(self, number: int, frame: Tensor) -> None:
        """Have all prefixes that wait at a frame leave it, with or without tokens."""
        here = self.waiting.pop(number)
        self.best = max((score(*pair) for beams in self.waiting.values() for pair in beams.items()), default=NEVER)
        here = self._best_of(here)
        for count in range(self.settings.max_symbols + 1):
            if not here:
                break
            logits = self.joiner(frame, self.reader(here))
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            of_tokens, of_durations = logits.split([logits.shape[1] - len(self.durations), len(self.durations)], dim=1)
            of_tokens, of_durations = of_tokens.log_softmax(dim=1), of_durations.log_softmax(dim=1)
            rows = of_durations.tolist()
            for pair, blank, row in zip(here.items(), of_tokens[:, BLANK_ID].tolist(), rows, strict=True):
                self._pass(number, *pair, blank, row)
            if count == self.settings.max_symbols:
                break
            here = self._best_of(self._write(number, here, of_tokens, rows))

    def _pass(self, number: int, prefix: Prefix, paths: Paths, blank: float, of_durations: list[float]) -> None:
        """Leave a frame by a blank of each duration."""
        for duration, log_prob in zip(self.durations, of_durations, strict=True):
            if duration > 0:
                self._wait(number + duration, prefix, paths.passed(blank + log_prob))

    def _write(self, number: int, here: Beams, of_tokens: Tensor, of_durations: list[list[float]]) -> Beams:
        """Write tokens of each duration; return what stays in the frame."""
        staying: Beams = {}
        of_tokens[:, BLANK_ID] = NEVER
        values, tokens = of_tokens.topk(self.settings.tokens_per_frame, dim=1)
        self.fusion.read(prefix.context for prefix in here)
        for pair, row, *top in zip(here.items(), of_durations, values.tolist(), tokens.tolist(), strict=True):
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
                        self._wait(number + duration, child, longer)
                    elif score(child, longer) >= self._floor():
                        add(staying, child, longer)
        return staying

    def _wait(self, number: int, prefix: Prefix, paths: Paths) -> None:
        """Have a prefix wait at a frame, or at the end, unless it scores too little."""
        if score(prefix, paths) >= self._floor():
            beams = self.waiting.setdefault(min(number, self.num_frames), {})
            add(beams, prefix, paths)
            self.best = max(self.best, score(prefix, beams[prefix]))

    def _best_of(self, beams: Beams) -> Beams:
        """The prefixes of a frame that are kept, the best first."""
        best = sorted(beams.items(), key=lambda pair: score(*pair), reverse=True)[: self.settings.beam_size]
        floor = max(self._floor(), score(*best[0]) - self.settings.beam_threshold) if best else NEVER
        return {prefix: paths for prefix, paths in best if score(prefix, paths) >= floor}

    def _floor(self) -> float:
        """What a prefix must score to be kept beside those that wait at later frames."""
        return self.best - self.settings.beam_threshold
