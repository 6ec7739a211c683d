"""python -m benchmarks.browser MODEL MANIFEST: speed of the page of asr.export --web, in Chromium on one core.

The first table has the speed of the page's worker, from waveform to words: seconds of audio per second, and per CPU
second of all Chromium processes. Other load on the machine does not affect the rate per CPU second. The second table
has the size of the download, the loading time, and the number of texts that differ from those of torch in float32.
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

from asr.apps.export.site import LARGE
from asr.base.audio.load import load_waveform
from asr.core.cli.command import run_command
from asr.core.data.manifest import Utterance, read_manifest
from asr.errors import InputError
from benchmarks import results
from benchmarks.machine import about
from benchmarks.results import Columns, Results, fixed

QUANTIZATIONS = {"float32": [], "int8": ["--quantize", "int8"]}
SPEED: Columns = {
    "program": str,
    "seconds": fixed(0),
    "audio s/s": fixed(1),
    "audio s/CPU s": fixed(1),
}
TOTALS: Columns = {"program": str, "MB to download": fixed(0), "loading s": fixed(1), "differing texts": str}
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
    """Export the pages, and print tables of speeds and totals."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.browser", description=__doc__)
    model, manifest = Path("runs/mini/bundle"), "data/mini/test.jsonl"
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", type=Path, default=model, help=f"bundle (default: {model})"
    )
    manifest_help = f"manifest of the recordings (default: {manifest})"
    parser.add_argument("manifest", metavar="MANIFEST", nargs="?", default=manifest, help=manifest_help)
    parser.add_argument(
        "--seconds", type=float, nargs="+", default=[1, 10, 30], metavar="S", help="lengths of recordings"
    )
    parser.add_argument(
        "--texts", type=int, default=20, metavar="N", help="number of recordings whose texts are compared"
    )
    parser.add_argument(
        "--programs", choices=QUANTIZATIONS, nargs="+", default=[*QUANTIZATIONS], help="exports to run (default: all)"
    )
    results.add_options(parser)
    options = parser.parse_args(arguments)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # limits all child processes to one core
    facts = about(options)
    utterances = read_manifest(options.manifest)
    from asr import load_recognizer

    recognizer = load_recognizer(options.model)
    sample_rate = recognizer.model.features.sample_rate
    texts = [transcript.text for transcript in recognizer.transcribe(_paths(utterances[: options.texts]))]
    speed = Results("browser", SPEED, bars="audio s/s", group_by=("seconds",))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.programs:
            site = Path(folder, name)
            command = [sys.executable, "-m", "asr.export", str(options.model), "--web", "-o", str(site)]
            subprocess.run([*command, *QUANTIZATIONS[name]], check=True, stdout=sys.stderr)
            with open_page(site) as page:
                loaded = page.evaluate(START)
                for seconds in options.seconds:
                    waveform = joined(utterances, seconds, sample_rate)
                    speed.row(name, seconds, *rates(page, waveform, seconds, options.turns))
                browser_texts = [
                    recognized(page, load_waveform(path, sample_rate).numpy())["text"]
                    for path in _paths(utterances[: options.texts])
                ]
            num_differing = sum(text != expected for text, expected in zip(browser_texts, texts, strict=True))
            size = sum((site / file).stat().st_size for file in LARGE) / 1e6
            rows.append((name, size, loaded, f"{num_differing} of {len(texts)}"))
    speed.save(options.output_dir, facts)
    totals = Results("browser_totals", TOTALS, bars="MB to download")
    for row in rows:
        totals.row(*row)
    totals.save(options.output_dir, facts)
    return 0


def _paths(utterances: Sequence[Utterance]) -> list[str]:
    return [utterance.audio_filepath for utterance in utterances]


def joined(utterances: Sequence[Utterance], seconds: float, sample_rate: int) -> np.ndarray:
    """Concatenate recordings; cut or repeat the result so that it lasts `seconds`."""
    waveforms = [load_waveform(path, sample_rate).numpy() for path in _paths(utterances[:20])]
    return np.resize(np.concatenate(waveforms), round(seconds * sample_rate))


@contextmanager
def open_page(site: Path) -> Iterator[Any]:
    """Serve a site on a local port, and open it in Chromium.

    Raises:
        InputError: Chromium or playwright is not installed.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise InputError(
            "benchmarks.browser requires playwright, which is not installed. Run pip install '.[test]'."
        ) from None
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise InputError("benchmarks.browser requires Chromium, which is not installed. Run apt-get install chromium.")
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
    """Recognise a waveform in the page's worker; return {"text": ..., "seconds": ...}."""
    answer: dict[str, Any] = page.evaluate(RECOGNIZE, base64.b64encode(waveform.astype("<f4").tobytes()).decode())
    return answer


def rates(page: Any, waveform: np.ndarray, seconds: float, turns: int) -> tuple[float, float]:
    """Return seconds of audio per second and per CPU second, medians of `turns` after two turns of warm-up."""
    system = page.context.browser.new_browser_cdp_session()
    wall_seconds, cpu_seconds = [], []
    for turn in range(-2, turns):
        cpu_start = _cpu_seconds(system)
        answer = recognized(page, waveform)
        if turn >= 0:
            cpu_seconds.append(_cpu_seconds(system) - cpu_start)
            wall_seconds.append(answer["seconds"])
    return seconds / median(wall_seconds), seconds / median(cpu_seconds)


def _cpu_seconds(system: Any) -> float:
    """Return the CPU seconds of all Chromium processes so far."""
    return float(sum(process["cpuTime"] for process in system.send("SystemInfo.getProcessInfo")["processInfo"]))


if __name__ == "__main__":
    run_command(main)
