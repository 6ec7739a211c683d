"""Transcribe all recordings of a folder to a file of JSON lines; the same command resumes a job that was stopped.

    python examples/batch_job.py runs/mini data/mini/audio '*.flac' transcripts.jsonl

prints how many recordings are left. A line has the path of a recording, its text and confidence, and its words with
their times, or the reason why it cannot be read. For thousands of hours, use `python -m asr.transcribe --parts`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import asr


def lines(paths: list[Path]) -> list[dict[str, Any]]:
    try:
        transcripts = recognizer.transcribe(paths)
    except asr.AudioError as error:
        if len(paths) == 1:
            return [{"audio_filepath": str(paths[0]), "error": str(error)}]
        return [line for path in paths for line in lines([path])]
    return [{"audio_filepath": str(path), **each.as_dict()} for path, each in zip(paths, transcripts, strict=True)]


model, folder, pattern, output = sys.argv[1:]
recognizer = asr.load_recognizer(model)
with open(output, "a+b") as file:
    file.seek(0)
    whole, newline, _ = file.read().rpartition(b"\n")  # the last line is incomplete if the job was stopped there
    file.truncate(len(whole + newline))
    done = {json.loads(line)["audio_filepath"] for line in whole.splitlines()}
    left = [path for path in sorted(Path(folder).rglob(pattern)) if str(path) not in done]
    for start in range(0, len(left), 16):
        print(f"{len(left) - start} recordings left", flush=True)
        file.writelines(json.dumps(line).encode() + b"\n" for line in lines(left[start : start + 16]))
        file.flush()
