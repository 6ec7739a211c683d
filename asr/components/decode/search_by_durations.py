"""The beam search of a transducer with durations, over the frames of one utterance."""

from torch import Tensor

from asr.components.decode.fusion.shallow_fusion import NEVER, ShallowFusion
from asr.components.decode.predictions import PrefixReader, next_log_probs
from asr.components.decode.prefixes import Prefix
from asr.components.decode.trails import BeamLimits, Beams, Paths, add, score, timed_hypotheses
from asr.interfaces import BLANK_ID, Hypothesis, Span, TransducerHead


class DurationSearch:
    """Store each prefix at the frame that its durations lead to, and visit the frames in order.

    Probabilities of paths that reach a frame with the same tokens are summed. A path ends when a blank or a token leads
    to the end of the frames or beyond it, as in greedy search. The training loss differs: it counts only paths whose
    last blank ends exactly at the end of the frames.

    *Source*: Xu et al. 2023, arXiv:2304.06795, section 3.4; the search within a frame: Saon et al. 2020,
    "Alignment-length synchronous decoding for RNN transducer", section 2.2 (time-synchronous decoding).

    Args:
        head: a transducer with durations.
        limits: what bounds the beams. The limits apply at each frame and after each token within it; a prefix is also
            pruned if the best prefix at a later frame scores higher by more than the threshold.
        fusion: shallow fusion.
    """

    def __init__(self, head: TransducerHead, limits: BeamLimits, fusion: ShallowFusion) -> None:
        self.limits = limits
        self.fusion = fusion
        self.gains = fusion.at_most()
        self.head, self.durations = head, head.durations
        self.empty = Prefix(None, BLANK_ID, fusion.start(), 0.0)
        self.reader = PrefixReader(head, self.empty)
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
        return timed_hypotheses(self.fusion, self._best_of(self.pending[self.num_frames]))

    def _visit(self, number: int, frame: Tensor) -> None:
        """Extend all prefixes at a frame by tokens and by blanks, until each has left the frame."""
        here = self.pending.pop(number)
        self.best = max((score(*pair) for beams in self.pending.values() for pair in beams.items()), default=NEVER)
        here = self._best_of(here)
        for count in range(self.limits.max_symbols + 1):
            if not here:
                break
            token_log_probs, duration_log_probs = next_log_probs(self.head, frame, self.reader(here))
            rows = duration_log_probs.tolist()
            for pair, blank, row in zip(here.items(), token_log_probs[:, BLANK_ID].tolist(), rows, strict=True):
                self._pass(number, *pair, blank, row)
            if count == self.limits.max_symbols:
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
        values, tokens = token_log_probs.topk(self.limits.tokens_per_frame, dim=1)
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
        best = sorted(beams.items(), key=lambda pair: score(*pair), reverse=True)[: self.limits.beam_size]
        floor = max(self._floor(), score(*best[0]) - self.limits.beam_threshold) if best else NEVER
        return {prefix: paths for prefix, paths in best if score(prefix, paths) >= floor}

    def _floor(self) -> float:
        """Return the minimum score of a prefix, given the prefixes at later frames."""
        return self.best - self.limits.beam_threshold
