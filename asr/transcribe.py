"""python -m asr.transcribe MODEL PATH...: recognise audio files; one line a file, path<TAB>text, on stdout."""

import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from asr.command import complain, load_model, model_parser, progress_bar, run_command

if TYPE_CHECKING:
    from asr.recognizer import Recognizer

WINDOW = 256  # files that are sorted by length and recognised together; their lines come in the order given


def main(arguments: Sequence[str] | None = None) -> int:
    """Transcribe; the status is 1 if a file could not be read, and the others are transcribed all the same."""
    parser = model_parser(
        "transcribe", "Transcribe audio: one line a file, path<TAB>text, on stdout; problems on stderr."
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="audio file, or folder that is searched for them")
    options = parser.parse_args(arguments)

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # a file name need not be UTF-8

    recognizer = load_model(options)
    files, problems = _find(options.paths)
    with progress_bar() as progress:
        task = progress.add_task("transcribing", total=len(files))
        for start in range(0, len(files), WINDOW):
            window = files[start : start + WINDOW]
            texts = dict(_transcribe(recognizer, window, options.num_workers))
            for number, file in enumerate(window):
                if number in texts:
                    print(f"{file}\t{texts[number]}", flush=True)
            problems += len(window) - len(texts)
            progress.update(task, advance=len(window))
    if problems:
        complain(f"{problems} could not be transcribed; they are named above.")
    return 1 if problems else 0


def _find(paths: Sequence[str]) -> tuple[list[Path], int]:
    """Find the audio files that the paths mean, and count the paths that mean none."""
    from asr.audio import find_audio
    from asr.errors import AudioError

    files: list[Path] = []
    problems = 0
    for path in paths:
        try:
            files += find_audio(path)
        except AudioError as error:
            complain(str(error))
            problems += 1
    return files, problems


def _transcribe(recognizer: "Recognizer", files: Sequence[Path], num_workers: int) -> Iterator[tuple[int, str]]:
    """Yield number and text of the files that can be read; complain of the others."""
    from asr.data.batch import Rejected
    from asr.errors import AudioError
    from asr.recognizer import whole_file

    utterances = []
    for number, file in enumerate(files):
        try:
            utterances.append(whole_file(file, str(number)))
        except AudioError as error:
            complain(str(error))
    for results in recognizer.recognize(utterances, num_workers=num_workers):
        for result in results:
            if isinstance(result, Rejected):
                complain(result.reason)
            else:
                yield int(result[0].id), result[1]


if __name__ == "__main__":
    run_command(main)
