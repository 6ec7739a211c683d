"""Which decoder a command means. Heads name their decoders (`interfaces.Decoders`); only these functions read them."""

from asr.interfaces import Decoders


def greedy_decoder(decoders: Decoders) -> str:
    """Return the greedy decoder that a head prefers."""
    return decoders.greedy[0]


def beam_decoder(decoders: Decoders) -> str:
    """Return the beam search that a head prefers."""
    return decoders.beam[0]


def is_greedy(decoders: Decoders, name: object) -> bool:
    """Return whether this is the name of one of a head's greedy decoders."""
    return name in decoders.greedy


def with_beam(decoders: Decoders, name: str) -> str:
    """Return the beam search over the same part of the head as a greedy decoder; another decoder stays unchanged."""
    return decoders.beam[decoders.greedy.index(name)] if is_greedy(decoders, name) else name
