"""python -m benchmarks.gpu.pack DIR: write a folder with which a bare machine with a GPU runs `benchmarks.gpu`.

The machine has no network. It has Python, torch with CUDA, lightning, transformers and what they need, but not the
packages in WHEELS. The folder has these wheels, the code, speech as Opus with its manifests, texts of a language model,
and run.sh, which installs the wheels below the folder and passes its options to `python -m benchmarks.gpu`:

    bash DIR/run.sh --output-dir RESULTS

The speech is that of manifests: train*.jsonl, dev*.jsonl and test*.jsonl.
"""

import argparse
import gzip
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

from asr.base.audio.encode import encode_audio
from asr.base.audio.load import load_waveform
from asr.core.cli.command import run_command
from asr.core.data.manifest import Utterance, read_manifest, write_manifest
from asr.errors import InputError
from benchmarks.gpu.counts import ROOT
from benchmarks.gpu.speech import SAMPLE_RATE, TEXTS

MAX_BYTES = 54 * 2**20
KINDS = ("train", "dev", "test")  # the beginnings of the names of manifests
# Packages that an image with torch, lightning and transformers lacks; their versions are those that are installed here.
WHEELS = (
    *("hydra-core", "omegaconf", "jiwer", "rapidfuzz", "orjson", "soundfile", "cffi", "pycparser", "soxr"),
    "camel-kenlm",
)
BUILT = ("antlr4-python3-runtime",)  # has no wheel, only a source distribution
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014", "manylinux1")
MIN_KILOBITS, MAX_KILOBITS = 6, 256  # of Opus in libsndfile, whose compression is linear between them
CODE = "code.tar.gz"
RUN = """#!/bin/bash
# Installs the wheels and the code beside this file, without a network, and runs python -m benchmarks.gpu.
set -euo pipefail
pack=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --disable-pip-version-check \\
  --target "$work/packages" "$pack"/wheels/*.whl
mkdir "$work/code"
tar -xf "$pack/code.tar.gz" -C "$work/code"
export PYTHONPATH=$work/code:$work/packages PYTHONSAFEPATH=1 TMPDIR=$work  # a killed step leaves its files there
"$python" -m benchmarks.gpu --audio "$pack/audio" --output-dir gpu_benchmarks "$@"
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the folder, and print its sizes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.pack", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="new folder to write")
    parser.add_argument("--manifests", nargs="+", type=Path, required=True, metavar="MANIFEST", help="speech")
    parser.add_argument("--texts", type=Path, metavar="FILE", help="texts of a 3-gram, one sentence per line")
    parser.add_argument("--kilobits", type=float, default=14.0, metavar="K", help="Opus, per second (default: 14)")
    parser.add_argument("--python", default="3.12", metavar="VERSION", help="the machine's Python (default: 3.12)")
    parser.add_argument("--num-workers", type=int, default=1, metavar="N", help="processes that encode (default: 1)")
    options = parser.parse_args(arguments)
    if not MIN_KILOBITS <= options.kilobits <= MAX_KILOBITS:
        must = f"--kilobits must be from {MIN_KILOBITS} to {MAX_KILOBITS}"
        raise InputError(f"{must}, which libsndfile encodes; got {options.kilobits:g}.")
    for kind in KINDS:
        if not any(path.name.startswith(kind) for path in options.manifests):
            raise InputError(f"--manifests must have one whose name begins with {kind}; got none. Rename or add it.")
    if options.folder.exists():
        raise InputError(f"DIR must be a new folder; got {options.folder}, which exists. Remove it.")
    (options.folder / "audio").mkdir(parents=True)
    add_code(options.folder / CODE)
    add_wheels(options.folder / "wheels", options.python)
    if options.texts is not None:
        (options.folder / "audio" / TEXTS).write_bytes(gzip.compress(options.texts.read_bytes(), mtime=0))
    for path in options.manifests:
        seconds = add_speech(path, options.folder / "audio", options.kilobits, options.num_workers)
        print(f"{path.name}: {seconds / 3600:.2f} h", flush=True)
    script = options.folder / "run.sh"
    script.write_text(RUN, encoding="utf-8")
    script.chmod(0o755)
    check_size(options.folder)
    return 0


def add_code(path: Path) -> None:
    """Pack the files of the checkout that git tracks, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    with tarfile.open(path, "w:gz") as archive:
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).exists():
                archive.add(ROOT / name, name)


def add_wheels(folder: Path, python: str) -> None:
    """Download the wheels for Linux on x86-64, and build those that are only distributed as source."""
    pip = [sys.executable, "-m", "pip"]
    names = {name: f"{name}=={version(name)}" for name in (*WHEELS, *BUILT)}
    tags = [option for platform in PLATFORMS for option in ("--platform", f"{platform}_x86_64")]
    machine = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, *tags]
    download = [*pip, "download", "--quiet", "--no-deps", "--dest", str(folder), *machine]
    subprocess.run([*download, *(names[name] for name in WHEELS)], check=True)
    build = [*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder)]
    subprocess.run([*build, *(names[name] for name in BUILT)], check=True)


def add_speech(manifest: Path, folder: Path, kilobits: float, num_workers: int) -> float:
    """Encode the audio of a manifest as Opus, and write its manifest beside it; return the seconds of audio."""
    utterances = read_manifest(manifest)
    (folder / manifest.stem).mkdir()
    files = [folder / manifest.stem / f"{number}.opus" for number in range(len(utterances))]
    rates = [kilobits] * len(utterances)
    if num_workers > 1:
        with ProcessPoolExecutor(num_workers, mp_context=get_context("spawn")) as pool:
            encoded = [*pool.map(encode_file, utterances, files, rates, chunksize=8)]
    else:
        encoded = [*map(encode_file, utterances, files, rates)]
    write_manifest(folder / manifest.name, encoded)
    return sum(utterance.duration for utterance in encoded)


def encode_file(utterance: Utterance, path: Path, kilobits: float) -> Utterance:
    """Write an utterance's audio to an Opus file; return the utterance of that file."""
    offset, duration = utterance.offset, None if utterance.offset is None else utterance.duration
    waveform = load_waveform(utterance.audio_filepath, SAMPLE_RATE, offset=offset, duration=duration).clamp(-1, 1)
    compression = 1 - (kilobits - MIN_KILOBITS) / (MAX_KILOBITS - MIN_KILOBITS)
    path.write_bytes(encode_audio(waveform.numpy(), SAMPLE_RATE, "OGG", "OPUS", compression))
    return replace(utterance, audio_filepath=str(path), offset=None, duration=len(waveform) / SAMPLE_RATE)


def check_size(folder: Path) -> None:
    """Print the size of each part of the folder.

    Raises:
        InputError: the folder is larger than MAX_BYTES.
    """
    sizes = {
        path.name: sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())
        for path in sorted(folder.iterdir())
    }
    text = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in sizes.items())
    total = sum(sizes.values())
    print(f"{folder}: {total / 2**20:.1f} MiB ({text})")
    if total > MAX_BYTES:
        must = f"DIR must have at most {MAX_BYTES:,} bytes"
        raise InputError(f"{must}; got {total:,}. Give fewer --kilobits or fewer --manifests.")


if __name__ == "__main__":
    run_command(main)
