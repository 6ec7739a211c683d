"""Braces and wildcards in paths and URLs: `train-{000..012}.jsonl`, `s3://bucket/{a,b}/*/index.arrow`."""

import glob
import re
from fnmatch import fnmatchcase

from asr.storage.location import is_url
from asr.storage.store import list_prefix

BRACES = re.compile(r"\{([^{}]*)\}")
RANGE = re.compile(r"(\d+)\.\.(\d+)")
MAX_RANGE = 1_000_000


def expanded(path: str) -> list[str]:
    """Return the files that match a path or URL with braces and wildcards; a plain path is returned unchanged.

    `{a,b}` expands to a and b, `{08..12}` to 08, 09, 10, 11, 12; `*`, `?` and `[a-c]` match within a name. Files that
    match a wildcard are sorted. A pattern without a match is returned unchanged.

    Raises:
        StoreError: a URL cannot be listed.
    """
    return [file for pattern in _without_braces(path) for file in _matching(pattern)]


def _without_braces(path: str) -> list[str]:
    braces = BRACES.search(path)
    if braces is None:
        return [path]
    span = RANGE.fullmatch(braces[1])
    choices = braces[1].split(",")
    if span is not None and int(span[2]) - int(span[1]) < MAX_RANGE:
        choices = [f"{number:0{len(span[1])}d}" for number in range(int(span[1]), int(span[2]) + 1)]
    elif len(choices) == 1:  # a name with braces, not a pattern
        return [path]
    head, tail = path[: braces.start()], path[braces.end() :]
    return [expansion for choice in choices for expansion in _without_braces(head + choice + tail)]


def _matching(pattern: str) -> list[str]:
    if not glob.has_magic(pattern) or (is_url(pattern) and "?" in pattern and pattern.startswith("http")):
        return [pattern]
    if not is_url(pattern):
        return sorted(glob.glob(pattern)) or [pattern]
    fixed = pattern[: re.search(r"[*?\[]", pattern).start()].rpartition("/")[0]  # type: ignore[union-attr]
    names = [url for url, _ in list_prefix(fixed) if url.count("/") == pattern.count("/")]
    return sorted(url for url in names if fnmatchcase(url, pattern)) or [pattern]
