"""Random seeds. A seed is a hash of its purpose and is never drawn from a random generator."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive_seed(*parts: int | str) -> int:
    """Hash `parts`, in order, to a 63-bit seed that is equal on all machines."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@contextmanager
def seeded(*parts: int | str) -> Iterator[None]:
    """Seed torch's CPU generator with `parts` for the duration of a block; then restore its state.

    This makes the result of an augmentation a function of the seed, although augmentations do not accept a generator.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(*parts))
        yield
