"""python -m asr.evaluate MODEL MANIFEST...: report the word error rate on manifests."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len

from asr.base.storage.location import printable_url
from asr.base.system.files import message_stream, real, write_output, write_whole, write_whole_text
from asr.base.text.normalize import NORMALIZERS, get_normalizer
from asr.base.text.numbers import counted, interval, number, rate
from asr.base.text.printable import printable
from asr.base.text.scripts import NO_WORDS
from asr.base.text.table import WIDTH, lay_out, short_name
from asr.core.cli.apps import has_app
from asr.core.cli.command import audio_progress, complain, inference, load_model, model_parser, run_command
from asr.core.cli.output import new_output_dir
from asr.core.decoder_choice import add_decoding
from asr.errors import InputError

if TYPE_CHECKING:
    from asr.apps.report.robustness import Condition, Harder
    from asr.core.data.manifest import Utterance
    from asr.core.evaluation.result import Evaluation
    from asr.core.recognition.inference import Inference
    from asr.core.recognition.recognizer import Recognizer

ALL = "all manifests"

TITLES = (
    *("manifest", "utterances", "words", "WER %", "95 % interval", "raw %", "CER %"),
    *("subst.", "ins.", "del."),
)
UNSPACED_TITLES = (
    *("manifest", "utterances", "characters", "CER %", "95 % interval", "WER %", "raw %"),
    *("subst.", "ins.", "del."),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate; the status is 1 if utterances are unreadable, but all other utterances are scored."""
    parser = model_parser("evaluate", "Report the word error rate of a model on manifests.", language=True)
    parser.add_argument(
        "manifests", metavar="MANIFEST", nargs="+", help="manifest (JSON lines) or index (.arrow): file or URL"
    )
    parser.add_argument(
        "--output-dir", metavar="DIR", type=Path, help="write NAME.wer.json and NAME.utterances.jsonl here"
    )
    parser.add_argument(
        "--normalizer", metavar="NAME", help=f"normaliser for scoring: {', '.join(NORMALIZERS)} (default: the model's)"
    )
    parser.set_defaults(report=None, noise_seed=None)
    if has_app("report"):
        from asr.apps.report.options import add_report, audio_budget
        from asr.apps.report.robustness_options import add_conditions, check_conditions

        add_report(parser)
        add_conditions(parser)
    add_decoding(parser)
    options = parser.parse_args(arguments)
    budget = 0.0
    if has_app("report"):
        budget = audio_budget(options, options.manifests)
        check_conditions(options)
    normalize = None if options.normalizer is None else get_normalizer(options.normalizer)
    inference_options = inference(options)
    from asr.core.data.index import manifest_name

    names = [manifest_name(path) for path in options.manifests]
    if len(set(names)) < len(names):
        raise InputError(
            f"manifests must have different file names, because results are named after them; got {names}."
        )
    paths = dict(zip(names, options.manifests, strict=True))
    manifests = _read(paths)  # faults are reported before the model is loaded
    with new_output_dir(options.output_dir):
        recognizer = load_model(options, options.language)
        if labels := recognizer.label_names:
            manifests = _read(paths, labels)
        from asr.core.evaluation.result import evaluate, together

        ways: list[Condition] = []
        if has_app("report"):
            from asr.apps.report.robustness_options import conditions, conditions_table, evaluate_harder

            ways = conditions(options, recognizer.model.features.sample_rate)
        evaluations: dict[str, Evaluation] = {}
        harder: dict[str, list[Harder]] = {}
        summaries: list[tuple[str, dict[str, Any]]] = []
        for name, utterances in manifests.items():
            for line in recognizer.model.labels.describe_unknown(inference_options.labelled(utterances)):
                print(printable(f"{name}: {line}"), file=sys.stderr)
            with audio_progress(name, utterances) as on_progress:
                evaluations[name] = evaluate(recognizer, name, utterances, inference_options, on_progress, normalize)
            seed = options.noise_seed or 0
            if ways:
                harder[name] = evaluate_harder(ways, seed, recognizer, name, utterances, inference_options, normalize)
            row = summary(evaluations[name])
            summaries.append((name, row))
            if options.output_dir:
                under = {"noise_seed": seed, "conditions": [each.as_dict() for each in harder[name]]} if ways else {}
                write(options.output_dir, evaluations[name], name, row | under)
    if len(evaluations) > 1:
        summaries.append((ALL, summary(together(list(evaluations.values())))))
    tables = [table(summaries), *([conditions_table(evaluations, harder)] if ways else [])]
    print("\n\n".join(tables), file=message_stream(options.report), flush=True)
    complaints = [
        f"{name}: not scored: {rejected.reason}" for name, each in evaluations.items() for rejected in each.rejected
    ]
    complaints += [
        f"{name}, {each.condition.name}: not scored: {rejected.reason}"
        for name, results in harder.items()
        for each in results
        for rejected in each.evaluation.rejected
    ]
    for complaint in complaints:
        complain(complaint)
    if options.report:
        print(printable(f"writing {options.report}"), file=sys.stderr, flush=True)
        facts = [("Model", str(options.model)), ("Manifests", ", ".join(map(printable_url, options.manifests)))]
        page = report(recognizer, evaluations, facts, budget, inference_options, harder)
        write_output("--report", options.report, page)
    return 1 if complaints else 0


def _read(paths: Mapping[str, str], labels: Sequence[str] = ()) -> "dict[str, list[Utterance]]":
    """Read manifests with these labels, by name."""
    from asr.core.data.index_cache import listed_utterances

    manifests = {}
    for name, path in paths.items():
        manifests[name], problems = listed_utterances(path, labels)
        if problems:
            raise problems[0]
    return manifests


