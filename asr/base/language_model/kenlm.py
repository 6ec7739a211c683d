"""N-gram language models read by KenLM: ARPA files and KenLM binaries."""

import math
import mmap
import struct
from collections.abc import Set
from pathlib import Path
from typing import Any

from asr.base.language_model.arpa import HEAD_BYTES, MAX_ORDER, TOO_LONG, UNKNOWN, is_arpa, read_words
from asr.errors import InputError, how_to_install, one_line

BINARY_HEAD = b"mmap lm http://kheafield.com/code"
CONTENTS = struct.Struct("<88xB11x?7xQ")  # a binary's header: order, whether it contains the words, number of 1-grams
NOT_WORDS = (UNKNOWN, "<s>", "</s>")
LN_10 = math.log(10)
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # replaces the space in the entries of a model over tokens


class NgramModel:
    """An n-gram language model, queried through KenLM.

    *Source*: Heafield 2011, "KenLM: Faster and Smaller Language Model Queries".

    Args:
        path: an ARPA file, or a KenLM binary that contains its words (build_binary's default).

    Attributes:
        words: the words of the model, without <unk>, <s> and </s>.

    Raises:
        InputError: KenLM is not installed, or the file is not a language model.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            import kenlm
        except ImportError as error:
            must = "language models need the package camel-kenlm"
            raise InputError(f"{must}; {error}. {how_to_install('lm')}") from None
        self.words: Set[str] = frozenset(vocabulary(path)).difference(NOT_WORDS)
        options = kenlm.Config()
        options.show_progress, options.arpa_complain = False, kenlm.ARPALoadComplain.NONE
        try:
            self._model = kenlm.Model(str(path), options)
        except (OSError, RuntimeError, ValueError) as error:
            raise InputError(f"{path}: must be an intact language model; KenLM reports: {_reason(error)}") from None
        self._new_state = kenlm.State

    def __deepcopy__(self, memo: dict[int, Any]) -> "NgramModel":
        """Share the immutable model between copies of a recogniser, such as its moving average."""
        return self

    def start(self) -> Any:
        """Return the state with the context <s>."""
        state = self._new_state()
        self._model.BeginSentenceWrite(state)
        return state

    def score(self, state: Any, word: str) -> tuple[float, Any]:
        """Return log p(word | context), natural logarithm, and the next state."""
        following = self._new_state()
        log10_prob = self._model.BaseScore(state, word, following)
        return log10_prob * LN_10, following

    def end(self, state: Any) -> float:
        """Return log p(</s> | context), natural logarithm."""
        return self.score(state, "</s>")[0]


def vocabulary(path: str | Path) -> list[str]:
    """Validate a language model before KenLM reads it, and list its entries, including <unk>, <s> and </s>.

    Raises:
        InputError: the file is unreadable, or neither an ARPA file that matches its header nor a KenLM binary that
            contains its words.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
            file.seek(0)
            if head.startswith(BINARY_HEAD):
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    return _binary_words(content)
            if is_arpa(head):
                return read_words(file)
    except (OSError, ValueError, struct.error) as error:
        raise InputError(f"{path}: must be a readable language model; {_reason(error)}.") from None
    must = f"{path}: must be a KenLM binary or an uncompressed ARPA file, which begins with \\data\\ or comments (#)"
    raise InputError(f"{must}; it begins like neither. Remove other text from its beginning.")


def _binary_words(content: mmap.mmap) -> list[str]:
    """List the null-terminated words at the end of a binary, beginning with <unk>; other words may end in "<unk>"."""
    order, has_words, number = CONTENTS.unpack_from(content)
    if order > MAX_ORDER:
        raise ValueError(f"it has n-grams of order {order}; {TOO_LONG}")
    begin = len(content)
    while has_words and content[begin:].count(b"\0") < number:
        begin = content.rfind(b"<unk>\0", 0, begin)
        if begin < 0:
            raise ValueError("it is truncated: the words at its end are incomplete")
    if not has_words:
        raise ValueError("it must contain its words; build it without -v, or give the ARPA file")
    return [word.decode() for word in content[begin:].split(b"\0") if word]


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(str(error).rpartition(" threw ")[2].removesuffix(")"))
