"""Transcribe recordings with a server of asr.serve.

    python -m asr.serve runs/mini &
    pip install httpx
    python examples/rest_client.py http://127.0.0.1:8000 recording.wav ...

prints the text of each recording after its name, and then the words with a confidence below 0.5, with their times.
"""

import sys
import time
from pathlib import Path
from typing import Any

import httpx


def transcribe(server: str, path: Path) -> dict[str, Any]:
    while True:
        with path.open("rb") as file:
            answer = httpx.post(f"{server}/transcribe", files={"file": (path.name, file)}, timeout=600)
        if answer.status_code == 503:  # the server is busy
            time.sleep(float(answer.headers.get("Retry-After", "1")))
            continue
        if answer.is_error:
            sys.exit(f"{path}: {answer.json()['detail']}")
        return dict(answer.json())


server, *paths = sys.argv[1:]
for path in paths:
    transcript = transcribe(server, Path(path))
    print(f"{path}: {transcript['text']}")
    for word in transcript["words"]:
        if word["confidence"] < 0.5:
            print(f"  {word['start']:.2f}-{word['end']:.2f} s: {word['text']} ({word['confidence']:.0%})")
