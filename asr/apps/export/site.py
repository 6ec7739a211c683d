"""Files of a page that recognises speech in the browser; a server only has to deliver these files."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.apps.export.browser_runtime import Runtime, browser_runtime
from asr.apps.export.program_weights import MAX_BYTES
from asr.apps.web.demo import SCRIPTS, demo_body
from asr.apps.web.page import asset, escape, page, visible
from asr.base.audio.load import audio_info
from asr.base.onnx.names import DATA, WAVEFORM
from asr.base.text.words import BYTE
from asr.core.build import Config
from asr.core.checkpoint.bundle import Bundle, check_replaceable_folder, replace_folder
from asr.core.recognition.inference import CHUNKS
from asr.core.recognition.long_form import SEGMENT_CHUNKS
from asr.core.recognition.recognizer import Recognizer
from asr.core.recognition.timing import CHARACTER_SECONDS
from asr.errors import InputError

PAGE, CARD, SERVICE_WORKER = "index.html", "model-card.txt", "service-worker.js"
SCRIPT, WASM, LICENSE = "onnxruntime.js", "onnxruntime.wasm", "onnxruntime-LICENSE.txt"
PARTS = ("recognizer.js", "transcript.js", "collector.js")  # scripts that run in separate threads
ALWAYS = (PAGE, SERVICE_WORKER, *PARTS, WAVEFORM, SCRIPT, WASM, LICENSE)
LARGE = (WAVEFORM, WASM)  # files that are downloaded before the first recognition
NORMALIZERS = ("as_written", "basic", "basic_turkic")  # implemented in transcript.js
# Maximum length of a recording. A browser decodes the entire recording into memory: 700 MB for 48 kHz stereo.
MAX_SECONDS = 1800
ALLOWED = {"connect-src": "'self'", "script-src": "'self'", "worker-src": "'self'"}
LOAD = '<button type="button" id="load">Download it now</button>'

EXAMPLE = re.compile(r"example-\d+\.\w+")


def check_page(recognizer: Recognizer, config: Config) -> None:
    """Check that the page's script decodes like the model."""
    decoder, normalizer = config["decode"]["name"], config["normalizer"]
    if decoder != "greedy":
        cure = "Add --decode greedy" if recognizer.model.head.frame_head else "Train a model with a CTC head"
        raise InputError(f"the decoder of a page must be greedy; got decode={decoder}. {cure}.")
    if any(BYTE.search(piece) for piece in recognizer.model.tokenizer.pieces):
        raise InputError("the tokens of a model in a page must be characters or subwords; some are bytes.")
    if normalizer not in NORMALIZERS:
        must = f"the normalizer of a model in a page must be {' or '.join(NORMALIZERS)}"
        raise InputError(f"{must}; got {normalizer}.")


def site_files(
    name: str,
    recognizer: Recognizer,
    config: Config,
    program: bytes,
    runtime: Runtime,
    examples: Sequence[Path],
    card: str,
) -> dict[str, bytes]:
    """Return the files of a page, by name; the input of `program` is waveforms, and `card` may be empty."""
    contents = {WAVEFORM: program, SCRIPT: runtime.script, WASM: runtime.wasm, LICENSE: runtime.license}
    contents |= {part: asset(part).encode() for part in PARTS}
    named = {f"example-{number}{path.suffix}": path for number, path in enumerate(examples)}
    contents |= {address: path.read_bytes() for address, path in named.items()}
    if card.strip():
        contents[CARD] = card.encode("utf-8", "surrogatepass")
    settings = _settings(recognizer, config) | {
        "files": [{"name": file, "bytes": len(contents[file])} for file in LARGE]
    }
    body = _body(name, contents, {address: path.name for address, path in named.items()})
    settings["version"] = _version({**contents, PAGE: body.encode(), "settings": json.dumps(settings).encode()})
    scripts = (*SCRIPTS, "site.js")
    contents[PAGE] = page("Speech to text", body, scripts, {"settings": settings}, allow=ALLOWED).encode()
    contents[SERVICE_WORKER] = _service_worker(settings["version"], named)
    return contents


def megabytes(contents: Mapping[str, bytes]) -> int:
    """Return the megabytes that a browser downloads before it can recognise."""
    return round(sum(len(contents[name]) for name in LARGE) / 1e6)


