"""python -m benchmarks.large_export [KEY=VALUE...]: export a model that is larger than an ONNX file can be.

The model has random weights and the shapes of parakeet-tdt-0.6b-v3, changed by the settings KEY=VALUE. For float32 and
each quantisation, a row has the wall time, the CPU time and the peak of resident memory of `asr.export`; the size of
the folder; the largest difference of the encoder's output from torch's, divided by the largest output; and the numbers
of tokens that asr and sherpa-onnx emit with the programs. The random model emits a token in each frame.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from tokenizers import Tokenizer
from torch import nn

from asr.apps.export.agreement import made_audio
from asr.apps.export.exported_folder import SHERPA_TOKENS
from asr.apps.export.programs import net_of
from asr.base.onnx.names import ENCODER, NET_INPUTS, SHERPA_TRANSDUCER
from asr.base.onnx.session import run_net, session
from asr.components.tokenizer.huggingface import FILE
from asr.core.build import build_features, build_model, build_tokenizer
from asr.core.checkpoint.bundle import Bundle, replace_bundle
from asr.core.checkpoint.load import load_recognizer, model_config
from asr.core.cli.command import run_command
from asr.interfaces import BLANK_ID, TransducerHead
from benchmarks import results
from benchmarks.machine import about, in_fresh_process
from benchmarks.results import Columns, Results, fixed
from benchmarks.training_speech import composed

SETTINGS = [
    *("features=slaney_fbank", "features.num_mel_bins=128", "encoder=fast_conformer_l", "encoder.dim=1024"),
    *("encoder.num_layers=24", "encoder.block.feed_forward_bias=false", "encoder.block.attention.bias=false"),
    *("encoder.block.convolution.bias=false", "head=tdt", "head/predictor=lstm", "head.predictor.dim=640"),
    *("head.predictor.num_layers=2", "head.joint_dim=640", "head.ctc_weight=0"),
]
FLOAT32, QUANTIZATIONS = "float32", ("int8", "fp16")
NUM_CHARACTERS = 8192  # tokens of the model, without --tokenizer
FIRST_CHARACTER = 0x4E00  # the first of 20,992 consecutive characters in Unicode
EMITTING = 10.0  # change of two biases that makes the random model emit a token in each frame
SAMPLE_RATE = 16000
COLUMNS: Columns = {
    "weights": str,
    "seconds": fixed(0),
    "CPU seconds": fixed(0),
    "peak GB": fixed(1),
    "GB on disk": fixed(2),
    "largest difference": "{:.1e}".format,
    "tokens, asr": fixed(0),
    "tokens, sherpa-onnx": fixed(0),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row for float32 and for each quantisation."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_export", description=__doc__)
    parser.add_argument("settings", metavar="KEY=VALUE", nargs="*", help="settings of the model")
    tokenizer = f"tokenizer.json of the model (default: {NUM_CHARACTERS} characters)"
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help=tokenizer)
    names = (FLOAT32, *QUANTIZATIONS)
    parser.add_argument("--weights", nargs="+", choices=names, default=names, help="exports to run (default: all)")
    results.add_options(parser)
    parser.set_defaults(turns=1)
    options = parser.parse_args(arguments)
    facts = about(options)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        num_weights = in_fresh_process(make_model, folder / "bundle", options.settings, options.tokenizer)
        print(f"{num_weights / 1e6:.0f} million weights\n", flush=True)
        table = Results("large_export", COLUMNS, bars="seconds")
        for name in options.weights:
            figures = export(folder / "bundle", folder / name, [] if name == FLOAT32 else ["--quantize", name])
            size = sum(path.stat().st_size for path in (folder / name).iterdir()) / 1e9
            difference = in_fresh_process(largest_difference, folder / "bundle", folder / name)
            tokens = [in_fresh_process(count, folder / name) for count in (num_tokens_of_asr, num_tokens_of_sherpa)]
            table.row(name, *figures, size, difference, *tokens)
        table.save(options.output_dir, facts)
    return 0


def make_model(folder: Path, settings: Sequence[str], tokenizer_file: Path | None) -> int:
    """Write a bundle with random weights; return the number of weights."""
    torch.manual_seed(0)
    if tokenizer_file is None:
        content, kind = b"", ["tokenizer=char"]
    else:
        content = tokenizer_file.read_bytes()
        size = Tokenizer.from_buffer(content).get_vocab_size()
        kind = ["tokenizer=huggingface", f"tokenizer.vocab_size={size}"]
    config = composed([*SETTINGS, *kind, *settings]).components
    tokenizer, features = build_tokenizer(config), build_features(config)
    if tokenizer_file is None:
        tokenizer.fit(map(chr, range(FIRST_CHARACTER, FIRST_CHARACTER + NUM_CHARACTERS)))
    else:
        tokenizer.load({FILE: content})
    model = build_model(config, tokenizer, features)
    head = cast(TransducerHead, model.head)
    bias = cast(nn.Linear, cast(nn.Module, head.joiner).output).bias.data  # of V tokens and the durations
    bias[BLANK_ID] -= EMITTING
    bias[tokenizer.vocab_size + head.durations.index(1)] += EMITTING
    replace_bundle(folder, Bundle(model_config(config), tokenizer.files(), model.state_dict(), card=""))
    return sum(weight.numel() for weight in model.parameters())


def export(bundle: Path, folder: Path, options: Sequence[str]) -> tuple[float, float, float]:
    """Export in a new process; return its wall time and CPU time in seconds, and its peak memory in GB."""
    command = [sys.executable, "-m", "asr.export", str(bundle), "-o", str(folder), *options]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=sys.stderr)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss / 1e9


@torch.inference_mode()
def largest_difference(bundle: Path, folder: Path) -> float:
    """Return the largest difference of encoder.onnx from torch, relative to the largest output."""
    recognizer = load_recognizer(bundle)
    features, (_, net) = recognizer.model.features, net_of(recognizer)
    opened = session(folder / ENCODER, NET_INPUTS, net.outputs)
    difference = largest = 0.0
    for waveform in made_audio(features.sample_rate).values():
        batch = features(waveform)[None]
        lengths = torch.tensor([batch.shape[1]])
        expected, *_ = net(batch, lengths)
        out, _ = run_net(opened, batch, lengths)
        difference = max(difference, float((out - expected).abs().max()))
        largest = max(largest, float(expected.abs().max()))
    return difference / largest


@torch.inference_mode()
def num_tokens_of_asr(folder: Path) -> int:
    """Return the number of tokens that asr recognises with ONNX Runtime."""
    recognizer = load_recognizer(folder)
    features, num_tokens = recognizer.model.features, 0
    for waveform in made_audio(features.sample_rate).values():  # `transcribe` would skip it, since it is not speech
        batch = features(waveform)[None]
        [hypotheses] = recognizer.hypotheses(recognizer.model(batch, torch.tensor([batch.shape[1]])))
        num_tokens += len(hypotheses[0].tokens)
    return num_tokens


def num_tokens_of_sherpa(folder: Path) -> int:
    """Return the number of tokens that sherpa-onnx recognises."""
    import sherpa_onnx

    model = sherpa_onnx.OfflineRecognizer.from_transducer(
        *(str(folder / name) for name in SHERPA_TRANSDUCER),
        tokens=str(folder / SHERPA_TOKENS),
        model_type="nemo_transducer",
    )
    num_tokens = 0
    for waveform in made_audio(SAMPLE_RATE).values():
        stream = model.create_stream()
        stream.accept_waveform(SAMPLE_RATE, waveform.numpy())
        model.decode_stream(stream)
        num_tokens += len(stream.result.tokens)
    return num_tokens


if __name__ == "__main__":
    run_command(main)
