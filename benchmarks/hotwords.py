"""Measure what hotwords do to listed words, to other words, and where no listed word is spoken.

    python -m benchmarks.hotwords english dev-mini.jsonl --text lm_text_train.txt --output runs/hotwords.json

Each recording is encoded once; then it is searched with each list, score and number of hypotheses. The lists are those
of `recipes.hotwords.lists`: `utterance` (a list for each utterance), `set` (one list with the rare words of all
references) and `absent` (no listed word is spoken). All manifests together are one set.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from asr.base.system.files import write_whole_text
from asr.base.text.word_errors import align_words
from asr.core.checkpoint.load import load_recognizer
from asr.core.data.batch import Rejected
from asr.core.data.manifest import Utterance, read_manifest
from asr.core.evaluation.bootstrap import MIDDLE, Array, resample
from asr.core.recognition.pieces import joined_rows
from asr.core.recognition.recognizer import Recognizer
from asr.errors import InputError
from recipes.command import ROOM, AddOption, run_recipe
from recipes.hotwords.lists import RareWords, add_words, words_of

LISTS = ("utterance", "set", "absent")
HEADINGS = (
    *("list", "words", "hypotheses", "score", "errors in listed words", "fewer, 95 %", "errors in other words"),
    *("difference, points, 95 %", "false alarms an hour", "WER", "CPU s"),
)


class Counts(NamedTuple):
    """Errors in one utterance.

    Args:
        listed: errors in words of the reference that are rare, and insertions of rare words of the reference.
        others: all other errors.
        alarms: words of the hypothesis that are in the list and are not spoken there.
    """

    listed: int
    others: int
    alarms: int


def count(reference: str, hypothesis: str, rare: set[str], listed: set[str]) -> Counts:
    """Count the errors of a hypothesis.

    Args:
        reference: normalised.
        hypothesis: normalised.
        rare: the rare words of all references, by which errors are divided whatever the list is.
        listed: the words of the list.
    """
    of_rare = others = alarms = 0
    for edit in align_words(reference, hypothesis):
        if edit.kind == "equal":
            continue
        # Le et al. 2021, section 4.1: an insertion counts by the inserted word
        is_rare = (edit.hypothesis if edit.reference is None else edit.reference) in rare
        of_rare, others = of_rare + is_rare, others + (not is_rare)
        alarms += edit.hypothesis in listed
    return Counts(of_rare, others, alarms)


class Setting(NamedTuple):
    """A list, and a search: its kind, number of words, number of hypotheses (0: greedy), and score."""

    kind: str
    num_words: int
    num_hypotheses: int
    score: float


def settings(options: argparse.Namespace) -> Iterator[Setting]:
    """Yield the settings to measure, beginning with the searches without a list."""
    yield Setting("", 0, 0, 0.0)
    for size in filter(None, options.hypotheses):
        yield Setting("", 0, size, 0.0)
    for kind, words, size, score in product(options.lists, options.words, options.hypotheses, options.scores):
        yield Setting(kind, words, size, score)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_recipe("benchmarks.hotwords", __doc__, _add_options, _run, arguments, must=ROOM)


def _add_options(add: AddOption) -> None:
    add("model", metavar="MODEL", help="a model with a beam search")
    add_words(add)
    add("--lists", nargs="+", choices=LISTS, default=LISTS, help="kinds of lists (default: all)")
    add("--words", metavar="N", nargs="+", type=int, default=[1_000], help="words of a list (1000)")
    add(
        "--hypotheses",
        metavar="N",
        nargs="+",
        type=int,
        default=[4],
        help="hypotheses of the beam search (4); 0: greedy, with lists only for a transducer",
    )
    add("--scores", metavar="S", nargs="+", type=float, default=[3.0], help="bonuses for each word (3)")
    add("--output", metavar="FILE", type=Path, help="write the counts of each utterance here, as JSON")


def _run(options: argparse.Namespace) -> None:
    utterances = [each for path in options.manifests for each in read_manifest(path)]
    greedy = load_recognizer(options.model)
    beam = next(iter(greedy.model.head.decoders.beam), None)
    searches = {
        size: load_recognizer(options.model, decode={"name": beam, "beam_size": size})
        for size in filter(None, options.hypotheses)
    }
    words = words_of(options, utterances, greedy.model.normalize)
    began = time.process_time()
    encoded = [(each, [rows.encoder_out for rows in segments]) for each, segments in _segments(greedy, utterances)]
    seconds = sum(each.duration for each in utterances)
    print(f"{len(utterances)} utterances, {seconds / 60:.1f} min; network {time.process_time() - began:.1f} CPU s")
    references = {each.id: greedy.model.normalize(each.text) for each in utterances}
    rare = set(words.spoken)
    num_rare = np.array([sum(word in rare for word in references[each.id].split()) for each, _ in encoded])
    num_words = np.array([len(references[each.id].split()) for each, _ in encoded])
    print(f"{num_rare.sum():,} of {num_words.sum():,} words are rare, {len(rare):,} of them different")
    print(f"\n| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}")
    base: Array | None = None
    results: list[dict[str, Any]] = []
    for setting in settings(options):
        recognizer = searches.get(setting.num_hypotheses, greedy)
        counts, cpu_seconds = _measure(recognizer, encoded, references, words, setting)
        rows = np.array(counts, dtype=float)
        base = rows if base is None else base
        cells = [*_cells(setting, rows, base, num_rare, num_words, seconds), f"{cpu_seconds:.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
        results.append({**setting._asdict(), "counts": counts, "cpu_seconds": cpu_seconds})
        if options.output:
            ids = [each.id for each, _ in encoded]
            about = {"utterances": ids, "rare": num_rare.tolist(), "words": num_words.tolist(), "seconds": seconds}
            write_whole_text(options.output, json.dumps({**about, "results": results}))


def _segments(recognizer: Recognizer, utterances: Sequence[Utterance]) -> Iterator[Any]:
    for result in recognizer.segments(utterances):
        if isinstance(result, Rejected):
            raise InputError(result.reason)
        utterance, segments = result
        yield utterance, list(segments)


def _measure(
    recognizer: Recognizer,
    encoded: Sequence[tuple[Utterance, Sequence[Any]]],
    references: dict[str, str],
    words: RareWords,
    setting: Setting,
) -> tuple[list[Counts], float]:
    """Search all recordings; return the counts of each, and the CPU seconds of the searches."""
    rare, counts, cpu_seconds = set(words.spoken), [], 0.0
    for utterance, rows in encoded:
        phrases = _list(words, setting, utterance.id)
        biasing = recognizer.biasing(phrases, setting.score)
        began = time.process_time()
        evidence = recognizer.evidence(joined_rows(rows))
        found = recognizer.search(evidence, biasings=[biasing] * len(rows))
        cpu_seconds += time.process_time() - began
        text = " ".join(recognizer.text(best) for best, *_ in found)
        counts.append(count(references[utterance.id], text, rare, set(phrases)))
    return counts, cpu_seconds


def _list(words: RareWords, setting: Setting, utterance_id: str) -> list[str]:
    match setting.kind:
        case "utterance":
            return words.of_utterance(utterance_id, setting.num_words)
        case "set":
            return words.of_set(setting.num_words)
        case "absent":
            return words.absent(setting.num_words)
    return []


def _cells(setting: Setting, rows: Array, base: Array, num_rare: Array, num_words: Array, seconds: float) -> list[str]:
    listed, others, alarms = rows.sum(axis=0)
    draws = resample(np.column_stack([rows[:, :2], base[:, :2], num_words - num_rare]))
    draws = draws[(draws[:, 2] > 0) & (draws[:, 4] > 0)]
    fewer = points = ""
    if len(draws):
        part = 1 - listed / base[:, 0].sum()
        fewer = f"{100 * part:.0f} % ({_interval(100 * (1 - draws[:, 0] / draws[:, 2]), 0)})"
        difference = 100 * (others - base[:, 1].sum()) / (num_words - num_rare).sum()
        points = f"{difference:+.2f} ({_interval(100 * (draws[:, 1] - draws[:, 3]) / draws[:, 4], 2)})"
    return [
        setting.kind or "none",
        f"{setting.num_words:,}" if setting.kind else "",
        str(setting.num_hypotheses) if setting.num_hypotheses else "greedy",
        f"{setting.score:g}" if setting.kind else "",
        f"{listed:.0f}",
        fewer,
        f"{others:.0f}",
        points,
        f"{alarms / seconds * 3600:.1f}" if setting.kind else "",
        f"{100 * (listed + others) / num_words.sum():.2f} %",
    ]


def _interval(draws: Array, digits: int) -> str:
    low, high = np.percentile(draws, MIDDLE)
    return f"{low:.{digits}f} to {high:.{digits}f}"


if __name__ == "__main__":
    raise SystemExit(main())
