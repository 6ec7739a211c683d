"""Recordings that are mixed into others: noise, other people's speech, impulse responses of rooms."""

from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from asr.audio.load import audio_info, find_audio, find_audio_objects, load_waveform
from asr.data.manifest import Utterance, read_good_lines
from asr.errors import InputError
from asr.storage.location import file_name, is_url, plain

MANIFEST_SUFFIXES = (".json", ".jsonl")


class RecordingList:
    """The audio files of a folder, at any depth, or the lines of a manifest; each is decoded as it is drawn.

    Args:
        path: or URL of the folder, or of the manifest, whose lines need no text.
        setting: that named it, for errors.
    """

    def __init__(self, path: str | Path, setting: str) -> None:
        self.path = plain(path)
        self.setting = setting

    @cached_property
    def utterances(self) -> list[Utterance]:
        """All of them, without texts; of files the headers are read, and nothing is decoded.

        Raises:
            InputError: there is no such folder or manifest, or it cannot be used.
        """
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
            place = Path(self.path)
            folder = place if place.is_dir() else place.parent
            return [whole_file(path, str(path.relative_to(folder))) for path in find_audio(place)]
        except InputError as error:
            must = f"{self.setting} must be a folder of audio, or a manifest"
            raise InputError(f"{must}; {error}") from None

    def __len__(self) -> int:
        return len(self.utterances)

    def whole(self, place: int, sample_rate: int) -> Tensor:
        """Decode one of them, (S,).

        Raises:
            AudioError: it cannot be read.
        """
        utterance = self.utterances[place]
        duration = None if utterance.offset is None else utterance.duration
        return load_waveform(utterance.audio_filepath, sample_rate, offset=utterance.offset, duration=duration)

    def stretch(self, place: int, sample_rate: int, num_samples: int, begin: float) -> Tensor:
        """Decode so much of one of them; a shorter one goes round.

        Args:
            place: which one.
            sample_rate: of the result, in Hz.
            num_samples: of the result.
            begin: where it begins, from 0 to below 1: as a share of where it can, or of a shorter one's length.

        Raises:
            AudioError: it cannot be read.
        """
        utterance = self.utterances[place]
        spare = utterance.duration - num_samples / sample_rate
        if spare > 0:
            offset = (utterance.offset or 0.0) + begin * spare
            path, duration = utterance.audio_filepath, num_samples / sample_rate
            waveform, start = load_waveform(path, sample_rate, offset=offset, duration=duration), 0
        else:
            waveform = self.whole(place, sample_rate)
            start = int(begin * len(waveform))
        return waveform[(start + torch.arange(num_samples)) % len(waveform)]


def whole_file(path: str | Path, utterance_id: str) -> Utterance:
    """Make a whole audio file an utterance without text.

    Raises:
        AudioError: the file cannot be read.
    """
    sample_rate, _, num_samples = audio_info(path)
    return Utterance(str(path), num_samples / sample_rate, "", utterance_id)
