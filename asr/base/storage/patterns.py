"""Braces and wildcards in paths and URLs: `train-{000..012}.jsonl`, `s3://bucket/{a,b}/*/index.arrow`."""

import glob
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import islice

from asr.base.storage.location import is_url
from asr.base.storage.store import list_prefix
from asr.errors import InputError, shown

BRACES = re.compile(r"\{([^{}]*)\}")
RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
MAX_EXPANSIONS = 1_000_000
MAX_BRACES = 100  # maximum number of braces in a path


def expanded(path: str) -> list[str]:
    """Return the files that match a path or URL with braces and wildcards; a plain path is returned unchanged.

    `{a,b}` expands to a and b, `{08..12}` to 08, 09, 10, 11, 12; `*`, `?` and `[a-c]` match within a name. Files that
    match a wildcard are sorted. A pattern without a match is returned unchanged.

    Raises:
        InputError: the braces expand to more than MAX_EXPANSIONS paths.
        StoreError: a URL cannot be listed.
    """
    patterns = [] if path.count("{") > MAX_BRACES else list(islice(_without_braces(path), MAX_EXPANSIONS + 1))
    if not 0 < len(patterns) <= MAX_EXPANSIONS:
        must = f"{shown(path)}: braces must expand to at most {MAX_EXPANSIONS:,} paths; they expand to more"
        raise InputError(f"{must}. List the paths in several patterns.")
    return [file for pattern in patterns for file in _matching(pattern)]


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


def _matching(pattern: str) -> list[str]:
    if not glob.has_magic(pattern) or (is_url(pattern) and "?" in pattern and pattern.startswith("http")):
        return [pattern]
    if not is_url(pattern):
        return sorted(glob.glob(pattern)) or [pattern]
    fixed = pattern[: re.search(r"[*?\[]", pattern).start()].rpartition("/")[0]  # type: ignore[union-attr]
    names = [url for url, _ in list_prefix(fixed) if url.count("/") == pattern.count("/")]
    return sorted(url for url in names if fnmatchcase(url, pattern)) or [pattern]
