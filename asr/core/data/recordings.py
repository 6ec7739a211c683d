"""Recordings that are mixed into utterances: noise, other speech, impulse responses of rooms."""

import math
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from asr.base.audio.find import find_audio, find_audio_objects
from asr.base.audio.load import audio_info, load_waveform
from asr.base.storage.location import file_name, is_url, plain
from asr.core.data.manifest import Utterance, read_good_lines
from asr.errors import InputError

MANIFEST_SUFFIXES = (".json", ".jsonl")


class RecordingList:
    """The audio files below a folder, or the lines of a manifest; a recording is decoded when it is drawn.

    Args:
        path: path or URL of the folder or the manifest; lines of the manifest need no text.
        setting: name of the setting, for errors.
    """

    def __init__(self, path: str | Path, setting: str) -> None:
        self.path = plain(path)
        self.setting = setting

    @cached_property
    def utterances(self) -> list[Utterance]:
        """The recordings, without texts. Only the headers of audio files are read."""
        try:
            if file_name(self.path).endswith(MANIFEST_SUFFIXES):
                utterances, problems = read_good_lines(self.path, required=("audio_filepath", "duration"))
                if problems:
                    raise problems[0]
                return utterances
            if is_url(self.path):
                return [
                    whole_file(url, url.removeprefix(self.path).lstrip("/")) for url in find_audio_objects(self.path)
                ]
            root = Path(self.path)
            folder = root if root.is_dir() else root.parent
            return [whole_file(path, str(path.relative_to(folder))) for path in find_audio(root)]
        except InputError as error:
            must = f"{self.setting} must be a folder of audio, or a manifest"
            raise InputError(f"{must}; {error}") from None

    def __len__(self) -> int:
        return len(self.utterances)

    def whole(self, index: int, sample_rate: int) -> Tensor:
        """Decode a whole recording, (S,).

        Raises:
            AudioError: the recording is unreadable.
        """
        utterance = self.utterances[index]
        duration = None if utterance.offset is None else utterance.duration
        return load_waveform(utterance.audio_filepath, sample_rate, offset=utterance.offset, duration=duration)

    def segment(self, index: int, sample_rate: int, num_samples: int, begin: float) -> Tensor:
        """Decode a segment of a recording, (num_samples,); a recording shorter than the segment is repeated.

        Args:
            index: number of the recording.
            sample_rate: sample rate of the result, in Hz.
            num_samples: number of samples of the result.
            begin: start of the segment in [0, 1): a fraction of the latest possible start or, if the recording is
                shorter than the segment, of the recording's length.

        Raises:
            AudioError: the recording is unreadable.
        """
        utterance = self.utterances[index]
        spare = utterance.duration - num_samples / sample_rate
        if spare > 0:
            offset = (utterance.offset or 0.0) + begin * spare
            path, duration = utterance.audio_filepath, num_samples / sample_rate
            waveform, start = load_waveform(path, sample_rate, offset=offset, duration=duration), 0
        else:
            waveform = self.whole(index, sample_rate)
            start = int(begin * len(waveform))
        return waveform[(start + torch.arange(num_samples)) % len(waveform)]


def whole_file(path: str | Path, utterance_id: str, max_seconds: float = math.inf) -> Utterance:
    """Return a whole audio file as an utterance without text.

    Args:
        path: path or URL of the file.
        utterance_id: id of the utterance.
        max_seconds: as for `audio_info`.

    Raises:
        AudioError: the file cannot be read.
    """
    sample_rate, _, num_samples = audio_info(path, max_seconds=max_seconds)
    return Utterance(str(path), num_samples / sample_rate, "", utterance_id)
