"""python -m asr.merge ADAPTER --base MODEL -o FOLDER: merge an adapter into its base."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from asr.base.system.files import check_apart, real
from asr.base.text.printable import printable
from asr.core.cli.command import add_base, run_command
from asr.core.cli.parser import CommandParser


def main(arguments: Sequence[str] | None = None) -> int:
    """Merge; print the names of the output, adapter and base."""
    parser = CommandParser(
        prog="python -m asr.merge",
        description="Merge an adapter (adapter=lora) into its base, and write a bundle of the whole model.",
    )
    parser.add_argument("model", metavar="ADAPTER", help="run folder, bundle or .ckpt of an adapter")
    add_base(parser, required=True)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        type=Path,
        required=True,
        help="folder of the bundle; an older bundle is replaced",
    )
    share = "share of the base in each weight, from 0 to less than 1 (default 0); a larger share reduces forgetting"
    parser.add_argument("--share", metavar="S", type=float, default=0.0, help=share)
    options = parser.parse_args(arguments)
    if not 0 <= options.share < 1:
        parser.error(f"--share must be at least 0 and less than 1; got {options.share:g}")
    from asr.core.checkpoint.averaging import with_share_of
    from asr.core.checkpoint.bundle import check_replaceable, replace_bundle
    from asr.core.checkpoint.load import bundle_recognizer, read_model, stored_at
    from asr.core.hub.download import path_of

    path, base_path = path_of(options.model), path_of(options.base)
    check_apart("--output", options.output, map(stored_at, (path, base_path)))
    bundle = read_model(path, base_path)
    if options.share:
        bundle = replace(bundle, weights=with_share_of(read_model(base_path), bundle, options.share))
    names = {"name": real(options.output).name, "adapter": _named(options.model), "base": _named(options.base)}
    and_share = f", with a share of {options.share:g} of the base in each weight" if options.share else ""
    bundle = replace(bundle, card=_CARD.format(**names, share=and_share, card=_quoted(bundle.card)))
    check_replaceable(options.output, bundle)
    bundle_recognizer(bundle, path)  # checks that the merged model loads
    replace_bundle(options.output, bundle)
    print(f"{options.output}: {printable(str(options.model))} merged into {printable(str(options.base))}{and_share}")
    return 0


def _named(model: str) -> str:
    return printable(real(Path(model)).name if Path(model).exists() else model)


def _quoted(card: str) -> str:
    return "".join(f"> {line}\n" for line in card.strip().splitlines())


_CARD = """# {name}

A speech recogniser: the adapter {adapter} merged into its base {base} by `python -m asr.merge`{share}. Transcribe with
`python -m asr.transcribe FOLDER AUDIO...`, where FOLDER is this folder.

## The adapter

{card}"""


if __name__ == "__main__":
    run_command(main)
