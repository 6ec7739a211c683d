"""recipes/noise/make: spectra of all kinds of noise, and reproducible bytes."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.core.data.manifest import read_manifest
from recipes.noise.make import SAMPLE_RATE, main
from tests.refusals import mentions

KINDS = ["silence", "white", "pink", "hum", "tones", "band", "babble"]


def make(folder: Path, speech: Path, *more: str) -> dict[str, bytes]:
    """Run the recipe; return the contents of the files below the folder."""
    options = ["--output-dir", str(folder), "--number", "2", "--seconds", "2", "--speech", str(speech)]
    assert main([*options, "--kinds", *KINDS, *more]) == 0
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def octaves(waveform: np.ndarray) -> np.ndarray:
    """Return the power in each octave from 62.5 Hz to 8 kHz."""
    spectrum = np.abs(np.fft.rfft(waveform)) ** 2
    frequency = np.fft.rfftfreq(len(waveform), 1 / SAMPLE_RATE)
    edges = 62.5 * 2.0 ** np.arange(8)
    return np.array([spectrum[(frequency >= low) & (frequency < 2 * low)].sum() for low in edges[:-1]]) / spectrum.sum()


def test_each_kind_has_its_spectrum_and_a_manifest_without_words(tones: Path, tmp_path: Path) -> None:
    make(tmp_path, tones / "train.jsonl")
    power = {}
    for kind in KINDS:
        utterances = read_manifest(tmp_path / f"{kind}.jsonl")
        assert [(utterance.text, utterance.duration) for utterance in utterances] == [("", 2.0)] * 2
        waveform, rate = soundfile.read(utterances[0].audio_filepath)
        assert (rate, len(waveform)) == (SAMPLE_RATE, 2 * SAMPLE_RATE)
        level = 10 * np.log10(np.mean(waveform**2) + 1e-12)
        assert -36 < level < -19 if kind != "silence" else level < -60
        power[kind] = octaves(waveform)
    doubling = power["white"][1:] / power["white"][:-1]
    assert np.allclose(doubling[3:], 2.0, rtol=0.15), "equal power at each frequency"
    assert power["pink"].max() < 2 * power["pink"].min(), "equal power in each octave"
    assert power["hum"][4:].sum() < 0.05, "from 1 kHz on"
    assert power["band"][5:].sum() > 0.95, "from 2 kHz on"


def test_equal_options_give_equal_bytes_and_another_seed_gives_different_bytes(tones: Path, tmp_path: Path) -> None:
    first, again = (make(tmp_path / name, tones / "train.jsonl") for name in ("a", "b"))
    other = make(tmp_path / "c", tones / "train.jsonl", "--seed", "1")
    assert first == again
    same = {name for name in first if first[name] == other[name]}
    assert not [name for name in same if name.endswith(".flac") and "silence" not in name]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--speech ... leave out babble"),
        (["--number", "0"], "--number ... --seconds ... 0 ... 30.0"),
        (["--speech", "none.jsonl"], "none.jsonl ... no such manifest"),
    ],
)
def test_invalid_options_are_reported_in_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--output-dir", str(tmp_path), *options]) == 1
    assert mentions(capsys.readouterr().err, message)
