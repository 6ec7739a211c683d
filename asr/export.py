"""python -m asr.export MODEL -o FOLDER: write a model as ONNX, for runtimes that are not torch."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from asr.cli.command import DECODERS, progress_bar, run_command
from asr.errors import InputError

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch import Tensor

    from asr.checkpoint.bundle import Bundle
    from asr.onnx.agreement import Difference
    from asr.recognition.recognizer import Recognizer

PACKAGES = ("onnx", "onnxscript", "onnxruntime")  # the extra `onnx`
OnStep = Callable[[str], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Export; print what was written, and how it compares with the model."""
    options = _parser().parse_args(arguments)
    from asr.checkpoint.exported import check_exported, replace_exported
    from asr.checkpoint.hub import path_of
    from asr.checkpoint.load import bundle_recognizer, read_model
    from asr.onnx.agreement import tokens_text
    from asr.onnx.runtime import check_installed

    check_installed(PACKAGES, "asr.export")
    path = path_of(options.model)
    bundle = _with_decoder(read_model(path), options.decode)
    if bundle.program is not None:
        raise InputError(f"{path}: a model to be exported must have its weights; this one is exported already.")
    recognizer = bundle_recognizer(bundle, path)
    _check_decoder(recognizer, bundle)
    check_exported(options.output, bundle)
    audio = _audio(recognizer, options.audio)
    with progress_bar() as progress:
        task = progress.add_task("", total=None)
        programs, differences = _export(recognizer, bundle, audio, lambda step: progress.update(task, description=step))
    compared = _compared(audio, differences)
    contents = {name: program.SerializeToString() for name, program in programs.items()}
    card = _card(options, bundle, recognizer, programs, compared)
    replace_exported(options.output, bundle, contents, tokens_text(recognizer.model.tokenizer.pieces), card)
    sizes = ", ".join(f"{name} ({len(content) / 1e6:.1f} MB)" for name, content in contents.items())
    print(f"{options.output}: {sizes}")
    print(compared)
    return 0


def _parser() -> argparse.ArgumentParser:
    description = "Write a model as ONNX: for runtimes without torch, and for asr.evaluate and asr.transcribe."
    parser = argparse.ArgumentParser(prog="python -m asr.export", description=description)
    parser.add_argument("model", metavar="MODEL", help="a run folder, a bundle, or a .ckpt")
    output = "gets the programs, tokens.txt and README.md; an older export there is replaced"
    parser.add_argument("-o", "--output", metavar="FOLDER", type=Path, required=True, help=output)
    decode = "of the exported model, for asr's own commands, instead of the model's own"
    parser.add_argument("--decode", choices=DECODERS, metavar="NAME", help=f"{decode}: {', '.join(DECODERS)}")
    audio = "recordings on which the programs are compared with the model, beside made audio (the first 30 s of each)"
    parser.add_argument("--audio", metavar="FILE", nargs="+", default=[], help=audio)
    return parser


def _with_decoder(bundle: "Bundle", name: str | None) -> "Bundle":
    """Take another decoder than the model's own, if one is named."""
    from asr.checkpoint.load import decoder_settings

    instead = {} if name is None else {"name": name}
    return replace(bundle, config=bundle.config | {"decode": decoder_settings(bundle, instead)})


def _check_decoder(recognizer: "Recognizer", bundle: "Bundle") -> None:
    """Check that log_probs are all that the decoder asks of the head.

    Raises:
        InputError: it asks for more.
    """
    more = [need for need in recognizer.decode.needs if need != "frame_head"]
    if more:
        must = "the decoder of an exported model must need the log_probs of frames alone"
        given = f"decode={bundle.config['decode']['name']} needs a {more[0]}, which is not exported yet"
        cure = " To export the CTC head beside it, add --decode greedy." if recognizer.model.head.frame_head else ""
        raise InputError(f"{must}; {given}.{cure}")


def _audio(recognizer: "Recognizer", paths: Sequence[str]) -> "dict[str, Tensor]":
    """What the programs are compared on, by name."""
    from asr.audio.load import audio_info, load_waveform
    from asr.onnx.agreement import MOST_SECONDS, made_audio

    features = recognizer.model.features
    audio = made_audio(features.sample_rate)
    for path in paths:
        duration = audio_info(path).num_samples / audio_info(path).sample_rate
        longest = MOST_SECONDS if duration > MOST_SECONDS else None
        audio[path] = load_waveform(path, features.sample_rate, offset=None if longest is None else 0, duration=longest)
        if features.num_frames(len(audio[path])) == 0:
            raise InputError(f"--audio must be recordings of a frame at least; {path} has {duration:.3f} s.")
    return audio


def _export(
    recognizer: "Recognizer", bundle: "Bundle", audio: "Mapping[str, Tensor]", on_step: OnStep
) -> "tuple[dict[str, ModelProto], dict[str, Difference]]":
    """Write the programs down and compare each with the model.

    Raises:
        InputError: the model cannot be exported, or a program is not what the model is.
    """
    from asr.build import build_decoder
    from asr.checkpoint.exported import PROGRAM, SHERPA, WAVEFORM
    from asr.onnx.agreement import OF_FEATURES, OF_SHERPA, OF_WAVEFORMS, check, difference
    from asr.onnx.program import export_front_end, export_net, for_sherpa, is_for_sherpa, joined
    from asr.onnx.runtime import exported
    from asr.recognition.recognizer import Recognizer

    model = recognizer.model
    on_step("features")
    front_end = export_front_end(model)
    on_step("net")
    net = export_net(model)
    programs, forms = {PROGRAM: net, WAVEFORM: joined(front_end, net)}, {PROGRAM: OF_FEATURES, WAVEFORM: OF_WAVEFORMS}
    if is_for_sherpa(bundle.config["features"]):
        programs[SHERPA], forms[SHERPA] = for_sherpa(net, model), OF_SHERPA
    run = exported(model, net.SerializeToString())
    decoded = Recognizer(run, build_decoder(bundle.config, run), recognizer.calibration)
    differences = {}
    for name, program in programs.items():
        on_step(f"comparing {name}")
        differences[name] = difference(recognizer, decoded, program.SerializeToString(), forms[name], audio)
        check(name, differences[name])
    return programs, differences


def _compared(audio: "Mapping[str, Tensor]", differences: "Mapping[str, Difference]") -> str:
    """Say how the programs were compared with the model, and with what outcome."""
    worst = max(differences.values(), key=lambda difference: difference.largest)
    how = f"Compared with the model on {len(audio)} recordings, each alone and in a batch of all"
    return f"{how}: log_probs differ by {worst.largest:.1g} at most ({worst.where}), and no text does."


def _card(
    options: argparse.Namespace,
    bundle: "Bundle",
    recognizer: "Recognizer",
    programs: "Mapping[str, ModelProto]",
    compared: str,
) -> str:
    from asr.checkpoint.hub import is_address
    from asr.checkpoint.load import BUNDLE
    from asr.onnx.card import card, described
    from asr.onnx.program import OPSET

    model, path = recognizer.model, Path(options.model).resolve()
    return card(
        name=options.output.resolve().name,
        source=options.model if is_address(options.model) else path.parent.name if path.name == BUNDLE else path.name,
        opset=OPSET,
        programs=[(name, program.ByteSize(), described(program)) for name, program in programs.items()],
        sample_rate=model.features.sample_rate,
        frame_seconds=model.frame_seconds,
        compared=compared,
        figures="",
        model_card=bundle.card,
    )


if __name__ == "__main__":
    run_command(main)
