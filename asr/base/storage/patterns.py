"""Braces and wildcards in paths and URLs: `train-{000..012}.jsonl`, `s3://bucket/{a,b}/*/index.arrow`."""

import glob
import os
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import islice

from asr.base.storage.location import is_url, join
from asr.base.storage.store import list_prefix
from asr.errors import InputError, shown

BRACES = re.compile(r"\{([^{}]*)\}")
RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
MAX_EXPANSIONS = 1_000_000
MAX_BRACES = 100  # maximum number of braces in a path


def expanded(pattern: str, folder: str = "") -> list[str]:
    """Return the files that match a path or URL with braces and wildcards; a plain path is returned unchanged.

    `{a,b}` expands to a and b, `{08..12}` to 08, 09, 10, 11, 12; `*`, `?` and `[a-c]` match within a name. Files that
    match a wildcard are sorted. A pattern without a match, or with the name of a local file, is returned unchanged.

    Args:
        pattern: the path or URL, as a user writes it.
        folder: path or URL to which `pattern` is relative. Its name is no pattern: `[`, `{`, `*` are characters of it.

    Raises:
        InputError: the braces expand to more than MAX_EXPANSIONS paths.
        StoreError: a URL cannot be listed.
    """
    if os.path.exists(whole := join(folder, pattern)):
        return [whole]
    choices = [] if pattern.count("{") > MAX_BRACES else list(islice(_without_braces(pattern), MAX_EXPANSIONS + 1))
    if not 0 < len(choices) <= MAX_EXPANSIONS:
        must = f"{shown(pattern)}: braces must expand to at most {MAX_EXPANSIONS:,} paths; they expand to more"
        raise InputError(f"{must}. List the paths in several patterns.")
    return [file for choice in choices for file in _matching(choice, folder)]


def _without_braces(path: str) -> Iterator[str]:
    braces = BRACES.search(path)
    if braces is None:
        yield path
        return
    span = RANGE.fullmatch(braces[1])
    choices: Iterable[str] = braces[1].split(",")
    if span is not None:
        choices = (f"{number:0{len(span[1])}d}" for number in range(int(span[1]), int(span[2]) + 1))
    elif "," not in braces[1]:  # a name with braces, not a pattern
        yield path
        return
    head, tail = path[: braces.start()], path[braces.end() :]
    for choice in choices:
        yield from _without_braces(head + choice + tail)


def _matching(pattern: str, folder: str) -> list[str]:
    whole = join(folder, pattern)
    if not glob.has_magic(pattern) or (is_url(whole) and "?" in pattern and whole.startswith("http")):
        return [whole]
    escaped = join(glob.escape(folder), pattern)
    if not is_url(whole):
        return sorted(glob.glob(escaped)) or [whole]
    fixed = join(folder, re.split(r"[*?\[]", pattern)[0] + "*").rpartition("/")[0]
    names = [url for url, _ in list_prefix(fixed) if url.count("/") == whole.count("/")]
    return sorted(url for url in names if fnmatchcase(url, escaped)) or [whole]
