"""python -m asr.export MODEL -o FOLDER: write a model as ONNX, for runtimes that are not torch."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from asr.cli.command import DECODERS, audio_progress, progress_bar, run_command
from asr.errors import InputError

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch import Tensor

    from asr.checkpoint.bundle import Bundle
    from asr.data.manifest import Utterance
    from asr.onnx.agreement import Difference
    from asr.recognition.recognizer import Recognizer

SMALLER = {
    "int8": "products by 8-bit weights",
    "fp16": "half of the size alone, since processors compute it in float32 all the same",
}
PACKAGES = ("onnx", "onnxscript", "onnxruntime")  # the extra `onnx`


def main(arguments: Sequence[str] | None = None) -> int:
    """Export; print what was written, and how it compares with the model."""
    options = _parser().parse_args(arguments)
    from asr.checkpoint.exported import check_exported, replace_exported
    from asr.checkpoint.hub import path_of
    from asr.checkpoint.load import bundle_recognizer, read_model
    from asr.onnx.agreement import recordings, tokens_text
    from asr.onnx.programs import all_programs, differences, written_down
    from asr.onnx.quantization import QUANTIZATIONS
    from asr.onnx.runtime import check_installed

    check_installed(PACKAGES, "asr.export")
    path = path_of(options.model)
    bundle = _with_decoder(read_model(path), options.decode)
    if bundle.program is not None:
        raise InputError(f"{path}: a model to be exported must have its weights; this one is exported already.")
    recognizer = bundle_recognizer(bundle, path)
    _check_encoder(recognizer, bundle)
    _check_decoder(recognizer, bundle)
    check_exported(options.output, bundle)
    utterances = _utterances(options)
    audio = recordings(recognizer.model.features, options.audio)
    with progress_bar() as progress:
        task = progress.add_task("", total=None)

        def on_step(description: str) -> None:
            progress.update(task, description=description)

        front_end, net = written_down(recognizer.model, on_step)
        programs = all_programs(front_end, net, recognizer.model, bundle.config)
        compared = _compared(audio, differences(recognizer, bundle.config, programs, audio, on_step))
    figures = ""
    if options.quantize is not None:
        smaller = QUANTIZATIONS[options.quantize](net)
        programs = all_programs(front_end, smaller, recognizer.model, bundle.config)
        figures = _figures(options, recognizer, bundle, {"float32": net, options.quantize: smaller}, utterances)
    contents = {name: program.SerializeToString() for name, program in programs.items()}
    card = _card(options, bundle, recognizer, programs, compared, figures)
    replace_exported(options.output, bundle, contents, tokens_text(recognizer.model.tokenizer.pieces), card)
    sizes = ", ".join(f"{name} ({len(content) / 1e6:.1f} MB)" for name, content in contents.items())
    print(f"{options.output}: {sizes}")
    print(compared)
    if figures:
        print(f"\n{figures}")
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
    quantize = ", ".join(f"{name}: {about}" for name, about in SMALLER.items())
    parser.add_argument("--quantize", choices=SMALLER, help=f"make the programs smaller; {quantize}")
    manifest = "JSONL: on it the WER is measured before and after --quantize"
    parser.add_argument("--manifest", metavar="FILE", help=manifest)
    parser.add_argument("--audio", metavar="FILE", nargs="+", default=[], help=audio)
    return parser


def _with_decoder(bundle: "Bundle", name: str | None) -> "Bundle":
    """Take another decoder than the model's own, if one is named."""
    from asr.checkpoint.load import decoder_settings

    instead = {} if name is None else {"name": name}
    return replace(bundle, config=bundle.config | {"decode": decoder_settings(bundle, instead)})


def _check_encoder(recognizer: "Recognizer", bundle: "Bundle") -> None:
    """Check that the encoder is one that hears whole recordings: of a stream, its steps would have to be exported.

    Raises:
        InputError: it hears streams.
    """
    if hasattr(recognizer.model.encoder, "initial_state"):
        must = "the encoder of an exported model must hear whole recordings"
        name = bundle.config["encoder"]["name"]
        raise InputError(f"{must}; encoder={name} hears streams, whose steps are not exported yet.")


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


def _utterances(options: argparse.Namespace) -> "list[Utterance]":
    """What the WER is measured on.

    Raises:
        InputError: there is nothing to compare, or the manifest is damaged.
    """
    from asr.data.manifest import read_manifest

    if options.manifest is None:
        return []
    if options.quantize is None:
        raise InputError("--manifest must go with --quantize; without it the model's WER is that of its programs.")
    return read_manifest(options.manifest)


def _figures(
    options: argparse.Namespace,
    recognizer: "Recognizer",
    bundle: "Bundle",
    nets: "Mapping[str, ModelProto]",
    utterances: "Sequence[Utterance]",
) -> str:
    """Measure nets before and after, and write what was measured."""
    from asr.onnx.figures import measured, speeds, table
    from asr.onnx.programs import running

    contents = {name: net.SerializeToString() for name, net in nets.items()}
    rates = speeds(recognizer, contents)
    rows = []
    for name, content in contents.items():
        smaller = running(recognizer, bundle.config, content)
        with audio_progress(f"WER of {name}", utterances) as advance:
            rows.append(measured(smaller, content, rates[name], options.manifest, utterances, advance).row(name))
    words = f"; WER: on {Path(options.manifest).name}" if utterances else "; WER: give --manifest"
    how = f"Speed: 10 s of audio alone, on one thread of this processor, features not counted{words}."
    return f"{table(rows)}\n\n{options.quantize}: {SMALLER[options.quantize]}. {how}\n"


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
    figures: str,
) -> str:
    from asr.checkpoint.hub import is_address
    from asr.checkpoint.load import BUNDLE
    from asr.onnx.card import card, described

    model, path = recognizer.model, Path(options.model).resolve()
    return card(
        name=options.output.resolve().name,
        source=options.model if is_address(options.model) else path.parent.name if path.name == BUNDLE else path.name,
        programs=[(name, program.ByteSize(), described(program)) for name, program in programs.items()],
        sample_rate=model.features.sample_rate,
        frame_seconds=model.frame_seconds,
        compared=compared,
        figures=figures,
        model_card=bundle.card,
    )


if __name__ == "__main__":
    run_command(main)
