"""Prefixes of beam searches: token sequences with their fusion scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from weakref import ref

from asr.components.decode.fusion.shallow_fusion import Context, ShallowFusion
from asr.interfaces import Hypothesis


class Prefix:
    """A sequence of tokens with its fusion score and context; equal sequences are the same object.

    A prefix refers to its parent weakly, because cycles would burden the garbage collector. It exists as long as the
    root of its tree.
    """

    __slots__ = ("__weakref__", "before", "children", "context", "fused", "token")

    def __init__(self, before: Prefix | None, token: int, context: Context, fused: float) -> None:
        self.before: Callable[[], Prefix | None] = ref(before) if before is not None else lambda: None
        self.token = token
        self.context = context
        self.fused = fused
        self.children: dict[int, Prefix | None] = {}

    def back(self) -> Iterator[Prefix]:
        """Yield this prefix and its ancestors, the empty prefix last."""
        prefix: Prefix | None = self
        while prefix is not None:
            yield prefix
            prefix = prefix.before()

    def tokens(self) -> list[int]:
        """Return the tokens in order."""
        return [prefix.token for prefix in self.back()][-2::-1]

    def uproot(self) -> None:
        """Make this prefix the root: its tokens no longer belong to any prefix, and its ancestors may be freed."""
        self.before = lambda: None

    def extend(self, fusion: ShallowFusion, token: int) -> Prefix | None:
        """Return the prefix extended by a token; None if fusion excludes it."""
        if token not in self.children:
            fused = fusion.extend(self.context, token)
            self.children[token] = None if fused is None else Prefix(self, token, fused[0], self.fused + fused[1])
        return self.children[token]


def finish(fusion: ShallowFusion, beams: Mapping[Prefix, float]) -> list[Hypothesis]:
    """End the last word of each prefix.

    If the lexicon has none of these words, the best prefix is shortened until it can end.

    Args:
        fusion: the fusion that scored the prefixes.
        beams: score of each prefix without fusion, best prefix first.

    Returns:
        At least one hypothesis, best first.
    """
    fusion.read(prefix.context for prefix in beams)
    closed: list[tuple[float, Prefix]] = []
    for prefix, score in beams.items():
        gain = fusion.finish(prefix.context)
        if gain is not None:
            closed.append((score + prefix.fused + gain, prefix))
    if not closed:
        prefix, score = next(iter(beams.items()))
        ends = ((shorter, fusion.finish(shorter.context)) for shorter in prefix.back())
        closed = [next((score + end.fused + gain, end) for end, gain in ends if gain is not None)]
    closed.sort(key=lambda pair: pair[0], reverse=True)
    return [Hypothesis(prefix.tokens(), score) for score, prefix in closed]
