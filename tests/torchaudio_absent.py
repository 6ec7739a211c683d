"""A process in which torchaudio cannot be imported, as beside a torch for another CUDA version."""

import sys

import pytest

from asr.base.kernels import native


def forbid_torchaudio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make imports of torchaudio fail until the end of the test."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchaudio"]:
        monkeypatch.setitem(sys.modules, name, None)
    uncached = native.torchaudio_functions.__wrapped__
    monkeypatch.setattr("asr.core.recognition.alignment.torchaudio_functions", uncached)
