"""The folder of a page that recognises speech in the browser: checks before the export, and writing."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from asr.audio.load import audio_info
from asr.build import Config
from asr.checkpoint.bundle import Bundle, check_replaceable_folder, replace_folder
from asr.errors import InputError
from asr.onnx.names import WAVEFORM
from asr.publishing.browser_runtime import Runtime, browser_runtime
from asr.publishing.site import ALWAYS, CARD, check_page, megabytes, site_files
from asr.recognition.recognizer import Recognizer

EXAMPLE = re.compile(r"example-\d+\.\w+")


def prepare_site(folder: Path, config: Config, examples: Sequence[Path], on_step: Callable[[str], None]) -> Runtime:
    """Check before the export that the page can be written, and return its runtime.

    Args:
        folder: folder of the page.
        config: config of the model.
        examples: recordings that the page offers.
        on_step: called with a description of the next step.

    Raises:
        InputError: the model cannot have a page, an example cannot be read, or `write_site` or `browser_runtime`
            would fail.
    """
    check_page(config)
    check_replaceable_folder(folder, _names(folder), ALWAYS)
    for path in examples:
        audio_info(path)
    return browser_runtime(on_step)


def write_site(
    folder: Path,
    name: str,
    bundle: Bundle,
    recognizer: Recognizer,
    programs: Mapping[str, bytes],
    runtime: Runtime,
    examples: Sequence[Path],
) -> int:
    """Write a page; an older page is replaced as a whole, as in `replace_bundle`.

    Args:
        folder: folder of the page.
        name: name of the model.
        bundle: bundle of the model.
        recognizer: the model.
        programs: exported programs, by the names of their files.
        runtime: from `prepare_site`.
        examples: recordings that the page offers.

    Returns:
        Megabytes that a browser downloads before it can recognise.

    Raises:
        InputError: the model is exported as several programs, or `replace_bundle` would refuse the folder.
    """
    if WAVEFORM not in programs:
        must = "the model of a page must be one program, from whole recordings to log_probs"
        raise InputError(f"{must}; it is {', '.join(programs)}.")
    contents = site_files(name, recognizer, bundle.config, programs[WAVEFORM], runtime, examples, bundle.card)

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
