"""Which decoder a command means. Heads name their decoders (`interfaces.Decoders`); only these functions read them."""

from collections.abc import Callable, Iterable

from asr.interfaces import Decoders, Head


def greedy_decoder(decoders: Decoders) -> str:
    """Return the greedy decoder that a head prefers."""
    return decoders.greedy[0]


def beam_decoder(decoders: Decoders) -> str | None:
    """Return the beam search that a head prefers; None: it has none."""
    return next(iter(decoders.beam), None)


def is_greedy(decoders: Decoders, name: object) -> bool:
    """Return whether this is the name of one of a head's greedy decoders."""
    return name in decoders.greedy


def with_beam(decoders: Decoders, name: str) -> str:
    """Return the beam search over the same part of the head as a greedy decoder; another decoder stays unchanged."""
    return dict(zip(decoders.greedy, decoders.beam, strict=False)).get(name, name)


def usable(head: Head, needs_of: Callable[[str], Iterable[str]]) -> list[str]:
    """List the decoders of a head whose needs the head meets; `needs_of` returns the needs of a decoder."""
    names = (*head.decoders.greedy, *head.decoders.beam)
    return [name for name in names if all(getattr(head, need, None) is not None for need in needs_of(name))]
