"""Codec augmentation: the distortion of telephone lines and compressed files."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from asr.base.audio.encode import decode_audio, encode_audio
from asr.base.audio.resampling import resample
from asr.base.settings.rule import Fraction, list_of, one_of, span
from asr.components.augment.draws import below, happens, uniform


class CodecFormat(NamedTuple):
    """A format that libsndfile writes.

    Args:
        sample_rate: Hz; frequencies above half of it are lost.
        container: libsndfile's name of the container.
        encoding: libsndfile's name of the encoding.
        has_levels: whether the compression level can be set.
    """

    sample_rate: int
    container: str
    encoding: str
    has_levels: bool


CODECS = {
    "narrow_band": CodecFormat(8000, "WAV", "PCM_16", False),
    "mu_law": CodecFormat(8000, "WAV", "ULAW", False),  # telephones in America and Japan: G.711
    "a_law": CodecFormat(8000, "WAV", "ALAW", False),  # telephones in other countries: G.711
    "gsm": CodecFormat(8000, "WAV", "GSM610", False),  # early mobile telephones
    "opus": CodecFormat(16000, "OGG", "OPUS", True),
    "vorbis": CodecFormat(16000, "OGG", "VORBIS", True),
    "mp3": CodecFormat(16000, "MP3", "MPEG_LAYER_III", True),
}


@dataclass
class Codec:
    """Encode an utterance with a random codec and decode it again.

    Length and timing do not change: libsndfile compensates for the encoder's delay. Samples beyond [-1, 1] are
    clipped.

    Args:
        probability: probability of a codec for each utterance.
        codecs: names to draw from, each equally likely.
        compression: range of the compression level, from 0 (best quality) to 1 (smallest file); codecs without
            levels ignore it.
    """

    stage = "waveform"
    max_added_seconds = 0.0

    sample_rate: int
    _: KW_ONLY
    probability: Fraction
    codecs: Annotated[list[str], list_of(one_of(*CODECS), f"of names out of {', '.join(CODECS)}", 1, 100)]
    compression: Annotated[list[float], span(0, 1)]

    def __call__(self, waveform: Tensor) -> Tensor:
        """Map (S,) to (S,)."""
        if not happens(self.probability):
            return waveform
        codec, compression = CODECS[self.codecs[below(len(self.codecs))]], uniform(self.compression)
        encoded = resample(waveform.clamp(-1, 1), self.sample_rate, codec.sample_rate)
        content = encode_audio(
            encoded.numpy(),
            codec.sample_rate,
            codec.container,
            codec.encoding,
            compression if codec.has_levels else None,
        )
        output = resample(torch.from_numpy(decode_audio(content)), codec.sample_rate, self.sample_rate)[: len(waveform)]
        return torch.nn.functional.pad(output, (0, len(waveform) - len(output)))
