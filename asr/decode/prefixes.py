"""What beam searches keep: tokens that are written, with what fusion says to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from weakref import ref

from asr.decode.fusion.shallow_fusion import Context, ShallowFusion
from asr.interfaces import Hypothesis


class Prefix:
    """Tokens that paths have written, and what fusion says to them; the same tokens are the same object.

    A prefix lives as long as the empty one does, from which all grow; cycles would keep the garbage collector busy.
    """

    __slots__ = ("__weakref__", "before", "children", "context", "fused", "token")

    def __init__(self, before: Prefix | None, token: int, context: Context, fused: float) -> None:
        self.before: Callable[[], Prefix | None] = ref(before) if before is not None else lambda: None
        self.token = token
        self.context = context
        self.fused = fused
        self.children: dict[int, Prefix | None] = {}

    def back(self) -> Iterator[Prefix]:
        """Yield this prefix and those it grew from, the empty one last."""
        prefix: Prefix | None = self
        while prefix is not None:
            yield prefix
            prefix = prefix.before()

    def tokens(self) -> list[int]:
        """The tokens in order."""
        return [prefix.token for prefix in self.back()][-2::-1]

    def uproot(self) -> None:
        """Make this the prefix that others grew from, with no tokens of its own; those before it may go."""
        self.before = lambda: None

    def extend(self, fusion: ShallowFusion, token: int) -> Prefix | None:
        """Return the prefix that is longer by a token; None: fusion allows none."""
        if token not in self.children:
            fused = fusion.extend(self.context, token)
            self.children[token] = None if fused is None else Prefix(self, token, fused[0], self.fused + fused[1])
        return self.children[token]


def finish(fusion: ShallowFusion, beams: Mapping[Prefix, float]) -> list[Hypothesis]:
    """Close the last word of each prefix; where no lexicon has any of the last words, go back to those before them.

    Args:
        fusion: that the prefixes grew by.
        beams: score of each without fusion, the best first.

    Returns:
        The best first, at least one.
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
