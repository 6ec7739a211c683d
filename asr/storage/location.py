"""Where a file is: a path of this machine, or a URL of an object store."""

import os
import posixpath
import re
from pathlib import Path, PurePath
from urllib.parse import urlsplit, urlunsplit

SCHEMES = ("s3", "https", "http", "gs", "az")  # gs and az: not tried
HTTP = ("http", "https")

_SCHEME = re.compile(r"(?i:([a-z][a-z0-9+.-]*)://)")


def is_url(path: str | PurePath) -> bool:
    """Tell whether a path is a URL of an object store or a web server."""
    return scheme(path) in SCHEMES


def scheme(path: str | PurePath) -> str:
    """Return a URL's scheme in small letters; "" for a path of this machine."""
    match = _SCHEME.match(path) if isinstance(path, str) else None
    return match[1].lower() if match else ""


def plain(path: str | PurePath) -> str:
    """Return a URL as it is, and a path without what means nothing in it: ./ and a second /."""
    return str(path) if is_url(path) else str(Path(path))


def key(url: str) -> str:
    """Return what follows the bucket of a URL, as written: in a key, %, ? and # are characters like others."""
    return url.split("://", 1)[1].partition("/")[2]


def bucket(url: str) -> str:
    """Return the bucket of a URL, or of http(s) the host with its port."""
    return url.split("://", 1)[1].partition("/")[0]


def without_query(url: str) -> str:
    """Return an http(s) URL without query and fragment, any other path or URL as it is."""
    if scheme(url) not in HTTP:
        return url
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))


def folder_of(path: str) -> str:
    """Return the folder of a file: what relative paths in it are relative to."""
    if not is_url(path):
        return str(Path(path).parent)
    path = without_query(path)
    return path.rpartition("/")[0] if key(path) else path


def file_name(path: str) -> str:
    """Return a file's name without its folder."""
    return posixpath.basename(without_query(path)) if is_url(path) else os.path.basename(path)


def join(base: str, relative: str) -> str:
    """Return the path or URL of a file that is named relative to a folder.

    Args:
        base: the folder, a path or a URL.
        relative: the file, relative to it; a URL or an absolute path stays as it is.
    """
    if is_url(relative) or os.path.isabs(relative):
        return relative
    if not is_url(base):
        return os.path.join(base, relative)
    base = without_query(base)
    root = f"{scheme(base)}://{bucket(base)}/"
    return root + posixpath.normpath("/" + posixpath.join(key(base), relative)).lstrip("/")


def printable_url(path: str) -> str:
    """Return a path or URL for logs, files and pages: of a URL neither password nor query, which may be a signature."""
    if not is_url(path):
        return path
    without = without_query(path)
    return f"{scheme(path)}://{bucket(without).rpartition('@')[2]}/{key(without)}"


def absolute(path: str) -> str:
    """Return the absolute path of a file, or its URL, for what is written: without password or query."""
    return printable_url(path) if is_url(path) else os.path.abspath(path)


def without_secrets(text: str) -> str:
    """Return a text, as of a command line, whose URLs have neither password nor query."""
    return re.sub(r"https?://[^\s,'\"\[\]{}]+", lambda url: printable_url(url[0]), text)
