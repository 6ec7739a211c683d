"""Speakers: espeak's voices that are clear enough to be recognised, each assigned to a split."""

import random
from collections.abc import Sequence

# espeak has few female voices; in train, each female voice is used twice as often as a male voice.
_WOMEN = ("f2", "f3", "linda", "belinda", "Annie", "Andrea", "grandma", "steph")

# Similar variants are in the same split (linda and belinda; the five similar to Hugo). Whispers, robots, echoes,
# formant synthesis (klatt), and variants whose mel cepstra are far from those of all other variants are excluded.
VARIANTS: dict[str, tuple[str, ...]] = {
    "train": (
        *_WOMEN,
        *("m1", "m2", "m5", "m7", "robert", "Mike", "paul", "grandpa", "pablo", "rob", "Nguyen", "john", "ed", "Storm"),
        *("iven3", "iven4", "Diogo", "Hugo", "michel", "miguel", "Henrique", "sandro", "Mario", "Michael", "Denis"),
    ),
    "valid": ("aunty", "f1", "m6", "max", "Alex"),
    "test": ("f4", "f5", "m3", "m4", "m8", "Gene", "victor"),
}


def cast(split: str, accents: Sequence[str], seed: str) -> list[str]:
    """Return the voices of a split, each an accent and a variant, in the order in which they speak."""
    voices = [
        f"{accent}+{variant}"
        for variant in VARIANTS[split]
        for accent in accents
        for _ in range(2 if variant in _WOMEN else 1)
    ]
    return random.Random(seed).sample(voices, len(voices))
