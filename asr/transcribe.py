"""python -m asr.transcribe MODEL PATH...: recognise audio files, folders of them, and manifests."""

import argparse
import io
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from asr.base.storage.location import file_name, is_url, printable_url
from asr.base.text.numbers import counted
from asr.base.text.printable import printable
from asr.core.cli.apps import has_app
from asr.core.cli.command import audio_progress, complain, inference, load_model, model_parser, run_command
from asr.core.cli.output import (
    NamedRecording,
    Outcomes,
    add_output,
    arrange,
    check_formats,
    in_order,
    named,
    plain_name,
    write,
)
from asr.core.decoder_choice import add_decoding
from asr.errors import InputError

if TYPE_CHECKING:
    from asr.core.data.manifest import Utterance
    from asr.core.recognition.inference import Inference
    from asr.core.recognition.recognizer import Recognizer

MANIFEST = (".jsonl", ".json", ".arrow")


WITH_ALTERNATIVES = ("json", "jsonl")  # formats for several hypotheses


def main(arguments: Sequence[str] | None = None) -> int:
    """Transcribe; the status is 1 if recordings are unreadable, but all other recordings are transcribed.

    With --parts, unreadable recordings are listed in failures.jsonl, and the status is 0.
    """
    about = "Transcribe audio to stdout or to one file per recording; errors go to stderr."
    parser = model_parser("transcribe", about, language=True)
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="path or URL: audio, folder of audio, manifest (.jsonl, .json), index (.arrow); - with --stream: stdin",
    )
    add_output(parser, default="txt")
    parser.add_argument(
        "--nbest", type=int, default=1, metavar="N", help="number of hypotheses in json and jsonl output (default 1)"
    )
    add_decoding(parser)
    parser.set_defaults(parts=False, stream=False)
    if has_app("serve"):
        from asr.apps.serve.terminal_captions import add_captions, check_captions

        add_captions(parser)
    if has_app("bulk"):
        from asr.apps.bulk.options import add_bulk

        add_bulk(parser)
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # a file name need not be UTF-8

    inference_options = inference(options)
    if has_app("serve"):
        check_captions(options)
    check_formats(options)
    if has_app("bulk"):
        from asr.apps.bulk.options import check_bulk

        check_bulk(options)
    if options.parts:
        return _bulk(options, inference_options)
    recognizer = load_model(options, options.language)
    if options.stream:
        from asr.apps.serve.terminal_captions import caption

        return caption(recognizer, options)
    recordings, problems = _find(options.paths, recognizer.label_names)
    recordings = arrange(recordings, options, options.paths)
    _check_nbest(recognizer, inference_options.nbest, options.format)
    hotwords = _Hotwords(recognizer)
    num_written = 0
    utterances = [recording.utterance for recording in recordings]
    with audio_progress("transcribing", utterances, is_printing=not options.output_dir) as on_progress:
        outcomes = in_order(recordings, partial(_outcomes, recognizer, inference_options, on_progress))
        for _, transcript in write(outcomes, options):
            num_written += 1
            hotwords.count(transcript.text)
    hotwords.report()
    problems += len(recordings) - num_written
    if problems:
        complain(f"{problems} of {problems + num_written} recordings were not transcribed; see the errors above.")
    return 1 if problems else 0


def _bulk(options: argparse.Namespace, inference_options: "Inference") -> int:
    """Run a bulk job; the process that finds all parts done writes the report. The status is 0 even after failures."""
    from asr.apps.bulk.options import run_bulk

    job = run_bulk(options, inference_options, partial(_check_nbest, nbest=inference_options.nbest, formats=["jsonl"]))
    if job is not None:
        from asr.apps.bulk.page import bulk_page
        from asr.apps.bulk.report import finish

        report = finish(job)
        page = job.folder.write_report(report, bulk_page(report))
        done = f"{counted(report['num_parts'], 'part')} done: {report['hours']:.2f} h"
        print(f"{done}, {counted(report['num_failures'], 'failure')}; report: {page}")
    return 0


