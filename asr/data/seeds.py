"""Randomness as a function: a seed is derived from what it is for, never drawn from a stream."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive_seed(*parts: int | str) -> int:
    """Mix `parts`, in their order, into a 63-bit seed: the same parts give the same seed on every machine."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@contextmanager
def seeded(*parts: int | str) -> Iterator[None]:
    """Run a block under torch's CPU generator seeded by `parts`, and leave the generator as it was.

    Augmentations take no generator, so this is the way to make them a function of their seed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(*parts))
        yield
