"""Paths to a prefix in a transducer's beam: their total probability, and the token times of the best path."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from asr.components.decode.fusion.shallow_fusion import ShallowFusion
from asr.components.decode.prefixes import Prefix, finish
from asr.interfaces import Hypothesis, Span


class Trail(NamedTuple):
    """The last token of a path, linked to the tokens before it.

    Args:
        before: link to the preceding token; None for the first.
        frames: span of the token.
        log_prob: log-probability of the token.
    """

    before: "Trail | None"
    frames: Span
    log_prob: float


class Paths(NamedTuple):
    """All paths that have emitted a prefix and are at the same frame.

    Args:
        total: log-probability of all paths together, without fusion.
        best: log-probability of the most likely path.
        trail: tokens of the most likely path; None: no tokens yet.
    """

    total: float
    best: float
    trail: Trail | None

    def passed(self, log_prob: float) -> "Paths":
        """Return the paths extended by a blank of this log-probability."""
        return Paths(self.total + log_prob, self.best + log_prob, self.trail)

    def wrote(self, log_prob: float, frames: Span, token_log_prob: float) -> "Paths":
        """Return the paths extended by a token; `log_prob` includes its duration, `token_log_prob` does not."""
        return Paths(self.total + log_prob, self.best + log_prob, Trail(self.trail, frames, token_log_prob))


Beams = dict[Prefix, Paths]


class BeamLimits(NamedTuple):
    """What bounds the beams of a search.

    Args:
        beam_size: maximum number of prefixes.
        beam_threshold: prefixes are pruned if the best prefix scores higher by more than this (natural logarithm).
        tokens_per_frame: number of most likely tokens that extend a prefix, not counting the blank.
        max_symbols: maximum number of tokens in a frame.
    """

    beam_size: int
    beam_threshold: float
    tokens_per_frame: int
    max_symbols: int


def add(beams: Beams, prefix: Prefix, paths: Paths) -> None:
    """Add paths to a beam; if the beam has paths to the same prefix, sum the probabilities."""
    present = beams.get(prefix)
    if present is None:
        beams[prefix] = paths
        return
    high, low = max(present.total, paths.total), min(present.total, paths.total)
    better = paths if paths.best > present.best else present
    beams[prefix] = Paths(high + math.log1p(math.exp(low - high)), better.best, better.trail)


def score(prefix: Prefix, paths: Paths) -> float:
    """Return the score of a prefix in a beam, with fusion."""
    return paths.total + prefix.fused


def timed_hypotheses(fusion: ShallowFusion, beams: Mapping[Prefix, Paths]) -> list[Hypothesis]:
    """End prefixes with `finish`; return hypotheses, best first, with token times and confidences of the best path."""
    hypotheses = []
    trails = {tuple(prefix.tokens()): paths.trail for prefix, paths in beams.items()}
    fallback = next(
        iter(beams.values())
    ).trail  # for a hypothesis that `finish` has shortened: the trail of the best prefix
    for hypothesis in finish(fusion, {prefix: paths.total for prefix, paths in beams.items()}):
        steps = _unrolled(trails.get(tuple(hypothesis.tokens), fallback))[: len(hypothesis.tokens)]
        confidences = [min(1.0, math.exp(step.log_prob)) for step in steps]
        hypotheses.append(hypothesis._replace(frames=[step.frames for step in steps], confidences=confidences))
    return hypotheses


def _unrolled(trail: Trail | None) -> list[Trail]:
    steps = []
    while trail is not None:
        steps.append(trail)
        trail = trail.before
    return steps[::-1]
