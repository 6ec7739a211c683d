"""Codecs: the utterance as it comes over a telephone, or out of a compressed file."""

import io
from typing import Annotated, NamedTuple

import soundfile
import torch
from torch import Tensor

from asr.audio.resampling import resampled
from asr.augment.draws import below, happens, uniform
from asr.settings.rule import Fraction, list_of, one_of, span


class CodecFormat(NamedTuple):
    """What libsndfile writes.

    Args:
        sample_rate: Hz; what lies above half of it is lost.
        container: libsndfile's name of it.
        encoding: the same.
        has_levels: whether it can be told how much to compress.
    """

    sample_rate: int
    container: str
    encoding: str
    has_levels: bool


CODECS = {
    "narrow_band": CodecFormat(8000, "WAV", "PCM_16", False),
    "mu_law": CodecFormat(8000, "WAV", "ULAW", False),  # telephones in America and Japan: G.711
    "a_law": CodecFormat(8000, "WAV", "ALAW", False),  # and elsewhere
    "gsm": CodecFormat(8000, "WAV", "GSM610", False),  # early mobile telephones
    "opus": CodecFormat(16000, "OGG", "OPUS", True),
    "vorbis": CodecFormat(16000, "OGG", "VORBIS", True),
    "mp3": CodecFormat(16000, "MP3", "MPEG_LAYER_III", True),
}


class Codec:
    """Encode an utterance, and decode it again.

    It is neither delayed nor longer: libsndfile takes the delay of encoders off. What lies beyond [-1, 1] is clipped,
    as codecs do.

    Args:
        sample_rate: Hz.
        probability: of a codec, for each utterance.
        codecs: to draw from, each equally likely.
        compression: between which it is drawn, from 0 for the best that a format can do to 1 for the smallest; some
            have one way only.
    """

    stage = "waveform"
    max_added_seconds = 0.0

    def __init__(
        self,
        sample_rate: int,
        *,
        probability: Fraction,
        codecs: Annotated[list[str], list_of(one_of(*CODECS), f"of names out of {', '.join(CODECS)}", 1, 100)],
        compression: Annotated[list[float], span(0, 1)],
    ) -> None:
        self.sample_rate = sample_rate
        self.probability = probability
        self.codecs = [CODECS[name] for name in codecs]
        self.compression = compression

    def __call__(self, waveform: Tensor) -> Tensor:
        """(S,) to (S,)."""
        if not happens(self.probability):
            return waveform
        codec, compression = self.codecs[below(len(self.codecs))], uniform(self.compression)
        encoded = _resample(waveform.clamp(-1, 1), self.sample_rate, codec.sample_rate)
        decoded = _decode(_encode(encoded, codec, compression))
        heard = _resample(decoded, codec.sample_rate, self.sample_rate)[: len(waveform)]
        return torch.nn.functional.pad(heard, (0, len(waveform) - len(heard)))


def _resample(waveform: Tensor, source_rate: int, target_rate: int) -> Tensor:
    return torch.cat([waveform[:0], *resampled([waveform], source_rate, target_rate)])


def _encode(waveform: Tensor, codec: CodecFormat, compression: float) -> io.BytesIO:
    file, level = io.BytesIO(), compression if codec.has_levels else None
    with soundfile.SoundFile(
        file, "w", codec.sample_rate, 1, codec.encoding, format=codec.container, compression_level=level
    ) as sound:
        sound.write(waveform.numpy())
    file.seek(0)
    return file


def _decode(file: io.BytesIO) -> Tensor:
    samples, _ = soundfile.read(file, dtype="float32")
    return torch.from_numpy(samples)
