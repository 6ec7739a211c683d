"""Paths to a prefix in the beam of a transducer: their total probability, and the times of the best one's tokens."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from asr.decode.fusion.shallow_fusion import ShallowFusion
from asr.decode.prefixes import Prefix, finish
from asr.interfaces import Hypothesis, Span


class Trail(NamedTuple):
    """The last token of a path.

    Args:
        before: of the tokens before it; None: it is the first.
        frames: that the token stands for.
        log_prob: of the token.
    """

    before: "Trail | None"
    frames: Span
    log_prob: float


class Paths(NamedTuple):
    """All paths that have written a prefix and stand in the same frame.

    Args:
        total: log-probability of all, without fusion.
        best: log-probability of the most likely one.
        trail: of that one; None: it has no tokens yet.
    """

    total: float
    best: float
    trail: Trail | None

    def passed(self, log_prob: float) -> "Paths":
        """The same tokens, longer by a blank of this log-probability."""
        return Paths(self.total + log_prob, self.best + log_prob, self.trail)

    def wrote(self, log_prob: float, frames: Span, of_token: float) -> "Paths":
        """One more token; `log_prob` is the arc's, `of_token` the token's alone."""
        return Paths(self.total + log_prob, self.best + log_prob, Trail(self.trail, frames, of_token))


Beams = dict[Prefix, Paths]


def add(beams: Beams, prefix: Prefix, paths: Paths) -> None:
    """Add paths to those that have written the same prefix."""
    there = beams.get(prefix)
    if there is None:
        beams[prefix] = paths
        return
    high, low = max(there.total, paths.total), min(there.total, paths.total)
    better = paths if paths.best > there.best else there
    beams[prefix] = Paths(high + math.log1p(math.exp(low - high)), better.best, better.trail)


def score(prefix: Prefix, paths: Paths) -> float:
    """What ranks a prefix in a beam."""
    return paths.total + prefix.fused


def timed_hypotheses(fusion: ShallowFusion, beams: Mapping[Prefix, Paths]) -> list[Hypothesis]:
    """Close the last word of each prefix, as `finish` does; give tokens the times of the best path, best first."""
    found = finish(fusion, {prefix: paths.total for prefix, paths in beams.items()})
    trails = {tuple(prefix.tokens()): paths.trail for prefix, paths in beams.items()}
    fallback = next(iter(beams.values())).trail  # of the best one, from which `finish` may take the last words
    hypotheses = []
    for hypothesis in found:
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
