"""The beam search of a transducer without durations, over the frames of one utterance."""

from torch import Tensor

from asr.components.decode.fusion.shallow_fusion import NEVER, ShallowFusion
from asr.components.decode.predictions import PrefixReader, next_log_probs
from asr.components.decode.prefixes import Prefix
from asr.components.decode.trails import BeamLimits, Beams, Paths, add, score, timed_hypotheses
from asr.interfaces import BLANK_ID, Hypothesis, Span, TransducerHead


class FrameSearch:
    """Extend all prefixes by the tokens of a frame, then by its blank: time-synchronous decoding.

    *Source*: Saon et al. 2020, "Alignment-length synchronous decoding for RNN transducer", section 2.2.

    Args:
        head: a transducer without durations.
        limits: what bounds the beams; the limits apply after each frame and after each token within it.
        fusion: shallow fusion.
    """

    def __init__(self, head: TransducerHead, limits: BeamLimits, fusion: ShallowFusion) -> None:
        self.limits = limits
        self.fusion = fusion
        self.gains, self.most = fusion.at_most(), fusion.most()
        self.head = head
        self.empty = Prefix(None, BLANK_ID, fusion.start(), 0.0)
        self.reader = PrefixReader(head, self.empty)

    def __call__(self, frames: Tensor) -> list[Hypothesis]:
        """Return the hypotheses of frames (T', J), the best first."""
        beams: Beams = {self.empty: Paths(0.0, 0.0, None)}
        for number, frame in enumerate(frames):
            beams = self._step(beams, frame, Span(number, number + 1))
            self.reader.forget_all_but(beams)
        return timed_hypotheses(self.fusion, beams)

    def _step(self, active: Beams, frame: Tensor, span: Span) -> Beams:
        """Extend beams by the tokens of a frame, then by its blank; return the beams after the frame."""
        limits = self.limits
        done: Beams = {}
        for number in range(limits.max_symbols + 1):
            log_probs, _ = next_log_probs(self.head, frame, self.reader(active))  # (N, V)
            for (prefix, paths), blank in zip(active.items(), log_probs[:, BLANK_ID].tolist(), strict=True):
                add(done, prefix, paths.passed(blank))
            if number == limits.max_symbols:
                break
            active = self._longer(active, log_probs, self._floor(done), span)
            if not active:
                break
        floor = self._floor(done)
        best = sorted(done.items(), key=lambda pair: score(*pair), reverse=True)[: limits.beam_size]
        return {prefix: paths for prefix, paths in best if score(prefix, paths) >= floor}

    def _longer(self, active: Beams, log_probs: Tensor, floor: float, span: Span) -> Beams:
        """Extend prefixes by a token; return the extensions whose scores reach the floor, the best first."""
        log_probs[:, BLANK_ID] = NEVER
        values, tokens = log_probs.topk(self.limits.tokens_per_frame, dim=-1)
        longer: list[tuple[Prefix, Paths]] = []
        rows = zip(active.items(), values.tolist(), tokens.tolist(), strict=True)
        self.fusion.read(prefix.context for prefix in active)
        for (prefix, paths), row_values, row_tokens in rows:
            before = score(prefix, paths)
            for value, token in zip(row_values, row_tokens, strict=True):
                if before + value + self.most < floor:
                    break  # the following tokens are less likely
                if before + value + self.gains[token] < floor:
                    continue
                child = prefix.extend(self.fusion, token)
                if child is not None and paths.total + value + child.fused >= floor:
                    longer.append((child, paths.wrote(value, span, value)))
        longer.sort(key=lambda pair: score(*pair), reverse=True)
        return dict(longer[: self.limits.beam_size])

    def _floor(self, done: Beams) -> float:
        """Return the minimum score to enter the beams that have completed a frame."""
        scores = sorted((score(*pair) for pair in done.items()), reverse=True)
        enough = len(scores) >= self.limits.beam_size
        return max(scores[0] - self.limits.beam_threshold, scores[self.limits.beam_size - 1] if enough else NEVER)
