"""Convert a bundle of format 9 or 10, which no released version wrote, or of an older public format, to format 14.

    python -m recipes.convert.bundle OLD NEW

OLD is a bundle or a run folder: of a recogniser, an adapter, a language model, or an exported model. Tensors stay equal
to the bit; a transducer with durations gets other names for its joiner's tensors. In config.json these settings change:
head.name, head.durations, head.sigma, head.omega, decode.name, normalizer (basic_1 becomes basic), those of an
encoder's blocks, which are in the section encoder.block since format 12, those of fbank, which has more of them since
format 13, and head.fast_emit, which a transducer has since format 14. A bundle of format 11, 12 or 13 also loads as it
is.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from asr.base.system.files import real
from asr.core.checkpoint.formats import FORMAT, KEY, OLDEST, of_today
from asr.errors import InputError, reason_of, shown
from recipes.command import AddOption, run_recipe

READ = range(9, FORMAT)
CONFIG, WEIGHTS, RUN_BUNDLE = "config.json", "weights.safetensors", "bundle"
OLD_JOINER, JOINER = "head.duration_joiner.", "head.joiner."
DECODERS = {"tdt_greedy": "transducer_greedy", "tdt_beam": "transducer_beam"}
WITHOUT_DURATIONS = {"durations": [], "sigma": 0.0, "omega": 0.0}


def converted(config: dict[str, Any], where: Path) -> dict[str, Any]:
    """Return the config of a bundle in the format of today.

    Raises:
        InputError: the bundle has another format, or is an adapter whose base changes.
    """
    number = config.get(KEY, 0)
    if type(number) is not int or number not in READ:
        must = f"{where}: the format must be {', '.join(map(str, READ))}"
        cure = (
            "It needs no conversion" if number == FORMAT else "No conversion exists: train or convert the model again"
        )
        raise InputError(f"{must}; got {shown(number)}. {cure}.")
    if number >= OLDEST:
        return {KEY: FORMAT, **of_today(config, where)}
    head = config.get("head", {})
    if head.get("name") == "tdt" and "base" in config:
        must = f"{where}: an adapter must have a base whose tensors keep their names; its base has durations"
        raise InputError(f"{must}. Merge it with the version of asr that wrote it: python -m asr.merge.")
    if head.get("name") == "transducer":
        head = {**head, **WITHOUT_DURATIONS}
    elif head.get("name") == "tdt":
        head = {**head, "name": "transducer"}
    changed = {KEY: OLDEST, "head": head, "decode": _decode(config.get("decode", {}))}
    changed |= {"normalizer": "basic"} if config.get("normalizer") == "basic_1" else {}
    return {KEY: FORMAT, **of_today({key: changed.get(key, value) for key, value in config.items()}, where)}


def _decode(decode: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a decoder and of its first pass with today's names."""
    renamed = {key: DECODERS.get(value, value) if key == "name" else value for key, value in decode.items()}
    return renamed | {"first": _decode(decode["first"])} if isinstance(decode.get("first"), dict) else renamed


def convert(old: Path, new: Path) -> None:
    """Write the converted bundle; `new` appears only when it is whole.

    Raises:
        InputError: `old` is no bundle that can be converted, or `new` exists.
    """
    folder = old / RUN_BUNDLE if (old / RUN_BUNDLE / CONFIG).is_file() else old
    if os.path.lexists(new):
        raise InputError(f"NEW must not exist; {new} does. Give another name.")
    try:
        config = converted(json.loads((folder / CONFIG).read_text(encoding="utf-8")), folder)
    except (OSError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{folder}: OLD must be a bundle, with {CONFIG}; {reason_of(error)}.") from None
    target = real(new)
    unfinished = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        for path in sorted(path for path in folder.iterdir() if path.is_file() and path.name != CONFIG):
            shutil.copyfile(path, unfinished / path.name)
        (unfinished / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        if (unfinished / WEIGHTS).is_file():
            _rename_tensors(unfinished / WEIGHTS)
        os.rename(unfinished, target)
    except SafetensorError as error:
        raise InputError(f"{folder}: {WEIGHTS} must be intact; {reason_of(error)}.") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _rename_tensors(path: Path) -> None:
    """Give the tensors of a joiner with durations today's names; a file without such tensors stays as it is."""
    with safe_open(path, "pt") as file:
        names, metadata = list(file.keys()), file.metadata()
        if not any(name.startswith(OLD_JOINER) for name in names):
            return
        tensors = {name.replace(OLD_JOINER, JOINER, 1): file.get_tensor(name) for name in names}
    save_file(tensors, path, metadata)
    path.chmod(0o644)  # otherwise only the owner could read the file that safetensors wrote


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_recipe(
        "recipes.convert.bundle",
        __doc__,
        _add_options,
        lambda options: convert(options.old, options.new),
        arguments,
        must="OLD must be readable and NEW writable",
    )


def _add_options(add: AddOption) -> None:
    add("old", type=Path, metavar="OLD", help="bundle or run folder of format 9, 10 or 11")
    add("new", type=Path, metavar="NEW", help="folder of the converted bundle, which must not exist")


if __name__ == "__main__":
    sys.exit(main())