def _body(name: str, contents: Mapping[str, bytes], examples: Mapping[str, str]) -> str:
    model = f"<strong>{escape(name)}</strong>"
    if CARD in contents:
        model += f' (<a href="{CARD}">its card</a>)'
    once = f"The first recording starts a download of {megabytes(contents)} MB; afterwards the page needs no network."
    about = (
        f"Your browser runs the model {model}: no recording leaves this device. A recording may last up to "
        f'{MAX_SECONDS // 60} minutes.\n<span id="here">{once}</span> {LOAD}'
    )
    return demo_body(about, "WAV, FLAC, Ogg, MP3 or M4A. Or use the microphone.", list(examples.items()))


def _settings(recognizer: Recognizer, config: Config) -> dict[str, Any]:
    """Return the model's settings for the page's scripts recognizer.js and transcript.js."""
    model = recognizer.model
    sample_rate, frame_samples = model.features.sample_rate, model.frame_samples
    chunk_samples, context_samples = CHUNKS.samples(sample_rate, frame_samples)
    return {
        "sample_rate": sample_rate,
        "frame_samples": frame_samples,
        "frame_seconds": model.frame_seconds,
        "chunk_seconds": CHUNKS.chunk_seconds,
        "chunk_samples": chunk_samples,
        "context_samples": context_samples,
        "segment_frames": SEGMENT_CHUNKS * (chunk_samples // frame_samples),
        "character_seconds": CHARACTER_SECONDS,
        "max_seconds": MAX_SECONDS,
        "vocab_size": model.tokenizer.vocab_size,
        "pieces": [with_plain_spaces(piece) for piece in model.tokenizer.pieces],
        "normalizer": config["normalizer"],
        "slope": recognizer.calibration.slope,
        "intercept": recognizer.calibration.intercept,
    }


def with_plain_spaces(piece: str) -> str:
    """Replace all whitespace by plain spaces, because Python and JavaScript define whitespace differently."""
    return visible("".join(" " if character.isspace() else character for character in piece))


def _version(contents: Mapping[str, bytes]) -> str:
    """Return a hash of the files."""
    digest = hashlib.sha256()
    for name, content in sorted(contents.items()):
        digest.update(f"{name} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def _service_worker(version: str, examples: Mapping[str, object]) -> bytes:
    """Return the script that lets the page open without a network."""
    versioned = [f"{name}?version={version}" for name in (*PARTS[:2], SCRIPT)]
    cached = ["./", PAGE, PARTS[2], *versioned, *examples]
    return f"const VERSION = {json.dumps(version)}, FILES = {json.dumps(cached)};\n{asset(SERVICE_WORKER)}".encode()


def prepare_site(
    folder: Path, recognizer: Recognizer, config: Config, examples: Sequence[Path], on_step: Callable[[str], None]
) -> Runtime:
    """Check before the export that the page can be written, and return its runtime."""
    check_page(recognizer, config)
    check_replaceable_folder(folder, _names(folder), ALWAYS)
    for path in examples:
        audio_info(path)
    return browser_runtime(on_step)


def write_site(
    folder: Path,
    name: str,
    bundle: Bundle,
    recognizer: Recognizer,
    files: Mapping[str, Path],
    runtime: Runtime,
    examples: Sequence[Path],
) -> int:
    """Write a page; an older page is replaced as a whole, as in `replace_bundle`.

    Args:
        folder: folder of the page.
        name: name of the model.
        bundle: bundle of the model.
        recognizer: the model.
        files: exported programs and their data files, by name.
        runtime: from `prepare_site`.
        examples: recordings that the page offers.

    Returns:
        Megabytes that a browser downloads before it can recognise.
    """
    if WAVEFORM not in files:
        must = "the model of a page must be one program, from whole recordings to log_probs"
        raise InputError(f"{must}; it is {', '.join(files)}.")
    if DATA[WAVEFORM] in files:
        size = files[DATA[WAVEFORM]].stat().st_size
        must = f"the model of a page must fit into one ONNX file, of at most {MAX_BYTES:,} bytes"
        raise InputError(f"{must}; its weights have {size:,}. Add --quantize int8, or export a smaller model.")
    program = files[WAVEFORM].read_bytes()
    contents = site_files(name, recognizer, bundle.config, program, runtime, examples, bundle.card)

    def write(unfinished: Path) -> None:
        unfinished.mkdir(parents=True)
        for file, content in contents.items():
            (unfinished / file).write_bytes(content)

    replace_folder(folder, _names(folder), ALWAYS, write)
    return megabytes(contents)


def _names(folder: Path) -> set[str]:
    """Return the names of files that an older page may have."""
    present = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return {*ALWAYS, CARD, *filter(EXAMPLE.fullmatch, present)}
