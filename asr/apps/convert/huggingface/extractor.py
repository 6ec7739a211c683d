"""Settings that transformers' feature extractors share: name, sample rate, window and hop."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from asr.apps.convert.section import Section, as_yaml, check, whole
from asr.errors import InputError

# Keys that may have any value: they do not affect the features, or are converted.
EXTRACTOR_KEYS = {
    *("feature_extractor_type", "processor_class", "padding_side", "padding_value", "return_attention_mask"),
    "sampling_rate",
}


class Frames(NamedTuple):
    """The settings of a feature extractor with windows.

    Attributes:
        sample_rate: Hz.
        window: length of a window, in samples.
        hop: samples from one frame to the next.
        num_mel_bins: F.
    """

    sample_rate: int
    window: int
    hop: int
    num_mel_bins: int

    @property
    def section(self) -> dict[str, Any]:
        """These settings in a config of asr's features."""
        return {
            "sample_rate": self.sample_rate,
            "num_mel_bins": self.num_mel_bins,
            "frame_length_seconds": self.window / self.sample_rate,
            "frame_shift_seconds": self.hop / self.sample_rate,
        }

    @property
    def fft_points(self) -> int:
        """The next power of 2."""
        return 1 << (self.window - 1).bit_length()


def check_kind(theirs: Section, kind: str) -> None:
    """Check the name of a feature extractor; published files write one name as LASR... and as Lasr..."""
    found = theirs.get("feature_extractor_type", kind)
    if str(found).casefold() != kind.casefold():
        raise InputError(f"feature_extractor_type must be {kind}; got {as_yaml(found)}.")


def take_frames(
    theirs: Section, kind: str, bins: tuple[str, int], expected: int, fixed: Mapping[str, tuple[Any, tuple[Any, ...]]]
) -> Frames:
    """Read the config of a feature extractor.

    Args:
        theirs: the config.
        kind: name of the extractor.
        bins: key of the number of mel bins, and transformers' default.
        expected: number of mel bins that the model expects.
        fixed: other settings, each with transformers' default and the values that asr supports.
    """
    check_kind(theirs, kind)
    frames = Frames(
        whole(theirs, "preprocessor.sampling_rate", 16000),
        whole(theirs, "preprocessor.win_length", 400),
        whole(theirs, "preprocessor.hop_length", 160),
        whole(theirs, f"preprocessor.{bins[0]}", bins[1]),
    )
    for name, samples in (("win_length", frames.window), ("hop_length", frames.hop)):
        if not 1 <= samples <= frames.sample_rate:
            raise InputError(f"preprocessor.{name} must be a number of samples, at most a second; got {samples}.")
    keys = EXTRACTOR_KEYS | {bins[0], "win_length", "hop_length"}
    check(theirs, "preprocessor", keys, {"n_fft": (512, (frames.fft_points,)), **fixed})
    if expected != frames.num_mel_bins:
        must = f"encoder_config.num_mel_bins must be preprocessor.{bins[0]}, {frames.num_mel_bins}"
        raise InputError(f"{must}; got {expected}.")
    return frames


def give_extractor(kind: str, processor: str, sample_rate: int) -> dict[str, Any]:
    """Return the settings that each extractor has."""
    return {
        "feature_extractor_type": kind,
        "processor_class": processor,
        "sampling_rate": sample_rate,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
    }


def give_frames(kind: str, processor: str, frames: Frames) -> dict[str, Any]:
    """Return the settings that `take_frames` reads, but for the number of mel bins."""
    windows = {"n_fft": frames.fft_points, "win_length": frames.window, "hop_length": frames.hop}
    return give_extractor(kind, processor, frames.sample_rate) | windows
