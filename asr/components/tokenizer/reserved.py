"""Names that a library of tokenizers reserves, such as <unk>, and that texts must not contain."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from asr.errors import InputError, shown

CURE = "Remove it from the texts, or use tokenizer=char, which reserves nothing"


@contextmanager
def without_reserved(texts: Iterable[str], names: Sequence[str]) -> Iterator[Iterator[str]]:
    """Yield the texts for training, and raise an error afterwards if a text contains a reserved name.

    The libraries train on such texts without an error, but never count the name's characters.

    Args:
        texts: training texts.
        names: the names that the library reserves.

    Raises:
        InputError: a text contains a reserved name; the message has the name and the first such text.
    """
    left_out: list[str] = []

    def others() -> Iterator[str]:
        for text in texts:
            if any(name in text for name in names):
                left_out.append(text)
            else:
                yield text

    try:
        yield others()
    finally:
        if left_out:
            name = next(name for name in names if name in left_out[0])
            must = f"training texts must not contain {name!r}, which the tokenizer reserves"
            given = f"{shown(left_out[0])} (texts with a reserved name: {len(left_out):,})"
            raise InputError(f"{must}; got {given}. {CURE}.") from None
