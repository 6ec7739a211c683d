"""Protection of --output-dir: a recipe writes only new files, and replaces only files that a recipe wrote earlier.

A hidden file in the folder lists the files written by recipes, one per line: the recipe and the name.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from asr.base.system.files import write_whole_text
from asr.errors import InputError

WRITTEN = ".written-by-recipes"


def claim(output_dir: Path, recipe: str, names: Iterable[str], option: str = "--output-dir") -> None:
    """Create the folder, and record in it that a recipe writes these files and folders.

    Args:
        output_dir: output folder of the recipe.
        recipe: name of the recipe, such as `recipes.mini.prepare`.
        names: names of files and folders below `output_dir`.
        option: name of the option that gives the folder, for the message.

    Raises:
        InputError: a file exists that the recipe did not write.
        OSError: the folder cannot be written.
    """
    path = output_dir / WRITTEN
    lines = set(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else set()
    line_of = {name: f"{recipe} {name}" for name in names}
    foreign = [name for name, line in line_of.items() if line not in lines and os.path.lexists(output_dir / name)]
    if foreign:
        condition = f"{option} must be a folder without files that {recipe} would replace and did not write"
        content = f"{output_dir} holds {', '.join(foreign[:3])}{' and others' if len(foreign) > 3 else ''}"
        raise InputError(f"{condition}; {content}. Give another folder, or move these files.")
    output_dir.mkdir(parents=True, exist_ok=True)
    write_whole_text(path, "".join(f"{line}\n" for line in sorted(lines | {*line_of.values()})))
