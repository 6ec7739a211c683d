"""N-gram language models as KenLM reads them: ARPA text, or KenLM's own binaries."""

import math
import mmap
import os
import struct
import sys
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asr.errors import InputError, how_to_install, one_line
from asr.language_model.arpa import ARPA_HEAD, read_words

BINARY_HEAD = b"mmap lm http://kheafield.com/code"
CONTENTS = struct.Struct("<100x?7xQ")  # of a binary's head: whether it holds its words, and how many 1-grams
UNKNOWN = "<unk>"
NOT_WORDS = (UNKNOWN, "<s>", "</s>")
LN_10 = math.log(10)
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # of a token, in a model over tokens: entries have no spaces


class NgramModel:
    """An n-gram language model, asked by KenLM (in flashlight-text's wheel, which needs no compiler).

    *Source*: Heafield 2011, "KenLM: Faster and Smaller Language Model Queries".

    Args:
        path: ARPA, or a KenLM binary that holds its words (as build_binary writes it).

    Raises:
        InputError: flashlight-text is not installed, or the file is not a language model.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            from flashlight.lib.text.decoder.kenlm import KenLM
            from flashlight.lib.text.dictionary import Dictionary
        except ImportError as error:
            must = "language models need the package flashlight-text"
            raise InputError(f"{must}; {error}. {how_to_install('lm')}") from None
        words = vocabulary(path)
        self._ids = {word: number for number, word in enumerate(words)}
        if UNKNOWN not in self._ids:
            raise InputError(f"{path}: a language model must have an entry {UNKNOWN}; this one has none.")
        self._unknown_id = self._ids[UNKNOWN]
        try:
            with without_progress():
                self._model = KenLM(str(path), Dictionary(words))
        except (RuntimeError, ValueError) as error:
            raise InputError(f"{path}: must be a whole language model; KenLM says: {_reason(error)}") from None

    @property
    def words(self) -> Set[str]:
        """The words it knows."""
        return self._ids.keys() - set(NOT_WORDS)

    def __deepcopy__(self, memo: dict[int, Any]) -> "NgramModel":
        """Copies of a recogniser, a moving average of it say, share the model: nothing changes it."""
        return self

    def start(self) -> Any:
        """Begin a text, in the context <s>: anew for each, since contexts keep those that were reached from them."""
        return self._model.start(False)

    def score(self, state: Any, word: str) -> tuple[float, Any]:
        """Ask for log p(word | context), natural logarithm, and the context behind the word."""
        state, log10_prob = self._model.score(state, self._ids.get(word, self._unknown_id))
        return log10_prob * LN_10, state

    def end(self, state: Any) -> float:
        """Ask for log p(</s> | context)."""
        _, log10_prob = self._model.finish(state)
        return log10_prob * LN_10


def vocabulary(path: str | Path) -> list[str]:
    """Check a language model before KenLM reads it, and list its entries, <unk>, <s> and </s> included.

    Raises:
        InputError: it cannot be read, or is neither ARPA, whole and as its head says, nor a KenLM binary with its words
            in it.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(len(BINARY_HEAD))
            file.seek(0)
            if head == BINARY_HEAD:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    return _binary_words(content)
            if ARPA_HEAD in head:
                return read_words(file)
    except (OSError, ValueError, struct.error) as error:
        raise InputError(f"{path}: must be a language model that can be read; {_reason(error)}.") from None
    raise InputError(f"{path}: must be a language model, ARPA (not compressed) or a KenLM binary; it begins otherwise.")


def _binary_words(content: mmap.mmap) -> list[str]:
    """The words stand at the end, each closed by a null byte, <unk> first; others may end so, too."""
    has_words, number = CONTENTS.unpack_from(content)
    begin = len(content)
    while has_words and content[begin:].count(b"\0") < number:
        begin = content.rfind(b"<unk>\0", 0, begin)
        if begin < 0:
            raise ValueError("it ends before its words")
    if not has_words:
        raise ValueError("its words are not in it: build it without -v, or give the ARPA")
    return [word.decode() for word in content[begin:].split(b"\0") if word]


@contextmanager
def without_progress() -> Iterator[None]:
    """KenLM draws a bar on the process's standard error, whoever asks it."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(str(error).rpartition(" threw ")[2])
