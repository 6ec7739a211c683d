"""python -m asr.align MODEL MANIFEST: compute times of the words in reference texts, and find wrong texts."""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from asr.base.system.files import check_output, message_stream
from asr.base.text.numbers import counted, finite
from asr.base.text.printable import printable
from asr.core.cli.command import audio_progress, complain, inference, load_model, model_parser, run_command
from asr.core.cli.output import Outcomes, add_output, arrange, check_formats, in_order, named, write
from asr.errors import InputError

if TYPE_CHECKING:
    from asr.core.data.manifest import Utterance
    from asr.core.recognition.aligned_segments import Aligned, AlignedSegment, SegmentRules
    from asr.core.recognition.inference import Inference
    from asr.core.recognition.recognizer import Recognizer

OnAligned = Callable[["Utterance", "Aligned"], None]
WORST = 10  # number of listed texts
MIN_SCORE, MIN_SECONDS, MAX_SECONDS = -1.0, 1.0, 20.0  # default limits of segments


def main(arguments: Sequence[str] | None = None) -> int:
    """Align; the status is 1 if utterances cannot be aligned, but all other utterances are aligned."""
    parser = model_parser(
        "align",
        "Compute the times of the words in reference texts, and find wrong texts. The score of a text is the score of "
        "its worst word: 0 if the model recognises the text itself, and lower the worse the word fits the audio.",
        language=True,
    )
    parser.add_argument("manifest", metavar="MANIFEST", help="JSONL, one utterance per line")
    parser.add_argument(
        "--worst",
        type=int,
        metavar="N",
        help="list the N texts with the lowest scores on stderr (default 10; 0 with --segments)",
    )
    add_output(parser, default="jsonl")
    _add_segments(parser)
    options = parser.parse_args(arguments)
    if options.worst is None:
        options.worst = WORST if options.segments is None else 0
    if options.worst < 0:
        raise InputError(f"--worst must not be negative; got {options.worst}.")
    check_formats(options)
    rules = _segment_rules(options)
    from asr.core.data.index_cache import listed_utterances

    inference_options = inference(options)
    recognizer = load_model(options, options.language)
    utterances, errors = listed_utterances(options.manifest, recognizer.model.labels.names)
    for error in errors:
        complain(str(error))
    recordings = arrange(named(utterances), options, [options.manifest])
    scores: list[tuple[float, str, str]] = []
    segments: dict[str, list[AlignedSegment]] = {}

    def on_aligned(utterance: "Utterance", aligned: "Aligned") -> None:
        if rules is not None:
            segments[utterance.id] = _segments(recognizer, utterance, aligned, rules)

    with audio_progress("aligning", utterances, is_printing=rules is None and not options.output_dir) as on_progress:
        outcomes = in_order(recordings, partial(_outcomes, recognizer, inference_options, on_progress, on_aligned))
        # With --segments, transcripts are not printed, because hours of audio would fill the screen with words.
        for recording, transcript in outcomes if rules and not options.output_dir else write(outcomes, options):
            scores.append((transcript.alternatives[0].score, recording.name, transcript.text))
    _list_worst(sorted(scores)[: options.worst])
    if rules is not None:
        _write_segments(
            options.segments, [segment for utterance in utterances for segment in segments.get(utterance.id, [])]
        )
    problems = len(errors) + len(recordings) - len(scores)
    if problems:
        complain(f"{problems} of {problems + len(scores)} utterances were not aligned; see the errors above.")
    return 1 if problems else 0


def _list_worst(scores: Sequence[tuple[float, str, str]]) -> None:
    """Print texts with their scores to stderr."""
    if scores:
        print("texts that fit their audio worst (score; 0: the model recognises exactly this text):", file=sys.stderr)
    for score, name, text in scores:
        print(printable(f"{score:8.2f}  {name}  {text}"), file=sys.stderr)


