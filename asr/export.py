"""python -m asr.export MODEL -o FOLDER: export a model to ONNX or to Hugging Face's transformers."""

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from asr.base.system.files import check_apart, real
from asr.core.cli.command import add_base, add_latency, audio_progress, check_language, progress_bar, run_command
from asr.core.cli.parser import CommandParser
from asr.core.decoder_choice import DECODERS, with_decoder
from asr.errors import InputError

if TYPE_CHECKING:
    from onnx import ModelProto

    from asr.apps.export.agreement import ProgramDifference
    from asr.apps.export.browser_runtime import Runtime
    from asr.apps.export.programs import Files
    from asr.apps.export.sherpa_layouts import SherpaLayout
    from asr.core.checkpoint.bundle import Bundle
    from asr.core.data.manifest import Utterance
    from asr.core.recognition.recognizer import Recognizer

SMALLER = {
    "int8": "matrix products with 8-bit weights",
    "fp16": "half the size, but not faster, since processors compute in float32",
}
ONNX, HUGGING_FACE = "onnx", "huggingface"
OPTIONS = {
    ONNX: ("decode", "latency", "quantize", "manifest", "audio", "web", "example"),
    HUGGING_FACE: ("license",),
}  # options of only one format
LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,39}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Export; print the files and the comparison with the model."""
    options = _parser().parse_args(arguments)
    _check_options(options)
    if options.example and not options.web:
        raise InputError("--example needs --web; it is for the page.")
    if options.to == HUGGING_FACE:
        return _publish(options)
    from asr.apps.export.agreement import recordings
    from asr.apps.export.exported_folder import check_exported, replace_exported, token_files
    from asr.apps.export.program_weights import write
    from asr.apps.export.programs import (
        all_programs,
        check_exportable,
        differences,
        is_transducer,
        layout_of,
        smaller,
        why_not_for_sherpa,
        written_down,
    )
    from asr.base.onnx.names import SHERPA, SHERPA_STREAMER, SHERPA_TRANSDUCER, STEP

    recognizer, bundle = _opened(options)
    check_exportable(recognizer, bundle.config)
    if not options.web:
        check_exported(options.output, bundle)
    utterances = _utterances(options)
    audio = recordings(recognizer.model.features, options.audio)
    with TemporaryDirectory() as place:
        folder = Path(place)  # programs are compared, quantised and measured in it
        with progress_bar() as progress:
            task = progress.add_task("", total=None)
            printed: set[str] = set()

            def on_step(description: str) -> None:
                progress.update(task, description=description)
                if progress.disable and (step := description.partition(":")[0]) not in printed:  # a bar would show it
                    printed.add(step)
                    print(step, file=sys.stderr, flush=True)

            runtime = _runtime(options, bundle, recognizer, on_step)
            parts = written_down(recognizer, bundle.config, folder, on_step)
            programs = all_programs(parts, recognizer, bundle.config)
            files = write(programs, folder)
            comparison = differences(recognizer, bundle.config, files, audio, on_step)
            compared = _compared(len(audio) - len(options.audio), len(options.audio), comparison, options.quantize)
        figures = ""
        if options.quantize is not None:
            recognizer.model.to("meta")  # the weights are not used any more; this frees their memory
            smaller_folder = folder / options.quantize
            smaller_folder.mkdir()
            parts = smaller(parts, files, options.quantize, smaller_folder)
            programs = all_programs(parts, recognizer, bundle.config)
            made = {"float32": files, options.quantize: write(programs, smaller_folder)}
            files = made[options.quantize]
            figures = _figures(options, recognizer, bundle, made, utterances)
        if runtime is not None:
            _write_site(options, bundle, recognizer, files, runtime)
        else:
            sizes = {name: path.stat().st_size for name, path in files.items()}
            no_sherpa = why_not_for_sherpa(recognizer, bundle.config)
            layout = layout_of(recognizer, bundle.config)
            card = _card(options, bundle, recognizer, programs, sizes, compared, figures, layout, no_sherpa)
            tokens = token_files(recognizer.model.tokenizer, files, layout is not None and layout.blank_last)
            replace_exported(options.output, bundle, files, tokens, card)
            listed = ", ".join(f"{name} ({size / 1e6:.1f} MB)" for name, size in sizes.items())
            print(f"{options.output}: {listed}")
            if no_sherpa:
                transducer = SHERPA_TRANSDUCER if recognizer.model.encoder.streaming is None else SHERPA_STREAMER
                left_out = transducer if is_transducer(recognizer) else [SHERPA]
                print(f"Left out: {', '.join(left_out)}. {no_sherpa}")
    print(compared)
    if recognizer.model.encoder.streaming is not None and STEP not in files:
        print(
            "In asr, the programs are for whole recordings: a stream recognises its last seconds again with each chunk."
        )
    if recognizer.model.prompt is not None and options.language is None:
        print("The programs recognise without the label of the model's prompt; --language gives them a language.")
    if figures:
        print(f"\n{figures}")
    return 0


def _parser() -> argparse.ArgumentParser:
    description = (
        "Export a model to ONNX, for runtimes without torch and for asr.evaluate and asr.transcribe. With "
        "--to huggingface, write a folder that transformers loads as ParakeetForCTC, RNNT or TDT, with a model card."
    )
    parser = CommandParser(prog="python -m asr.export", description=description)
    parser.add_argument("model", metavar="MODEL", help="a run folder, a bundle, or a .ckpt")
    add_base(parser)
    output = "folder for the programs, tokens.txt and README.md; an existing folder must be empty or contain only an "
    output += "older export, which is replaced"
    parser.add_argument("-o", "--output", metavar="FOLDER", type=Path, required=True, help=output)
    parser.add_argument("--to", choices=(ONNX, HUGGING_FACE), default=ONNX, help="format of the export (default onnx)")
    decode = "decoder of the exported model for asr's commands, instead of the model's own"
    parser.add_argument("--decode", metavar="NAME", help=f"{decode}: {', '.join(DECODERS)}")
    add_latency(parser)
    audio = "recordings on which programs and model are compared, in addition to synthetic audio (first 30 s of each)"
    quantize = ", ".join(f"{name}: {about}" for name, about in SMALLER.items())
    parser.add_argument("--quantize", choices=SMALLER, help=f"quantise the programs; {quantize}")
    manifest = "JSONL manifest to measure the WER before and after --quantize"
    parser.add_argument("--manifest", metavar="FILE", help=manifest)
    parser.add_argument("--audio", metavar="FILE", nargs="+", default=[], help=audio)
    language = "language for the model card, such as en, with --to huggingface; with --to onnx, the language of the"
    parser.add_argument("--language", metavar="CODE", help=f"{language} programs of a model with a prompt")
    licence = "licence for the model card, by its name on the hub, such as cc-by-4.0; with --to huggingface"
    parser.add_argument("--license", metavar="NAME", help=licence)
    web = "write a page that recognises speech in the browser instead: a folder for any static file server"
    parser.add_argument("--web", action="store_true", help=f"{web}; the runtime is downloaded once, from npm")
    example = "recordings for the page of --web"
    parser.add_argument("--example", metavar="FILE", type=Path, nargs="+", default=[], help=example)
    return parser


def _check_options(options: argparse.Namespace) -> None:
    """Check that all options apply to the chosen format."""
    for form, names in OPTIONS.items():
        for name in names:
            if form != options.to and getattr(options, name):
                raise InputError(f"--{name} needs --to {form}; it has no effect with --to {options.to}.")
    if options.to == HUGGING_FACE:
        check_language(options.language)
    if options.license is not None and not LICENCE.fullmatch(options.license):
        raise InputError(f"--license must be a short lower-case name, such as cc-by-4.0; got {options.license!r}.")


def _publish(options: argparse.Namespace) -> int:
    """Write a folder for transformers, with a model card; print the command to upload it."""
    from asr.apps.convert.huggingface.publication import publish
    from asr.core.hub.download import path_of

    about = {name: getattr(options, name) for name in ("language", *OPTIONS[HUGGING_FACE])}
    files, left_out = publish(path_of(options.model), options.output, **about)
    print(f"{options.output}: {', '.join(files)}")
    if left_out:
        print(f"Left out: {', '.join(left_out)}. Parakeet has no CTC head in addition to a transducer.")
    unknown = [name for name, value in about.items() if value is None]
    if unknown:
        print(f"README.md has no {' and no '.join(unknown)}: give --{' and --'.join(unknown)} if known.")
    print(f"hf upload OWNER/{real(options.output).name} {options.output}")
    return 0


def _opened(options: argparse.Namespace) -> "tuple[Recognizer, Bundle]":
    """Return the recogniser to export, and its bundle without the weights, which would be in memory twice."""
    from asr.apps.export.fixed_prompt import with_language
    from asr.core.checkpoint.load import bundle_recognizer, read_model, stored_at
    from asr.core.hub.download import path_of
    from asr.core.recognition.latency import set_latency

    path, base = path_of(options.model), None if options.base is None else path_of(options.base)
    check_apart("--output", options.output, [stored_at(given) for given in (path, base) if given is not None])
    bundle = read_model(path, base)
    model = replace(bundle, config=with_decoder(bundle.config, options.decode))
    if model.programs:
        raise InputError(f"{path}: a model to export must have weights; this one is exported already.")
    recognizer, bundle = with_language(bundle_recognizer(model, path), model, options.language)
    if options.latency is not None:
        bundle.config["encoder"]["chunk_frames"] = set_latency(recognizer.model, options.latency, "--latency")
    return recognizer, replace(bundle, weights={})


def _utterances(options: argparse.Namespace) -> "list[Utterance]":
    """Read the manifest for the WER."""
    from asr.core.data.manifest import read_manifest

    if options.manifest is None:
        return []
    if options.quantize is None:
        raise InputError("--manifest needs --quantize; without it, programs and model have the same WER.")
    return read_manifest(options.manifest)


def _runtime(
    options: argparse.Namespace, bundle: "Bundle", recognizer: "Recognizer", on_step: Callable[[str], None]
) -> "Runtime | None":
    """Prepare the browser runtime for the page of --web; None without --web."""
    from asr.apps.export.site import prepare_site

    if not options.web:
        return None
    return prepare_site(options.output, recognizer, bundle.config, options.example, on_step)


def _write_site(
    options: argparse.Namespace,
    bundle: "Bundle",
    recognizer: "Recognizer",
    files: "Files",
    runtime: "Runtime",
) -> None:
    """Write the page, and print the command to open it."""
    from asr.apps.export.site import write_site

    folder = options.output
    size = write_site(folder, _source(options), bundle, recognizer, files, runtime, options.example)
    print(f"{folder}: a page; a browser downloads {size} MB before the first recognition.")
    print(f"To open it: python -m http.server --directory {shlex.quote(str(folder))}; then open http://localhost:8000")


def _figures(
    options: argparse.Namespace,
    recognizer: "Recognizer",
    bundle: "Bundle",
    made: "Mapping[str, Files]",
    utterances: "Sequence[Utterance]",
) -> str:
    """Measure size, speed and WER before and after quantisation; return a table."""
    from asr.apps.export.card import measured, speeds, table
    from asr.apps.export.programs import net_of, running, size

    file, net = net_of(recognizer)
    rates = speeds(recognizer, {name: files[file] for name, files in made.items()}, net)
    rows = []
    for name, files in made.items():
        decoded = running(recognizer, bundle.config, files)
        with audio_progress(f"WER of {name}", utterances) as on_progress:
            figures = measured(decoded, size(files), rates[name], options.manifest, utterances, on_progress)
            rows.append(figures.row(name))
    words = f"; WER: on {Path(options.manifest).name}" if utterances else "; WER: only with --manifest"
    how = f"Speed: on one recording of 10 s, with one thread of this processor, without features{words}."
    return f"{table(rows)}\n\n{options.quantize}: {SMALLER[options.quantize]}. {how}\n"


def _compared(
    num_made: int, num_recordings: int, differences: "Mapping[str, ProgramDifference]", quantize: str | None
) -> str:
    """Return a sentence on the comparison of programs and model, and its result."""
    worst = max(differences.values(), key=lambda difference: difference.largest)
    begin = "Compared" if quantize is None else f"Before quantisation to {quantize}, compared"
    audio = f"{num_made} made-up signals"
    if num_recordings:
        audio += f" and {num_recordings} recording{'s' if num_recordings > 1 else ''}"
    comparison = f"{begin} with the model on {audio}, each alone and all in one batch"
    result = f"{comparison}: outputs differ by at most {worst.largest:.1g} ({worst.where}), and texts are equal."
    more = f"After quantisation to {quantize}, outputs and texts may differ: the table has both WERs"
    return result if quantize is None else f"{result} {more}."


def _source(options: argparse.Namespace) -> str:
    """Return the name of the exported model."""
    from asr.core.checkpoint.load import BUNDLE
    from asr.core.hub.download import is_address

    path = real(Path(options.model))
    return str(options.model) if is_address(options.model) else path.parent.name if path.name == BUNDLE else path.name


def _card(
    options: argparse.Namespace,
    bundle: "Bundle",
    recognizer: "Recognizer",
    programs: "Mapping[str, ModelProto]",
    sizes: Mapping[str, int],
    compared: str,
    figures: str,
    layout: "SherpaLayout | None",
    no_sherpa: str,
) -> str:
    from asr.apps.export.card import card, described

    return card(
        recognizer,
        max_symbols=bundle.config["decode"].get("max_symbols"),
        name=real(options.output).name,
        source=_source(options),
        files=[(name, size, described(name, programs)) for name, size in sizes.items()],
        compared=compared,
        figures=figures,
        no_sherpa=no_sherpa,
        layout=layout,
        model_card=bundle.card,
    )


if __name__ == "__main__":
    run_command(main)
