"""Run axe-core, which finds accessibility faults in a page.

The environment variable AXE_CORE can contain the path of axe-core's script; otherwise the script is fetched from the
npm registry.
"""

import base64
import hashlib
import io
import os
import tarfile
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from asr.apps.export.browser_runtime import registry

VERSION = "4.14.1"
SHA512 = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="  # in npm's format
PATIENCE = 60  # timeout in seconds
SERIOUS = {"serious", "critical"}
DRAWN = "new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
RUN = "axe.run(document, {preload: false, resultTypes: ['violations']})"  # preload would request style sheets again


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core. This repository does not contain it, because its licence is MPL-2.0."""
    path = os.environ.get("AXE_CORE")
    return Path(path).read_text(encoding="utf-8") if path else _downloaded()


def _downloaded() -> str:
    try:
        with urllib.request.urlopen(f"{registry()}axe-core/-/axe-core-{VERSION}.tgz", timeout=PATIENCE) as answer:
            tarball = answer.read()
    except (OSError, HTTPException) as error:
        pytest.skip(f"needs axe-core {VERSION} from the npm registry, or AXE_CORE=.../axe.min.js: {error}")
    assert base64.b64encode(hashlib.sha512(tarball).digest()).decode() == SHA512
    with tarfile.open(fileobj=io.BytesIO(tarball)) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode("utf-8")


def faults(page: Any, axe: str) -> list[str]:
    """List faults of serious or critical impact in the current state of the page, with rule, element and advice."""
    page.evaluate(DRAWN)
    page.evaluate(axe)
    return [
        f"{violation['impact']}, {violation['id']}: {node['html'][:200]}: {' '.join(node['failureSummary'].split())}"
        for violation in page.evaluate(RUN)["violations"]
        for node in violation["nodes"]
        if node["impact"] in SERIOUS
    ]