def _add_segments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cutting long recordings into training segments")
    group.add_argument("--segments", metavar="OUT", type=Path, help="write a manifest of segments, cut at silences")
    score = "minimum score of a segment: 0 if the model recognises its text, -1 or less if it recognises another text"
    group.add_argument("--min-score", metavar="X", type=finite, help=f"{score} (default {MIN_SCORE})")
    group.add_argument(
        "--min-seconds", metavar="S", type=finite, help=f"minimum length of a segment (default {MIN_SECONDS:g})"
    )
    group.add_argument(
        "--max-seconds", metavar="S", type=finite, help=f"maximum length of a segment (default {MAX_SECONDS:g})"
    )


def _segment_rules(options: argparse.Namespace) -> "SegmentRules | None":
    """Collect the rules for good segments; None without --segments."""
    from asr.core.recognition.aligned_segments import SegmentRules

    given = {"min_score": options.min_score, "min_seconds": options.min_seconds, "max_seconds": options.max_seconds}
    if options.segments is None:
        for key, value in given.items():
            if value is not None:
                raise InputError(f"--{key.replace('_', '-')} needs --segments; got none.")
        return None
    check_output("--segments", options.segments, "segments.jsonl", inputs=[options.manifest])
    defaults = {"min_score": MIN_SCORE, "min_seconds": MIN_SECONDS, "max_seconds": MAX_SECONDS}
    rules = SegmentRules(**defaults | {key: value for key, value in given.items() if value is not None})
    if rules.min_score > 0:
        raise InputError(f"--min-score must be at most 0, the best possible score; got {rules.min_score:g}.")
    if not 0 <= rules.min_seconds < rules.max_seconds or rules.max_seconds < 1:
        must = "--min-seconds must be at least 0 and less than --max-seconds, which must be at least 1"
        raise InputError(f"{must}; got {rules.min_seconds:g} and {rules.max_seconds:g}.")
    return rules


def _segments(
    recognizer: "Recognizer", utterance: "Utterance", aligned: "Aligned", rules: "SegmentRules"
) -> "list[AlignedSegment]":
    from asr.core.recognition.aligned_segments import cut_segments

    model = recognizer.model
    return list(
        cut_segments(
            utterance,
            aligned,
            rules,
            normalize=model.normalize,
            frame_seconds=model.frame_seconds,
            sample_rate=model.features.sample_rate,
        )
    )


def _write_segments(path: Path, segments: "Sequence[AlignedSegment]") -> None:
    """Write the good segments, print the other segments with the reason, and print the numbers of both."""
    from asr.core.data.manifest import write_manifest

    good = [segment for segment in segments if segment.problem is None]
    write_manifest(path, [segment.utterance for segment in good], [round(segment.score, 4) for segment in good])
    for utterance, score, problem in segments:
        if problem is not None:
            begin = utterance.offset or 0.0
            where = f"{utterance.id} ({begin:.2f} to {begin + utterance.duration:.2f} s)"
            print(printable(f"{problem}: {score:.2f}  {where}  {utterance.text}"), file=sys.stderr)
    hours = sum(segment.utterance.duration for segment in good) / 3600
    message = f"{path}: {counted(len(good), 'segment')}, {hours:.2f} h"
    left_out = Counter(segment.problem for segment in segments if segment.problem is not None)
    if left_out:
        reasons = ", ".join(f"{count} {problem}" for problem, count in left_out.items())
        message += f"; {left_out.total()} left out, listed above: {reasons}"
    print(message, file=message_stream(path))


def _outcomes(
    recognizer: "Recognizer",
    inference_options: "Inference",
    on_progress: Callable[[float], None],
    on_aligned: OnAligned,
    utterances: "list[Utterance]",
) -> Outcomes:
    """Yield each utterance's aligned reference text, or the reason of a failure."""
    from asr.core.recognition.aligned_segments import align_utterances

    for utterance, aligned in align_utterances(recognizer, utterances, inference_options, on_progress):
        if isinstance(aligned, str):
            yield utterance, aligned
            continue
        try:
            on_aligned(utterance, aligned)
        except InputError as error:
            yield utterance, str(error)
        else:
            yield utterance, aligned.transcript


if __name__ == "__main__":
    run_command(main)