def summary(evaluation: "Evaluation") -> dict[str, Any]:
    """Return the contents of NAME.wer.json."""
    seconds, factor = evaluation.audio_seconds, evaluation.real_time_factor
    return evaluation.as_dict() | {
        "audio_seconds": seconds,
        "real_time_factor": factor if math.isfinite(factor) else None,
    }


def write(output_dir: Path, evaluation: "Evaluation", name: str, summary: Mapping[str, Any]) -> None:
    """Write <name>.wer.json and <name>.utterances.jsonl."""
    lines = "".join(json.dumps(utterance.as_dict(), ensure_ascii=False) + "\n" for utterance in evaluation.scored)
    content = lines.encode("utf-8", "surrogateescape")
    try:
        write_whole_text(output_dir / f"{name}.wer.json", json.dumps(summary, indent=2) + "\n")
        write_whole(output_dir / f"{name}.utterances.jsonl", lambda file: file.write(content))
    except OSError as error:
        raise InputError(f"--output-dir must be a writable folder; got: {error}.") from None


def report(
    recognizer: "Recognizer",
    evaluations: "Mapping[str, Evaluation]",
    facts: Sequence[tuple[str, str]],
    budget: float,
    inference_options: "Inference",
    harder: "Mapping[str, Sequence[Harder]]",
) -> str:
    """Make the page, with up to `budget` bytes of recordings of the utterances with the most errors."""
    from asr.apps.report.evaluation import About, evaluation_report
    from asr.apps.web.clips import record_with_features
    from asr.core.evaluation.result import together

    everything = together(list(evaluations.values()))
    utterances = [scored.utterance for scored in everything.scored]
    order = sorted(range(len(utterances)), key=lambda index: -everything.scored[index].counts.errors)
    clips = record_with_features(recognizer, utterances, order, budget, inference_options, audio_progress)
    more = [("Texts normalised by", everything.normalizer), ("Decoder", recognizer.decode.description)]
    missing = [f"{name}: {rejected.reason}" for name, each in evaluations.items() for rejected in each.rejected]
    title = f"Evaluation of {real(Path(facts[0][1])).name}"
    return evaluation_report(everything.scored, About(title, [*facts, *more], missing), clips, harder)


def table(summaries: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Format the results as a table with a row per manifest, and with notes on the columns.

    If most letters of a manifest belong to scripts without spaces, the CER is first, and edits are of characters.
    """
    by_character = any(row["unspaced"] for _, row in summaries)
    rows: list[tuple[str, ...]] = [UNSPACED_TITLES if by_character else TITLES]
    for name, row in summaries:
        counts = row["characters"] if by_character else row
        edits = (str(counts[kind]) for kind in ("substitutions", "insertions", "deletions"))
        length = counts["reference_length" if by_character else "reference_words"]
        sizes = (str(row["utterances"]), str(length))
        wer, cer = (rate(row["wer"]), rate(row["raw_wer"])), rate(row["cer"])
        scores = (wer[0], interval(row["wer_interval"]), wer[1], cer)
        if by_character:
            scores = (cer, interval(row["cer_interval"]), *wer)
        rows.append((short_name(printable(name)), *sizes, *scores, *edits))
    return "\n".join([*lay_out(rows), "", *notes(summaries)])


def notes(summaries: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return the notes on normalisation, intervals and speed."""
    _, last = summaries[-1]  # the last summary is the total
    measure = "cer" if any(row["unspaced"] for _, row in summaries) else "wer"
    has_gaps = any(row["utterances"] and row["raw_wer"] is None for _, row in summaries)
    missing = " (-: the references have neither)" if has_gaps else ""
    lines = [
        f"Texts are normalised by {last['normalizer']!r}; raw: the WER of texts as written, with case and punctuation"
        f"{missing}."
    ]
    if measure == "cer":
        lines.insert(0, NO_WORDS)
    lines.append("95 % interval: bootstrap over utterances.")
    if any(row["utterances"] and row[f"{measure}_interval"] is None for _, row in summaries):
        lines[-1] = f"{lines[-1][:-1]} (-: too few utterances, or no errors)."
    overs = [
        f"{short_name(printable(name))} {interval(row[f'{measure}_speaker_interval'])} ({row['speakers']} speakers)"
        for name, row in summaries
        if row[f"{measure}_speaker_interval"]
    ]
    if overs:
        lines[-1] = f"{lines[-1][:-1]}; over speakers: {', '.join(overs)}."
    wordless = [_wordless(name, row["wordless"]) for name, row in summaries if row["wordless"]]
    if wordless:
        lines.append(f"Recognised in utterances with an empty reference: {'; '.join(wordless)}.")
    if last["real_time_factor"] is not None:
        each = [f"{short_name(printable(name))} {_hours(row)}" for name, row in summaries[:-1]]
        parts = f" ({', '.join(each)})" if each else ""
        lines.append(f"{_hours(last)} of audio{parts}, recognised in {last['real_time_factor']:.4f} of its duration.")
    return [_filled(note) for note in lines]


def _filled(text: str) -> str:
    """Wrap a text to a terminal's width; unlike in textwrap, a wide character counts as two columns."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1].strip() and cell_len(lines[-1]) + 1 + cell_len(word) > WIDTH:
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def _hours(row: Mapping[str, Any]) -> str:
    return f"{row['audio_seconds'] / 3600:.2f} h"


def _wordless(name: str, written: Mapping[str, Any]) -> str:
    words, seconds = counted(written["words"], "word"), written["seconds"]
    return f"{short_name(printable(name))} {words} in {seconds:.0f} s, {number(written['words_an_hour'])} an hour"


if __name__ == "__main__":
    run_command(main)
