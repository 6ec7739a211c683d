"""python -m asr.ngram TEXT... -o lm.arpa: build an n-gram language model, with modified Kneser-Ney smoothing."""

import argparse
import tempfile
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from asr.cli.command import complain, progress_bar, run_command
from asr.cli.table import lay_out
from asr.data.text_lines import text_lines
from asr.errors import InputError, shown
from asr.language_model.arpa import LONGEST_WORD
from asr.system.files import check_output, message_stream, write_whole
from asr.text.normalize import BY_WORDS, NORMALIZERS, Normalizer, get_normalizer

if TYPE_CHECKING:
    from asr.language_model.kneser_ney import Array, NGrams

ORDER = 3
ORDERS = (2, 6)  # shortest and longest that KenLM reads
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
MIN_MEMORY = 1 << 20
_NAMED = 5  # unspellable lines that are named; the others are only counted

Speller = Callable[[str], list[str]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the model; the status is 0 also where lines that cannot be spelled were left out."""
    options = _parser().parse_args(arguments)
    thresholds = check_options(options)
    began = time.monotonic()
    text = Text(_speller(options))
    with progress_bar() as progress:
        for path in options.texts:
            size = 0 if path == "-" or not Path(path).is_file() else Path(path).stat().st_size
            task = progress.add_task(f"reading {path}, kB", total=size // 1000 or None)
            text.read(path, lambda read, task=task: progress.update(task, completed=read // 1000))  # type: ignore[misc]
        if not text.sentences:
            raise InputError(f"the text must have words; {', '.join(options.texts)}: {text.left_out() or 'no line'}.")
        from asr.language_model.kneser_ney import estimate, write_arpa

        words, ids = text.finish()
        counting = progress.add_task("counting", total=len(ids))
        with _on_disk("the temporary folder (see TMPDIR) must have room for the counts"):
            model = estimate(
                ids,
                len(words),
                options.order,
                thresholds=thresholds,
                unknown_words=options.spelling is not None,
                memory=options.memory,
                advance=lambda number: progress.advance(counting, number),
            )
        writing = progress.add_task("writing", total=sum(int(grams.kept.sum()) for grams in model))
        write(options.output, lambda file: write_arpa(model, words, file, lambda n: progress.advance(writing, n)))
    if options.spelling is not None:
        write_spelling(options.spelling, words, ids)
    written = f"{options.output.stat().st_size / 1e6:.1f} MB in " if options.output.is_file() else ""
    took = f"{options.output}: {written}{time.monotonic() - began:.1f} s"
    unknown = f", and {options.spelling}: how unknown words are spelled" if options.spelling else ""
    lines = [report(text, len(words), model, thresholds), f"{took}{unknown}"]
    print("\n".join(lines), file=message_stream(options.output))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m asr.ngram",
        description="Build an n-gram language model, with modified Kneser-Ney smoothing, as an ARPA file.",
    )
    parser.add_argument(
        "texts",
        metavar="TEXT",
        nargs="+",
        help="a sentence a line, UTF-8; also .gz; a manifest (.jsonl), for its texts; -: standard input",
    )
    parser.add_argument("-o", "--output", metavar="ARPA", type=Path, required=True, help="an older one is replaced")
    parser.add_argument("--order", type=int, default=ORDER, metavar="N", help=f"longest n-grams (default {ORDER})")
    prune = "n-grams of order 1, 2, … that occur N times or less are left out; the last N is for all longer ones, too"
    parser.add_argument("--prune", type=int, nargs="+", default=[0], metavar="N", help=f"{prune} (default 0)")
    spelling = parser.add_mutually_exclusive_group()
    normalizer = f"what hypotheses look like: {', '.join(NORMALIZERS)} (default basic)"
    spelling.add_argument("--normalizer", default="basic", metavar="NAME", help=normalizer)
    spelling.add_argument("--tokens", metavar="MODEL", help="not of words: of the tokens of this model, as it spells")
    unknown = "write here how words are spelled that the text does not hold; <unk> then stands for all of them"
    parser.add_argument("--spelling", metavar="ARPA", type=Path, help=unknown)
    memory = "that counting takes (default 1G); the distinct n-grams come on top"
    parser.add_argument("--memory", default="1G", metavar="SIZE", help=memory)
    return parser


def check_options(options: argparse.Namespace) -> list[int]:
    """Check what can be checked before the work; make `memory` bytes and return the thresholds of all orders."""
    order, prune = options.order, options.prune
    if not ORDERS[0] <= order <= ORDERS[1]:
        raise InputError(f"--order must be between {ORDERS[0]} and {ORDERS[1]}, as KenLM reads; got {order}.")
    if prune[0] != 0 or prune != sorted(prune) or len(prune) > order:
        must = f"--prune must be 0 (all words are kept), then not decrease, and be {order} numbers at most"
        raise InputError(f"{must}; got {' '.join(map(str, prune))}.")
    options.memory = parse_size(options.memory)
    check_output("--output", options.output, "lm.arpa", inputs=options.texts)
    if options.spelling is not None:
        check_output("--spelling", options.spelling, "spelling.arpa", inputs=options.texts)
        if options.spelling.resolve() == options.output.resolve():
            raise InputError(f"--spelling must be another file than --output; both are {options.output}.")
        if options.tokens is not None:
            raise InputError("--spelling must go with a model of words; --tokens spells all words. Leave one out.")
    return [*prune, *[prune[-1]] * (order - len(prune))]


def parse_size(text: str) -> int:
    """Read a number of bytes: 512M is 512 * 2**20."""
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].upper() in UNITS else (text, "")
    if not number.isdecimal() or (size := int(number) * UNITS.get(unit, 1)) < MIN_MEMORY:
        raise InputError(f"--memory must be a number of bytes, at least 1M, with K, M or G if any; got {text!r}.")
    return size


class Text:
    """The text, read and counted; its words are ids on the disk.

    Args:
        spell: a line to the words, or tokens, of the model; raises InputError where it cannot, or a word is too long.
    """

    def __init__(self, spell: Speller) -> None:
        from asr.language_model.kneser_ney import BOS, EOS, SPECIAL

        self.sentences = self.words = self.empty = self.unspellable = 0
        self._spell = spell
        self._ids: defaultdict[str, int] = defaultdict(count(len(SPECIAL)).__next__)
        self._around = array("i", [EOS, BOS])
        self._file = tempfile.TemporaryFile(prefix="asr-ngram-")  # noqa: SIM115  nameless: never left behind

    def read(self, path: str, advance: Callable[[int], object]) -> None:
        """Take up the lines of a file; `advance` is told how many bytes of it have been read.

        Raises:
            InputError: naming the file and the line.
        """
        from asr.language_model.kneser_ney import SPECIAL

        ids, end, begin = array("i"), *self._around
        known = self._ids.__getitem__
        for number, line in text_lines(path, advance):
            try:
                words = self._spell(line)
            except InputError as error:
                self._name(f"{path}:{number}: {error}")
                continue
            if not words:
                self.empty += 1
                continue
            if not set(SPECIAL).isdisjoint(words):
                raise InputError(f"{path}:{number}: a text must not hold {', '.join(SPECIAL)}, which are the model's.")
            ids.append(begin)
            ids.extend(map(known, words))
            ids.append(end)
            self.sentences += 1
            self.words += len(words)
            if len(ids) > 1 << 20:
                self._save(ids)
                ids = array("i")
        self._save(ids)

    def _save(self, ids: array) -> None:
        with _on_disk("the temporary folder (see TMPDIR) must have room for the text"):
            self._file.write(ids)
            self._file.flush()

    def _name(self, problem: str) -> None:
        self.unspellable += 1
        if self.unspellable <= _NAMED:
            complain(f"{problem.rstrip('.')}; this line is left out.")

    def finish(self) -> "tuple[list[str], Array]":
        """Return the words by id, sorted, so that the order of the lines does not matter; and the ids of the text."""
        import numpy as np

        from asr.language_model.kneser_ney import SPECIAL

        words = sorted(self._ids)
        final = np.arange(len(words) + len(SPECIAL), dtype=np.int32)
        final[[self._ids[word] for word in words]] = np.arange(len(SPECIAL), len(final))
        self._ids.clear()
        ids = np.memmap(self._file, np.int32, "r+")
        for start in range(0, len(ids), 1 << 20):
            ids[start : start + (1 << 20)] = final[ids[start : start + (1 << 20)]]
        return [*SPECIAL, *words], ids

    def left_out(self) -> str:
        """Say which lines are not in the model, and why."""
        empty = f"{self.empty} lines without a word" if self.empty else ""
        unspellable = f"{self.unspellable} lines with what cannot be spelled" if self.unspellable else ""
        return ", ".join(filter(None, [empty, unspellable]))


def _speller(options: argparse.Namespace) -> Speller:
    if options.tokens is None:
        return _word_by_word(get_normalizer(options.normalizer), _checked)
    from asr.decode.fusion.shallow_fusion import token_name
    from asr.interchange.models import load_recognizer

    recognizer = load_recognizer(options.tokens)
    normal, encode = _word_by_word(recognizer.model.normalize), recognizer.model.tokenizer.encode
    spellings = [token_name(piece) for piece in recognizer.model.tokenizer.pieces]
    return lambda line: [spellings[token] for token in encode(" ".join(normal(line)))]


def _word_by_word(normalize: Normalizer, check: Callable[[str], str] = str) -> Speller:
    """Normalise each different word once, which takes a tenth of the time, unless words change beside others."""
    if normalize not in BY_WORDS:
        return lambda line: check(normalize(line)).split()
    known: dict[str, list[str]] = {}

    def spell(line: str) -> list[str]:
        words: list[str] = []
        for word in line.split():
            if (normal := known.get(word)) is None:
                normal = known[word] = check(normalize(word)).split()
            words += normal
        return words

    return spell


def _checked(text: str) -> str:
    """The words of a normalised text, if all are as short as models are read."""
    for word in text.split():
        if len(word.encode("utf-8", "surrogatepass")) > LONGEST_WORD:
            raise InputError(f"a word must have at most {LONGEST_WORD:,} bytes; got {shown(word)}.")
    return text


@contextmanager
def _on_disk(must: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{must}; {error.strerror or error}.") from None


def write(output: Path, content: Callable[[BinaryIO], object]) -> None:
    """Write the model, whole or not at all."""
    with _on_disk(f"{output}: the model must be written there"):
        write_whole(output, content)


def write_spelling(output: Path, words: Sequence[str], ids: "Array") -> None:
    """Write the spelling model of a text, given as `Text.finish` does."""
    import numpy as np

    from asr.language_model.kneser_ney import SPECIAL, write_arpa
    from asr.language_model.spelling import estimate_spelling

    counts = np.bincount(ids, minlength=len(words))[len(SPECIAL) :].tolist()
    model, characters = estimate_spelling(dict(zip(words[len(SPECIAL) :], counts, strict=True)))
    write(output, lambda file: write_arpa(model, characters, file))


def report(text: Text, vocab_size: int, model: "Sequence[NGrams]", thresholds: Sequence[int]) -> str:
    """Lay out what the model was made of, a line an order."""
    left_out = f" (left out: {text.left_out()})" if text.left_out() else ""
    lines = [f"{text.sentences} sentences{left_out}, {text.words} words, {vocab_size} in the vocabulary"]
    rows: list[tuple[str, ...]] = [("order", "n-grams", "pruned", "D1", "D2", "D3+")]
    for order, grams in enumerate(model, start=1):
        number, kept = len(grams.kept), int(grams.kept.sum())
        rows.append((str(order), str(kept), str(number - kept), *(f"{discount:.4f}" for discount in grams.discounts)))
    lines += lay_out(rows)
    if orders := [str(order) for order, grams in enumerate(model, start=1) if grams.fallback]:
        lines.append(f"Too little text to estimate discounts of order {', '.join(orders)}: fixed ones were taken.")
    return "\n".join(lines)


if __name__ == "__main__":
    run_command(main)
