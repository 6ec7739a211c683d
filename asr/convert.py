"""python -m asr.convert MODEL -o OUTPUT: convert a model between asr's bundles and other toolkits' formats."""

import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from asr.base.system.files import check_apart, check_output, message_stream, real, write_whole
from asr.core.cli.command import run_command
from asr.core.cli.parser import CommandParser
from asr.errors import InputError

if TYPE_CHECKING:
    from asr.apps.convert.foreign import Converted

BUNDLE, NEMO, HUGGING_FACE = "bundle", "nemo", "huggingface"
FORMATS = (BUNDLE, NEMO, HUGGING_FACE)
PAD_MODES = ("zeros", "reflect")


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert; print the output and the account of tensors."""
    parser = CommandParser(
        prog="python -m asr.convert",
        description="Convert a model with CTC, RNNT or TDT to a bundle: a Conformer or Fast Conformer of NVIDIA NeMo, "
        "a Parakeet, w2v-BERT 2.0, granite TurboCTC or LASR of transformers, a Zipformer of icefall, or a "
        "model that a package of --plugin reads. With --to nemo, convert a bundle to NeMo; with --to huggingface, to "
        "transformers, if its encoder is a Fast Conformer, one of the others above, or one that a package of --plugin "
        "writes; with --to icefall, a Zipformer to icefall.",
    )
    parser.add_plugins()
    model = (
        "a .nemo archive, a folder of its files or of transformers' files, a checkpoint of icefall or its folder, "
        "what a package of --plugin reads, or hf://OWNER/NAME[@REVISION]; with --to: a bundle"
    )
    parser.add_argument("model", metavar="MODEL", help=model)
    output = "folder or archive to write; an older one is replaced"
    parser.add_argument("-o", "--output", metavar="PATH", type=Path, required=True, help=output)
    formats = f"output format: {', '.join(FORMATS)}, or a format of a package of --plugin (default {BUNDLE})"
    parser.add_argument("--to", metavar="FORMAT", default=BUNDLE, help=formats)
    pad_mode = "padding around a waveform: zeros (default, as in NeMo 3) or reflect (as in NeMo 1)"
    parser.add_argument("--pad-mode", choices=PAD_MODES, help=pad_mode)
    texts = "for a model that was pre-trained only: add a random output layer for the characters of this manifest"
    parser.add_argument("--texts", metavar="MANIFEST", type=Path, help=texts)
    adapter = "with --texts: also add a random adapter block, which halves the frame rate"
    parser.add_argument("--adapter", action="store_true", help=adapter)
    language = "for a model with a tokenizer for each of several languages: convert this one"
    parser.add_argument("--language", metavar="NAME", help=language)
    tokenizer = "for a checkpoint of icefall: its bpe.model or tokens.txt, if it is not near"
    parser.add_argument("--tokenizer", metavar="FILE", type=Path, help=tokenizer)
    average = "for an epoch-N.pt of icefall: the average of the weights of this number of epochs up to N"
    parser.add_argument("--average", metavar="EPOCHS", type=int, help=average)
    source = "authors and licence of the model: a sentence for the model card"
    parser.add_argument("--source", metavar="TEXT", help=source)
    local = "limit attention to this number of encoder frames on each side, for long recordings; MODEL may be a bundle"
    parser.add_argument("--local-attention", metavar="FRAMES", type=int, help=local)
    options = parser.parse_args(arguments)
    if options.to != BUNDLE:
        for option in ("pad_mode", "texts", "adapter", "language", "tokenizer", "average", "source", "local_attention"):
            if getattr(options, option) not in (None, False):
                raise InputError(f"--{option.replace('_', '-')} needs --to bundle; other formats have no such setting.")
        if options.to == NEMO:
            to_archive(options.model, options.output)
        else:
            to_folder(options.model, options.output, options.to)
    elif options.adapter and options.texts is None:
        raise InputError("--adapter needs --texts: only a model that was pre-trained gets an adapter block.")
    else:
        to_bundle(options)
    return 0


def to_bundle(options: Namespace) -> None:
    """Convert another toolkit's model to a bundle."""
    from dataclasses import replace

    from asr.apps.convert.foreign import Choices, errors_of
    from asr.apps.convert.huggingface.convert import from_huggingface
    from asr.apps.convert.huggingface.files import is_huggingface
    from asr.apps.convert.local_attention import is_bundle, with_local_attention
    from asr.apps.convert.nemo.convert import from_nemo
    from asr.apps.convert.packages import fitting, readers
    from asr.core.checkpoint.address import hub_hint, is_address
    from asr.core.checkpoint.bundle import OF_A_BUNDLE, read_bundle, replace_bundle
    from asr.core.checkpoint.load import bundle_folder
    from asr.core.data.manifest import read_manifest
    from asr.core.hub.download import download

    model, output, source, local_attention = options.model, options.output, options.source, options.local_attention
    path, origin = Path(model), real(Path(model)).name
    if is_address(model):
        downloaded = download(model)
        path, origin = downloaded.path, str(downloaded.address)
        source = source or _of_hub(downloaded.address.owner, downloaded.card)
    if not path.exists():
        folders = "a .nemo archive, a folder of its files or of transformers' files"
        must = f"{path}: MODEL must be {folders}, or a model that a package of --plugin reads"
        raise InputError(f"{must}; it does not exist.{hub_hint(path)}")
    with errors_of(path):
        is_of_package = fitting(readers(), path) is not None  # its files may have the names of a bundle's
    is_ours = is_bundle(path) and not is_of_package
    check_apart("--output", output, [bundle_folder(path) if is_ours else path])
    if local_attention is not None and options.texts is None and is_ours:
        bundle = read_bundle(bundle_folder(path))
        replace_bundle(output, with_local_attention(bundle, local_attention, path))
        print(f"{output}: {path}, with local attention to {local_attention} frames on each side")
        return
    if is_ours and all((path / name).is_file() for name in OF_A_BUNDLE):
        raise InputError(f"{path}: this is already a bundle of asr. To convert it, add --to nemo or --to huggingface.")
    texts = None if options.texts is None else [utterance.text for utterance in read_manifest(options.texts)]
    rare = options.language, options.tokenizer, options.average
    choices = Choices(options.pad_mode or PAD_MODES[0], texts, options.adapter, *rare)
    converted = (from_huggingface if is_of_package or is_huggingface(path) else from_nemo)(path, choices)
    if local_attention is not None:
        converted = converted._replace(bundle=with_local_attention(converted.bundle, local_attention, path))
    card = model_card(output, origin, source, converted)
    replace_bundle(output, replace(converted.bundle, card=card))
    print("\n".join([f"{output}: {origin}, {_account(converted)}", *converted.notes]))


