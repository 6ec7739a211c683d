"""python -m asr.ngram TEXT... -o lm.arpa: build an n-gram language model, with modified Kneser-Ney smoothing."""

import argparse
import tempfile
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from asr.apps.language_models.mixture_options import add_mixture, check_mixture
from asr.apps.language_models.text_lines import text_lines
from asr.base.language_model.arpa import check_lengths
from asr.base.system.files import check_output, message_stream, write_whole
from asr.base.text.normalize import NORMALIZERS, get_normalizer, word_by_word
from asr.base.text.numbers import counted
from asr.base.text.table import lay_out
from asr.core.cli.command import complain, progress_bar, run_command
from asr.core.cli.parser import CommandParser
from asr.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Progress

    from asr.base.language_model.kneser_ney import Array, NGrams

ORDER = 3
ORDERS = (2, 6)  # range supported by KenLM
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
MIN_MEMORY = 1 << 20
_NAMED = 5  # number of skipped lines that are named; further lines are only counted

Speller = Callable[[str], list[str]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the model; lines that the tokenizer cannot encode are left out, and the status is still 0."""
    options = _parser().parse_args(arguments)
    thresholds = check_options(options)
    began = time.monotonic()
    text, extra, dev = (Text(spell) for spell in [_speller(options)] * 3)
    with progress_bar() as progress:
        ends = _read_all(options, text, extra, dev, progress)
        from asr.apps.language_models.extra_words import extend
        from asr.apps.language_models.interpolation import mix
        from asr.apps.language_models.perplexity_table import dev_lines, words_line
        from asr.base.language_model.kneser_ney import SPECIAL, write_arpa
        from asr.base.language_model.query import DevText

        words, ids = text.finish()
        parts = [ids[begin:end] for begin, end in pairwise([0, *ends])] if options.interpolate else [ids]
        models = [_estimate(part, len(words), options, thresholds, progress) for part in parts]
        of_texts, listed = len(words), extra.finish()[0][len(SPECIAL) :] if options.words else []
        models, words = extend(models, words, listed, options.words_probability)
        dev_text = DevText.translate(*dev.finish(), words) if options.dev else None
        weights, model = mix(models, dev_text) if options.interpolate and dev_text else (None, models[0])
        writing = progress.add_task("writing", total=sum(int(grams.kept.sum()) for grams in model))
        write(options.output, lambda file: write_arpa(model, words, file, lambda n: progress.advance(writing, n)))
    spelled = None
    if options.spelling is not None:
        from asr.base.language_model.spelling import spelling_log_probs, spelling_of_text

        letters, characters = spelling_of_text(words[:of_texts], ids)
        write(options.spelling, lambda file: write_arpa(letters, characters, file))
        spelled = spelling_log_probs(letters, characters, dev_text.unknown) if dev_text else None
    written = f"{options.output.stat().st_size / 1e6:.1f} MB in " if options.output.is_file() else ""
    summary = f"{options.output}: {written}{time.monotonic() - began:.1f} s"
    unknown = f", and {options.spelling}: spelling of unknown words" if options.spelling else ""
    unit = "token" if options.tokens else "word"
    lines = [report(text, unit, len(words), model), f"{summary}{unknown}"]
    if options.words:
        lines.append(words_line(options.words, len(listed), len(words) - of_texts, options.words_probability))
    if dev_text:
        measured = [] if weights is None else [*zip(options.texts, weights, models, strict=True)]
        measured.append(("mixture" if measured else options.output.name, None, model))
        listed_from = of_texts if options.words else None
        lines += dev_lines(options.dev, dev_text, measured, listed_from=listed_from, spelled=spelled, unit=unit)
    print("\n".join(lines), file=message_stream(options.output))
    return 0


def _estimate(
    ids: "Array", vocab_size: int, options: argparse.Namespace, thresholds: Sequence[int], progress: "Progress"
) -> "Sequence[NGrams]":
    from asr.base.language_model.kneser_ney import estimate

    counting = progress.add_task("counting", total=len(ids))
    with _on_disk("the temporary folder (see TMPDIR) must have room for the counts"):
        return estimate(
            ids,
            vocab_size,
            options.order,
            thresholds=thresholds,
            unknown_words=options.spelling is not None,
            memory=options.memory,
            on_progress=lambda number: progress.advance(counting, number),
        )


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="python -m asr.ngram",
        description="Build an n-gram language model, with modified Kneser-Ney smoothing, as an ARPA file.",
    )
    parser.add_plugins()
    parser.add_argument(
        "texts",
        metavar="TEXT",
        nargs="+",
        help="UTF-8 text, one sentence per line, also .gz; a manifest (.jsonl), for its texts; -: standard input",
    )
    parser.add_argument(
        "-o", "--output", metavar="ARPA", type=Path, required=True, help="ARPA file to write; an older one is replaced"
    )
    parser.add_argument("--order", type=int, default=ORDER, metavar="N", help=f"order of the model (default {ORDER})")
    prune = "prune n-grams of order 1, 2, … that occur at most N times, such as 0 1 1; the first N must be 0, no N may "
    prune += "be smaller than the previous N, and the last N also applies to all longer n-grams"
    parser.add_argument("--prune", type=int, nargs="+", default=[0], metavar="N", help=f"{prune} (default 0)")
    spelling = parser.add_mutually_exclusive_group()
    normalizer = f"normaliser of the recogniser: {', '.join(NORMALIZERS)} (default basic)"
    spelling.add_argument("--normalizer", default="basic", metavar="NAME", help=normalizer)
    spelling.add_argument("--tokens", metavar="MODEL", help="build a model of tokens, with this recogniser's tokenizer")
    unknown = "write a spelling model of unknown words to this file; <unk> then represents all unknown words"
    parser.add_argument("--spelling", metavar="ARPA", type=Path, help=unknown)
    memory = "memory for counting (default 1G), in addition to the distinct n-grams"
    parser.add_argument("--memory", default="1G", metavar="SIZE", help=memory)
    add_mixture(parser)
    return parser


def check_options(options: argparse.Namespace) -> list[int]:
    """Check the options before the work; convert `memory` to bytes, and return the thresholds of all orders."""
    order, prune = options.order, options.prune
    if not ORDERS[0] <= order <= ORDERS[1]:
        raise InputError(f"--order must be from {ORDERS[0]} to {ORDERS[1]}, as KenLM requires; got {order}.")
    if prune[0] != 0 or prune != sorted(prune) or len(prune) > order:
        must = "--prune must begin with 0 (no words are pruned), and no number may be smaller than the previous number"
        given = " ".join(map(str, prune))
        raise InputError(f"{must}; at most {order} numbers; got {given}. Try {' '.join(['0', *['1'] * (order - 1)])}.")
    options.memory = parse_size(options.memory)
    inputs = [*options.texts, *filter(None, [options.dev, options.words])]
    check_output("--output", options.output, "lm.arpa", inputs=inputs)
    if options.spelling is not None:
        check_output("--spelling", options.spelling, "spelling.arpa", inputs=inputs)
        if options.spelling.resolve() == options.output.resolve():
            raise InputError(f"--spelling must be another file than --output; both are {options.output}.")
        if options.tokens is not None:
            raise InputError(
                "--spelling must be given for a model of words, because tokens spell all words. Leave one of them out."
            )
    check_mixture(options)
    return [*prune, *[prune[-1]] * (order - len(prune))]


def parse_size(text: str) -> int:
    """Parse a number of bytes: 512M is 512 * 2**20."""
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].upper() in UNITS else (text, "")
    if not number.isdecimal() or (size := int(number) * UNITS.get(unit, 1)) < MIN_MEMORY:
        raise InputError(f"--memory must be a number of bytes of at least 1M, optionally with K, M or G; got {text!r}.")
    return size


def _read_all(options: argparse.Namespace, text: "Text", extra: "Text", dev: "Text", progress: "Progress") -> list[int]:
    """Read all files; return, for each TEXT, the number of ids read up to its end."""
    named = "each text of a mixture" if options.interpolate else None
    ends = [_read(text, path, progress, named) for path in options.texts]
    if not text.sentences:
        raise InputError(f"the text must have words; {', '.join(options.texts)}: {text.left_out() or 'no line'}.")
    for beside, path, option in ((extra, options.words, "--words"), (dev, options.dev, "--dev")):
        if path is not None:
            _read(beside, path, progress, option)
    return ends


def _read(text: "Text", path: str, progress: "Progress", needs_words: str | None) -> int:
    """Read a file; return the number of ids of all files so far, with <s> and </s>."""
    before = text.sentences
    size = 0 if path == "-" or not Path(path).is_file() else Path(path).stat().st_size
    task = progress.add_task(f"reading {path}, kB", total=size // 1000 or None)
    text.read(path, lambda read: progress.update(task, completed=read // 1000))
    if needs_words and text.sentences == before:
        raise InputError(f"{needs_words} must have words; {path} has none. Leave it out.")
    return text.words + 2 * text.sentences


class Text:
    """Texts, stored on the disk as ids of words.

    Args:
        spell: splits a line into words or tokens of the model; raises InputError if a word is too long or cannot be
            encoded.
    """

    def __init__(self, spell: Speller) -> None:
        from asr.base.language_model.kneser_ney import BOS, EOS, SPECIAL

        self.sentences = self.words = self.empty = self.unspellable = 0
        self._spell = spell
        self._ids: defaultdict[str, int] = defaultdict(count(len(SPECIAL)).__next__)
        self._around = array("i", [EOS, BOS])
        self._file = tempfile.TemporaryFile(prefix="asr-ngram-")  # noqa: SIM115  unlinked: deleted even after a crash

    def read(self, path: str, on_progress: Callable[[int], object]) -> None:
        """Read the lines of a file; `on_progress` is called with the number of bytes read so far."""
        from asr.base.language_model.kneser_ney import SPECIAL

        ids, end, begin = array("i"), *self._around
        known = self._ids.__getitem__
        for number, line in text_lines(path, on_progress):
            try:
                words = self._spell(line)
            except InputError as error:
                self._name(f"{path}:{number}: {error}")
                continue
            if not words:
                self.empty += 1
                continue
            if reserved := set(SPECIAL).intersection(words):
                must = f"{path}:{number}: a text must not contain {', '.join(SPECIAL)}, which are reserved"
                raise InputError(f"{must}; got {min(reserved)}. Remove it from the text.")
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
        """Return the words by id, sorted so that the order of lines does not matter, and the ids of the texts."""
        import numpy as np

        from asr.base.language_model.kneser_ney import SPECIAL

        words = sorted(self._ids)
        final = np.arange(len(words) + len(SPECIAL), dtype=np.int32)
        final[[self._ids[word] for word in words]] = np.arange(len(SPECIAL), len(final))
        self._ids.clear()
        ids = np.memmap(self._file, np.int32, "r+")
        for start in range(0, len(ids), 1 << 20):
            ids[start : start + (1 << 20)] = final[ids[start : start + (1 << 20)]]
        return [*SPECIAL, *words], ids

    def left_out(self) -> str:
        """Describe the lines that are not in the model."""
        empty = f"{self.empty} lines without a word" if self.empty else ""
        unspellable = f"{self.unspellable} lines that the tokenizer cannot encode" if self.unspellable else ""
        return ", ".join(filter(None, [empty, unspellable]))


def _speller(options: argparse.Namespace) -> Speller:
    if options.tokens is None:
        return word_by_word(get_normalizer(options.normalizer), check_lengths)
    from asr.components.decode.fusion.shallow_fusion import token_name
    from asr.core.hub.models import load_recognizer

    recognizer = load_recognizer(options.tokens)
    normal, encode = word_by_word(recognizer.model.normalize), recognizer.model.tokenizer.encode
    spellings = [token_name(name) for name in recognizer.model.tokenizer.names]
    return lambda line: [spellings[token] for token in encode(" ".join(normal(line)))]


@contextmanager
def _on_disk(must: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{must}; {error.strerror or error}.") from None


def write(output: Path, content: Callable[[BinaryIO], object]) -> None:
    """Write the model atomically."""
    with _on_disk(f"{output}: the model's file must be writable"):
        write_whole(output, content)


def report(text: Text, unit: str, vocab_size: int, model: "Sequence[NGrams]") -> str:
    """Return a table of the model's n-grams, with a line per order; `unit` is word or token."""
    left_out = f" (left out: {text.left_out()})" if text.left_out() else ""
    size = f"{counted(text.words, unit)}, {vocab_size:,} in the vocabulary"
    lines = [f"{counted(text.sentences, 'sentence')}{left_out}, {size}"]
    has_counts = any(grams.discounts for grams in model)  # a mixture has no discounts
    rows: list[tuple[str, ...]] = [("order", "n-grams", *(("pruned", "D1", "D2", "D3+") if has_counts else ()))]
    for order, grams in enumerate(model, start=1):
        number, num_kept = len(grams.kept), int(grams.kept.sum())
        of_counts = [str(number - num_kept), *(f"{discount:.4f}" for discount in grams.discounts)]
        rows.append((str(order), str(num_kept), *((of_counts if grams.discounts else ["-"] * 4) if has_counts else ())))
    lines += lay_out(rows)
    if orders := [str(order) for order, grams in enumerate(model, start=1) if grams.fallback]:
        lines.append(f"Too little text to estimate discounts of order {', '.join(orders)}: fixed discounts are used.")
    return "\n".join(lines)


if __name__ == "__main__":
    run_command(main)
