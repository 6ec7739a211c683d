"""ONNX Runtime for browsers: the package onnxruntime-web, from the configured npm registry.

The tarball of the package is stored in the user's cache; its hash is checked whenever it is read.
"""

import base64
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from asr.base.system.files import write_whole
from asr.errors import InputError, how_to_install

PACKAGE, VERSION = "onnxruntime-web", "1.30.0"
SHA512 = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="  # in npm's format
SCRIPT, WASM = "package/dist/ort.wasm.bundle.min.mjs", "package/dist/ort-wasm-simd-threaded.wasm"
# Licence files of the package onnxruntime. onnxruntime-web has the same sources, but its tarball has no licence files.
LICENSES = ("LICENSE", "ThirdPartyNotices.txt")
NPM = "https://registry.npmjs.org/"
REGISTRY_VARIABLES = ("npm_config_registry", "NPM_CONFIG_REGISTRY")
PATIENCE = 60  # timeout in seconds
BLOCK, MAX_BYTES = 1 << 20, 1 << 28


class Runtime(NamedTuple):
    """Files with which a page runs programs.

    Args:
        script: a JavaScript module.
        wasm: the WebAssembly that the script runs.
        license: licence text of the script and of the WebAssembly.
    """

    script: bytes
    wasm: bytes
    license: bytes


def browser_runtime(on_step: Callable[[str], None]) -> Runtime:
    """Return the runtime; it is downloaded if it is not in the cache."""
    path = _cache() / f"{PACKAGE}-{VERSION}.tgz"
    tarball = path.read_bytes() if path.is_file() else b""
    if not _is_published(tarball):
        tarball = _downloaded(path, on_step)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, lambda file: file.write(tarball))
        except OSError as error:
            raise InputError(f"{path}: must be writable; {error.strerror}. Set XDG_CACHE_HOME.") from None
    with tarfile.open(fileobj=io.BytesIO(tarball)) as archive:
        script, wasm = (_member(archive, name) for name in (SCRIPT, WASM))
    return Runtime(script, wasm, _license())


def registry() -> str:
    """Return the npm registry's address, from the environment, else npm's configuration, else the public registry."""
    given = next((os.environ[name] for name in REGISTRY_VARIABLES if os.environ.get(name)), None) or _of_npm() or NPM
    if not given.startswith(("https://", "http://")):
        raise InputError(f"the npm registry must be an address with https:// or http://; got {given!r}.")
    return given.rstrip("/") + "/"


def _of_npm() -> str | None:
    """Return the registry in npm's configuration; None if npm is not installed."""
    npm = shutil.which("npm")
    if npm is None:
        return None
    try:
        process = subprocess.run([npm, "config", "get", "registry"], capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return None
    address = process.stdout.strip()
    return address if process.returncode == 0 and address.startswith("http") else None


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "asr"


def _downloaded(path: Path, on_step: Callable[[str], None]) -> bytes:
    """Download the tarball; error messages name `path`, where the user can also store the file by hand."""
    address = f"{registry()}{PACKAGE}/-/{PACKAGE}-{VERSION}.tgz"
    must = f"--web needs {PACKAGE} {VERSION}, downloaded once from {address}"
    tarball = io.BytesIO()
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
            while (block := answer.read(BLOCK)) and tarball.tell() < MAX_BYTES:
                tarball.write(block)
                on_step(f"downloading {PACKAGE}: {tarball.tell() / 1e6:.0f} MB")
    except urllib.error.HTTPError as error:
        reason = f"status {error.code} {error.reason}"
    except (OSError, HTTPException) as error:
        reason = str(getattr(error, "reason", error)) or type(error).__name__
    else:
        if _is_published(tarball.getvalue()):
            return tarball.getvalue()
        raise InputError(
            f"{must}, with the published sha512; the downloaded file ({tarball.tell():,} bytes) has a "
            f"different sha512. Nothing was stored; ask the operator of the registry."
        )
    other = "Set NPM_CONFIG_REGISTRY to another registry, or store the file by hand as"
    raise InputError(f"{must}; {' '.join(reason.split())}. {other} {path}")


def _is_published(tarball: bytes) -> bool:
    return base64.b64encode(hashlib.sha512(tarball).digest()).decode() == SHA512


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None  # the tarball contains the file, because its hash has been checked
    return file.read()


def _license() -> bytes:
    """Return the licences of ONNX Runtime and of its third-party parts."""
    folder = files("onnxruntime")
    missing = [name for name in LICENSES if not (folder / name).is_file()]
    if missing:
        must = "the package onnxruntime must contain its licence, which is copied to the page's folder"
        raise InputError(f"{must}; it has no {' and no '.join(missing)}. {how_to_install('onnx')}")
    return b"\n\n".join((folder / name).read_bytes() for name in LICENSES)
