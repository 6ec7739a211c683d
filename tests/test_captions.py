"""python -m asr.transcribe MODEL - --stream writes lines of text during a stream, and reports an error in one line."""

import io
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from asr.apps.serve import terminal_captions as captions
from asr.apps.serve.terminal_captions import Lines, caption, raw_samples
from asr.core.recognition.captions import Captions
from asr.core.recognition.transcript import Word
from asr.errors import InputError
from asr.transcribe import main
from tests.listener import listener
from tests.refusals import mentions
from tests.tones import speak

RATE = 16000
SENTENCE = "abc de fab dec bad cafe"


def options(path: str, **changes: Any) -> Namespace:
    seconds = {"chunk_seconds": None, "left_seconds": 1.0, "right_seconds": None}
    return Namespace(**{"paths": [path], "rate": None, "language": None} | seconds | changes)


def pcm(samples: np.ndarray) -> bytes:
    return (samples * 2**15).clip(-(2**15), 2**15 - 1).astype("<i2").tobytes()


class Pipe(io.BytesIO):
    """Standard input whose reads may end within a sample."""

    def read1(self, size: int = -1) -> bytes:
        return self.read(min(size, 1001))


def from_pipe(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(captions.sys, "stdin", Namespace(buffer=Pipe(content)))


def test_samples_read_from_a_pipe_do_not_depend_on_where_reads_end() -> None:
    samples = np.random.default_rng(0).uniform(-1, 1, 5003)
    waveform = torch.cat(list(raw_samples(Pipe(pcm(samples) + b"\x01"))))
    assert waveform.numpy() == pytest.approx(samples, abs=2**-15)


@pytest.mark.parametrize("rate", [None, 8000])
def test_equal_audio_from_a_pipe_and_from_a_file_gives_the_same_line(
    rate: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = speak(SENTENCE)
    soundfile.write(tmp_path / "a.wav", samples, RATE)
    assert caption(listener(), options(str(tmp_path / "a.wav"))) == 0
    from_pipe(monkeypatch, pcm(samples[::2] if rate else samples))
    assert caption(listener(), options("-", rate=rate)) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{SENTENCE}\n" * 2
    assert shown.err.count("stream: at least the last 1 s are recognised again every 0.96 s, because Ear needs") == 2


def word(text: str) -> Word:
    return Word(text, 0.0, 1.0, 1.0)


def test_a_line_ends_at_the_end_of_speech_or_at_its_maximum_length(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    lines.show(Captions([word("one")], [word("tw")]))
    assert capsys.readouterr().out == ""
    lines.show(Captions([word("two")], [], is_end=True))
    assert capsys.readouterr().out == "one two\n"
    lines.show(Captions([], [], is_end=True))
    lines.show(Captions([word("word")] * 50, []))
    assert [len(line) for line in capsys.readouterr().out.splitlines()] == [104, 104]


def test_on_a_terminal_provisional_words_follow_final_words_and_the_line_fits_the_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(captions.sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(captions.sys.stdout, "fileno", lambda: 1)
    monkeypatch.setattr(captions.os, "get_terminal_size", lambda number: Namespace(columns=11))
    lines = Lines()
    lines.show(Captions([word("one")], [word("tw")]))
    assert capsys.readouterr().out == "\r\x1b[Kone \x1b[2mtw\x1b[0m"
    lines.show(Captions([word("two"), word("three")], [word("fo")]))
    assert capsys.readouterr().out == "\r\x1b[Ko three \x1b[2mfo\x1b[0m"
    lines.show(Captions([word("four")], [], is_end=True))
    assert capsys.readouterr().out == "\r\x1b[Kone two three four\n\r\x1b[K\x1b[2m\x1b[0m"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "standard input; got none"),
        (b"RIFF....WAVE", "RIFF ... path instead"),
    ],
)
def test_input_that_is_not_audio_is_reported_in_one_line(
    content: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_pipe(monkeypatch, content)
    with pytest.raises(InputError) as refusal:
        caption(listener(), options("-"))
    assert mentions(str(refusal.value), message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-"], "--stream; got none"),
        (["a.wav", "--chunk-seconds", "1"], "--chunk-seconds ... --stream; got none"),
        (["a.wav", "b.wav", "--stream"], "--stream; got 2 paths"),
        (["a.wav", "--stream", "--format", "srt"], "--stream ... leave"),
        (["a.wav", "--stream", "--rate", "8000"], "--rate ... a.wav"),
        (["-", "--stream", "--rate", "3"], "--rate; got 3"),
        (["-", "--stream", "--chunk-seconds", "0"], "--chunk-seconds ... number greater"),
        (["-", "--stream", "--right-seconds", "-1"], "--right-seconds; got -1.0"),
        (["-", "--stream", "--left-seconds", "nan"], "--left-seconds; got nan"),
    ],
)
def test_incompatible_options_are_reported_in_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        main(["no-model", *arguments])
    assert mentions(str(refusal.value), message)