def to_archive(model: str, output: Path) -> None:
    """Convert a bundle to a `.nemo` archive."""
    from asr.apps.convert.nemo.archive import write_archive
    from asr.apps.convert.nemo.convert import to_nemo
    from asr.core.checkpoint.bundle import read_bundle
    from asr.core.checkpoint.load import bundle_folder
    from asr.core.hub.download import path_of

    folder = bundle_folder(path_of(model))
    check_output("--output", output, "model.nemo", inputs=[folder])
    files = to_nemo(read_bundle(folder), folder)
    write_whole(output, lambda file: write_archive(file, files))
    print(f"{output}: {', '.join(name for name, _ in files)}", file=message_stream(output))


def to_folder(model: str, output: Path, form: str) -> None:
    """Convert a bundle to a folder for transformers, or in a format of a package."""
    from asr.apps.convert.huggingface.convert import to_huggingface
    from asr.apps.convert.huggingface.files import replace_converted
    from asr.apps.convert.huggingface.parakeet import names_left_out
    from asr.apps.convert.packages import write_by_package, writers
    from asr.base.settings.rule import one_of
    from asr.core.checkpoint.bundle import read_bundle
    from asr.core.checkpoint.load import bundle_folder
    from asr.core.hub.download import path_of

    formats = one_of(*dict.fromkeys([*FORMATS, *(writer.form for writer in writers())]))
    if not formats.holds(form):
        cure = "Another format needs the package that writes it: --plugin PACKAGE"
        raise InputError(f"--to must be {formats.words}; got {form!r}. {cure}.")
    folder = bundle_folder(path_of(model))
    check_apart("--output", output, [folder])
    bundle = read_bundle(folder)
    files = to_huggingface(bundle, folder) if form == HUGGING_FACE else write_by_package(bundle, folder, form)
    if files is None:
        raise InputError(f"{folder}: a writer of --to {form} must fit the model; none does. Give another --to.")
    replace_converted(output, files)
    print(f"{output}: {', '.join(files)}")
    if form == HUGGING_FACE and (left_out := names_left_out(bundle)):
        print(f"Left out: {', '.join(left_out)}. Parakeet has no CTC head in addition to a transducer.")


def model_card(output: Path, origin: str, source: str | None, converted: "Converted") -> str:
    """Write the model card, with the origin of the weights."""
    version = f", written by {converted.writer}" if converted.writer else ""
    return _CARD.format(
        name=real(output).name,
        origin=origin + version,
        sha256=converted.weights_sha256,
        account=_account(converted),
        source=source or "For its authors and its licence, see the original model.",
        untrained=_UNTRAINED if converted.new else "",
    )


def _account(converted: "Converted") -> str:
    """Return the account of tensors: the numbers of taken, folded, compared and unneeded tensors."""
    names = {
        "taken": converted.account.taken,
        "folded into others (a scale into the subsampling, a bias into another bias)": converted.account.folded,
        "equal to values that asr computes": converted.account.compared,
        "not needed": converted.account.not_needed,
    }
    tensors = ", ".join(f"{number:,} {name}" for name, number in names.items() if number)
    return f"{sum(converted.account):,} tensors: {tensors}"


def _of_hub(owner: str, card: str) -> str:
    """Return a sentence for the model card with the author and licence from the card on the hub."""
    licence = re.search(r"^license:\s*[\"']?([\w.+-]{1,40})", card, re.MULTILINE | re.ASCII)
    named = f"its model card says {licence[1]}" if licence else "its model card names none"
    maker = "NVIDIA" if owner == "nvidia" else owner
    return f"Trained by {maker}. Licence: {named}."


_CARD = """# {name}

A speech recogniser converted by `python -m asr.convert` from {origin}.

{source}
{untrained}
Its original weights (of several files, one after the other) have the SHA-256 hash `{sha256}`. They are
{account}.

Transcribe with `python -m asr.transcribe FOLDER AUDIO...`, where FOLDER is this folder; `python -m asr.evaluate FOLDER
MANIFEST...` measures its word error rate.
"""

_UNTRAINED = """
**Train it first:** its output layer has random weights, so it recognises nothing yet. `python -m asr.train
experiment=finetune init.from=FOLDER` trains it, where FOLDER is this folder.
"""


if __name__ == "__main__":
    run_command(main)
