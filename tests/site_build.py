"""The documentation site, built for tests in a separate folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT


def built_site(folder: Path) -> Path:
    """Build the site, as `make docs` does, in another folder; return the folder of its pages."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install -e '.[docs]'")
    settings = {"INHERIT": str(ROOT / "mkdocs.yml"), "docs_dir": "docs", "site_dir": "site"}
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(settings))
    run = [sys.executable, "-m"]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    build = ["mkdocs", "build", "--strict", "-f", str(folder / "mkdocs.yml")]
    for command in (["docs.pages", str(folder / "docs")], build):
        ended = subprocess.run([*run, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
    return folder / "site"
