"""python -m asr.evaluate MODEL MANIFEST...: report the word error rate on manifests."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from asr.command import add_decoding, audio_progress, complain, inference, load_model, model_parser, run_command
from asr.errors import InputError
from asr.output import make_output_dir

if TYPE_CHECKING:
    from asr.evaluation import Evaluation


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate; the status is 1 if an utterance could not be read, and the others are scored all the same."""
    parser = model_parser("evaluate", "Report the word error rate of a model on manifests.")
    parser.add_argument("manifests", metavar="MANIFEST", nargs="+", help="JSONL, one utterance a line")
    parser.add_argument("--output-dir", metavar="DIR", type=Path, help="gets NAME.wer.json and NAME.utterances.jsonl")
    add_decoding(parser)
    options = parser.parse_args(arguments)
    from asr.manifest import read_manifest

    names = [Path(path).stem for path in options.manifests]
    if len(set(names)) < len(names):
        raise InputError(f"manifests must have different file names, since results are called after them; got {names}.")
    manifests = {name: read_manifest(path) for name, path in zip(names, options.manifests, strict=True)}
    if options.output_dir:
        make_output_dir(options.output_dir)
    how = inference(options)
    recognizer = load_model(options)
    from asr.evaluation import evaluate

    evaluations: dict[str, Evaluation] = {}
    for name, utterances in manifests.items():
        with audio_progress(name, utterances) as advance:
            evaluations[name] = evaluate(recognizer, utterances, how, advance)
        if options.output_dir:
            write(options.output_dir, name, evaluations[name])
    print(table(evaluations))
    for name, evaluation in evaluations.items():
        for rejected in evaluation.rejected:
            complain(f"{name}: not scored: {rejected.reason}")
    return 1 if any(evaluation.rejected for evaluation in evaluations.values()) else 0


def write(output_dir: Path, name: str, evaluation: "Evaluation") -> None:
    """Write <name>.wer.json and <name>.utterances.jsonl."""
    timing = {"audio_seconds": evaluation.audio_seconds, "real_time_factor": evaluation.real_time_factor}
    summary = json.dumps(evaluation.as_dict() | timing, indent=2)
    lines = [json.dumps(one.as_dict(), ensure_ascii=False) for one in evaluation.scored]
    try:
        (output_dir / f"{name}.wer.json").write_text(summary + "\n", encoding="utf-8")
        text = "\n".join([*lines, ""])
        (output_dir / f"{name}.utterances.jsonl").write_text(text, encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise InputError(f"--output-dir must be a folder that can be written to; {error}.") from None


def table(evaluations: "Mapping[str, Evaluation]") -> str:
    """Lay the results out, a line a manifest."""
    titles = (
        "manifest",
        "utterances",
        "words",
        "WER %",
        "substituted",
        "inserted",
        "deleted",
        "audio h",
        "real time x",
    )
    rows = [titles]
    for name, evaluation in evaluations.items():
        counts = evaluation.counts
        edits = (str(counts.substitutions), str(counts.insertions), str(counts.deletions))
        hours, factor = f"{evaluation.audio_seconds / 3600:.2f}", f"{evaluation.real_time_factor:.4f}"
        size = (str(counts.utterances), str(counts.reference_words), f"{100 * counts.wer:.2f}")
        rows.append((name, *size, *edits, hours, factor))
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    first, *others = widths
    return "\n".join(
        "  ".join([row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], others, strict=True))])
        for row in rows
    )


if __name__ == "__main__":
    run_command(main)
