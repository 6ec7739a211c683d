"""Who speaks: espeak's voices that are clear enough to be recognised, and the split that each belongs to."""

import random
from collections.abc import Sequence

# espeak has few women; in train each of them speaks twice where a man speaks once.
_WOMEN = ("f2", "f3", "linda", "belinda", "Annie", "Andrea", "grandma", "steph")

# Variants that differ in little but their name stand in the same split (linda and belinda, the five of Hugo's kind).
# Left out: whispers, robots, echoes, formant synthesis (klatt), and what is far from all others in mel cepstra.
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
    """The voices of a split, each an accent and a variant, in the order in which they take turns."""
    several = [
        f"{accent}+{variant}"
        for variant in VARIANTS[split]
        for accent in accents
        for _ in range(2 if variant in _WOMEN else 1)
    ]
    return random.Random(seed).sample(several, len(several))