def _find(paths: Sequence[str], labels: Sequence[str]) -> tuple[list[NamedRecording], int]:
    """List the recordings of the paths, with these labels of manifests' lines; print and count errors."""
    from asr.base.audio.find import find_audio, find_audio_objects
    from asr.core.data.index_cache import listed_utterances
    from asr.core.data.recordings import whole_file
    from asr.errors import AudioError

    recordings: list[NamedRecording] = []
    problems = 0
    for path in paths:
        files: Sequence[str | Path] = []
        try:
            if file_name(path).endswith(MANIFEST) and not os.path.isdir(path):
                utterances, errors = listed_utterances(path, labels, ("audio_filepath", "duration"))
                recordings += named(utterances)
                for error in errors:
                    complain(str(error))
                problems += len(errors)
            else:
                files = find_audio_objects(path) if is_url(path) else find_audio(path)
        except InputError as error:
            complain(str(error))
            problems += 1
        for file in files:
            try:
                utterance = whole_file(file, printable_url(str(file)))
            except AudioError as error:
                complain(str(error))
                problems += 1
                continue
            recordings.append(NamedRecording(utterance.id, utterance, _place(str(file), path)))
    return recordings, problems


def _place(file: str, path: str) -> Path:
    """Return the output path of a file below --output-dir, without suffix: the file's path relative to `path`."""
    if is_url(file):
        inside = file.removeprefix(path).lstrip("/") if file != path else file_name(file)
        return Path(plain_name(inside) if ".." in inside.split("/") else inside).with_suffix("")
    return (Path(file).relative_to(path) if Path(file) != Path(path) else Path(Path(file).name)).with_suffix("")


def _check_nbest(recognizer: "Recognizer", nbest: int, formats: Sequence[str]) -> None:
    if nbest > 1 and not set(formats).intersection(WITH_ALTERNATIVES):
        must = f"--nbest needs --format {' or '.join(WITH_ALTERNATIVES)}"
        raise InputError(f"{must}; {' and '.join(formats)} has only one text per recording.")
    if nbest > 1 and recognizer.decode.max_hypotheses == 1:
        must = "--nbest must be 1 with a decoder that finds only one hypothesis"
        raise InputError(f"{must} ({recognizer.decode.description}); got {nbest}. Add --beam 16.")


def _outcomes(
    recognizer: "Recognizer",
    inference_options: "Inference",
    on_progress: Callable[[float], None],
    utterances: "list[Utterance]",
) -> Outcomes:
    """Yield each utterance's transcript, or the reason of a failure."""
    from asr.core.data.batch import Rejected

    for result in recognizer.recognize(utterances, inference_options, on_progress):
        if isinstance(result, Rejected):
            yield result.utterance, result.reason
            continue
        utterance, transcript = result
        if not transcript.speech:
            print(printable(f"{utterance.id}: no speech"), file=sys.stderr)
        yield utterance, transcript


class _Hotwords:
    """The hotwords in use, and the number of occurrences of each in the transcripts."""

    def __init__(self, recognizer: "Recognizer") -> None:
        own = recognizer.decode.biasing
        self.phrases, impossible = own.phrases, own.impossible
        self._patterns = [re.compile(rf"(?<!\S){re.escape(phrase)}(?!\S)") for phrase in self.phrases]
        self.hits: Counter[str] = Counter()
        if self.phrases or impossible:
            of = len(self.phrases) + len(impossible)
            print(f"hotwords: {len(self.phrases)} of {of} phrases are in use", file=sys.stderr)
        for phrase, reason in impossible.items():
            print(printable(f"hotwords: {phrase!r} cannot be recognised: {reason}"), file=sys.stderr)

    def count(self, text: str) -> None:
        """Count the phrases in a transcript."""
        for phrase, pattern in zip(self.phrases, self._patterns, strict=True):
            self.hits[phrase] += len(pattern.findall(text))

    def report(self) -> None:
        """Print the recognised hotwords, most frequent hotword first."""
        if not self.phrases:
            return
        recognised = [f"{phrase} {count}" for phrase, count in self.hits.most_common() if count]
        print(f"hotwords: recognised {', '.join(recognised) or 'none'}", file=sys.stderr)


if __name__ == "__main__":
    run_command(main)
