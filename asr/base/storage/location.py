"""Paths of local files, and URLs of object stores and web servers."""

import os
import posixpath
import re
from pathlib import Path, PurePath
from typing import NamedTuple

SCHEMES = ("s3", "https", "http", "gs", "az")  # gs and az: not tested
HTTP = ("http", "https")

_SCHEME = re.compile(r"(?i:([a-z][a-z0-9+.-]*)://)")


class ByteRange(NamedTuple):
    """Bytes `start` to `start + num_bytes` of a file; if `etag` is given, the file must have this version."""

    path: str
    start: int
    num_bytes: int
    etag: str | None = None

    @property
    def stop(self) -> int:
        return self.start + self.num_bytes


def is_url(path: str | PurePath) -> bool:
    """Return whether a path is a URL of an object store or a web server."""
    return scheme(path) in SCHEMES


def scheme(path: str | PurePath) -> str:
    """Return a URL's scheme in lower case; "" for a local path."""
    match = _SCHEME.match(path) if isinstance(path, str) else None
    return match[1].lower() if match else ""


def plain(path: str | PurePath) -> str:
    """Return a URL unchanged, and a path without redundant parts: ./ and repeated /."""
    return str(path) if is_url(path) else str(Path(path))


def key(url: str) -> str:
    """Return the part of a URL after the bucket, unchanged: in a key, %, ? and # are ordinary characters."""
    return url.split("://", 1)[1].partition("/")[2]


def bucket(url: str) -> str:
    """Return the bucket of a URL; for http(s) the host with its port."""
    return url.split("://", 1)[1].partition("/")[0]


def without_query(url: str) -> str:
    """Return an http(s) URL without query and fragment, any other path or URL unchanged."""
    return re.split("[?#]", url, maxsplit=1)[0] if scheme(url) in HTTP else url


def folder_of(path: str) -> str:
    """Return the folder of a file; relative paths that the file contains are relative to this folder."""
    if not is_url(path):
        return str(Path(path).parent)
    path = without_query(path)
    return path.rpartition("/")[0] if key(path) else path


def file_name(path: str) -> str:
    """Return a file's name without its folder."""
    return posixpath.basename(without_query(path)) if is_url(path) else os.path.basename(path)


def join(base: str, relative: str) -> str:
    """Return the path or URL of a file given relative to a folder.

    Args:
        base: the folder, a path or a URL.
        relative: the file, relative to the folder; a URL or an absolute path is returned unchanged.
    """
    if is_url(relative) or os.path.isabs(relative):
        return relative
    if not is_url(base):
        return os.path.join(base, relative)
    base = without_query(base)
    root = f"{scheme(base)}://{bucket(base)}/"
    return root + posixpath.normpath("/" + posixpath.join(key(base), relative)).lstrip("/")


def printable_url(path: str) -> str:
    """Return a path unchanged, or a URL without its secrets (password and query), for logs, files and pages."""
    if not is_url(path):
        return path
    without = without_query(path)
    return f"{scheme(path)}://{bucket(without).rpartition('@')[2]}/{key(without)}"


def absolute(path: str) -> str:
    """Return a file's absolute path, or its URL without password and query, so that it may be written to files."""
    return printable_url(path) if is_url(path) else os.path.abspath(path)


def without_secrets(text: str) -> str:
    """Remove passwords and queries from the URLs in a text, such as a command line."""
    return re.sub(r"https?://[^\s,'\"\[\]{}]+", lambda url: printable_url(url[0]), text)
