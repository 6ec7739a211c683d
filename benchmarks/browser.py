"""python -m benchmarks.browser MODEL MANIFEST: a model in Chromium, by the page of asr.export --web, on one core.

Seconds of audio a second (--seconds) of the page's own worker, waveform to words; by the clock, and by the time that
all of Chromium's processes had of a processor, which other work does not change. How long loading takes, what a browser
downloads, and, on the manifest's first recordings (--texts), how many texts are not those of torch in float32.
"""

import argparse
import base64
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from asr.audio.load import load_waveform
from asr.cli.command import run_command
from asr.data.manifest import Utterance, read_manifest
from asr.errors import InputError
from asr.publishing.site import LARGE
from benchmarks import results
from benchmarks.machine import about
from benchmarks.results import Results, fixed

QUANTIZATIONS = {"float32": [], "int8": ["--quantize", "int8"]}
SPEED = {
    "program": str,
    "seconds": fixed(0),
    "seconds of audio a second": fixed(1),
    "by processor time": fixed(1),
}
TOTALS = {"program": str, "MB to download": fixed(0), "loaded after s": fixed(1), "other texts": str}
START = """() => new Promise((resolve, reject) => {
  const settings = JSON.parse(document.getElementById("settings").textContent), begin = performance.now();
  settings.cache = "benchmark";
  window.worker = new Worker(`recognizer.js?version=${settings.version}`, { type: "module" });
  window.worker.onmessage = ({ data }) => {
    if (data.loaded) resolve((performance.now() - begin) / 1000);
    if (data.problem) reject(new Error(data.problem));
  };
  window.worker.postMessage({ task: "load", settings });
})"""
RECOGNIZE = """(base64) => {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0)).buffer;
  return new Promise((resolve, reject) => {
    const begin = performance.now();
    window.worker.onmessage = ({ data }) => {
      if (data.answer) resolve({ seconds: (performance.now() - begin) / 1000, text: data.answer.text });
      if (data.problem) reject(new Error(data.problem));
    };
    const waveform = new Float32Array(bytes);
    window.worker.postMessage({ task: "recognize", number: 1, waveform, duration: 1e9 }, [bytes]);
  });
}"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the pages, print a table of speeds and one of the rest."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.browser", description=__doc__)
    model, manifest = Path("runs/mini/bundle"), "data/mini/test.jsonl"
    parser.add_argument("model", metavar="MODEL", nargs="?", type=Path, default=model, help=f"a bundle ({model})")
    recordings = f"JSONL, whose recordings are recognised ({manifest})"
    parser.add_argument("manifest", metavar="MANIFEST", nargs="?", default=manifest, help=recordings)
    parser.add_argument("--seconds", type=float, nargs="+", default=[1, 10, 30], metavar="S", help="of audio")
    parser.add_argument("--texts", type=int, default=20, metavar="N", help="recordings whose texts are compared")
    parser.add_argument("--programs", choices=QUANTIZATIONS, nargs="+", default=[*QUANTIZATIONS], help="those alone")
    results.add_options(parser)
    given = parser.parse_args(arguments)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # what is started from here on has one core
    facts = about(given)
    utterances = read_manifest(given.manifest)
    from asr import load_recognizer

    recognizer = load_recognizer(given.model)
    sample_rate = recognizer.model.features.sample_rate
    texts = [transcript.text for transcript in recognizer.transcribe(_paths(utterances[: given.texts]))]
    speed = Results("browser", SPEED, bars="seconds of audio a second", within=("seconds",))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in given.programs:
            site = Path(folder, name)
            command = [sys.executable, "-m", "asr.export", str(given.model), "--web", "-o", str(site)]
            subprocess.run([*command, *QUANTIZATIONS[name]], check=True, stdout=sys.stderr)
            with opened(site) as page:
                loaded = page.evaluate(START)
                for seconds in given.seconds:
                    waveform = joined(utterances, seconds, sample_rate)
                    speed.row(name, seconds, *rates(page, waveform, seconds, given.turns))
                heard = [
                    recognized(page, load_waveform(path, sample_rate).numpy())["text"]
                    for path in _paths(utterances[: given.texts])
                ]
            others = sum(text != other for text, other in zip(heard, texts, strict=True))
            size = sum((site / file).stat().st_size for file in LARGE) / 1e6
            rows.append((name, size, loaded, f"{others} of {len(texts)}"))
    speed.keep(given.output_dir, facts)
    totals = Results("browser_totals", TOTALS, bars="MB to download")
    for row in rows:
        totals.row(*row)
    totals.keep(given.output_dir, facts)
    return 0


def _paths(utterances: Sequence[Utterance]) -> list[str]:
    return [utterance.audio_filepath for utterance in utterances]


def joined(utterances: Sequence[Utterance], seconds: float, sample_rate: int) -> np.ndarray:
    """Recordings one behind the other, cut, or repeated, to one length."""
    waveforms = [load_waveform(path, sample_rate).numpy() for path in _paths(utterances[:20])]
    return np.resize(np.concatenate(waveforms), round(seconds * sample_rate))


@contextmanager
def opened(site: Path) -> Iterator[Any]:
    """Serve a page, and open it in Chromium.

    Raises:
        InputError: there is no Chromium, or no playwright.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise InputError("benchmarks.browser must have playwright; not installed. pip install '.[test]'") from None
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise InputError("benchmarks.browser must have Chromium; not installed. apt-get install chromium")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_address[1]}/")
        yield page
        browser.close()
    server.shutdown()
    server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


def recognized(page: Any, waveform: np.ndarray) -> dict[str, Any]:
    """What the worker says of a waveform, and after how many seconds."""
    answer: dict[str, Any] = page.evaluate(RECOGNIZE, base64.b64encode(waveform.astype("<f4").tobytes()).decode())
    return answer


def rates(page: Any, waveform: np.ndarray, seconds: float, turns: int) -> tuple[float, float]:
    """Seconds of audio a second of the clock, and a second of a processor; behind two turns that warm up."""
    system = page.context.browser.new_browser_cdp_session()
    taken, used = [], []
    for turn in range(-2, turns):
        before = _processor_seconds(system)
        answer = recognized(page, waveform)
        if turn >= 0:
            used.append(_processor_seconds(system) - before)
            taken.append(answer["seconds"])
    return seconds / median(taken), seconds / median(used)


def _processor_seconds(system: Any) -> float:
    """That all of Chromium's processes have had so far."""
    return float(sum(process["cpuTime"] for process in system.send("SystemInfo.getProcessInfo")["processInfo"]))


if __name__ == "__main__":
    run_command(main)
