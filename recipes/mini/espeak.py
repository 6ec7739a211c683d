"""espeak-ng through ctypes: text in, samples out."""

import ctypes
import importlib
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from asr.errors import InputError, how_to_install

_SYNCHRONOUS = 2  # the callback has all samples when espeak_Synth returns
_RATE, _VOLUME, _PITCH, _RANGE = 1, 2, 3, 4
_UTF8 = 1
_DO_NOT_EXIT = 0x8000  # where the voices are not found, but return
_LOUDNESS = 40  # per cent; at espeak's own 100 the loud voices clip

_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class Espeak:
    """The speech synthesiser; there can be one in a process.

    It keeps state from one utterance to the next (phases, flutter), so the samples of a sentence depend on what
    was spoken before. The same calls in a fresh process give the same samples.

    Raises:
        InputError: where the wheel `espeakng-loader`, which carries espeak-ng, is missing or does not load.
    """

    def __init__(self) -> None:
        library_path, self._data_dir = _locate()
        try:
            self._library = ctypes.CDLL(str(library_path))
        except OSError as error:
            raise InputError(f"espeak-ng must load from {library_path}; {error}. Reinstall espeakng-loader.") from None
        data_dir = os.fsencode(self._data_dir)
        self.sample_rate: int = self._library.espeak_Initialize(_SYNCHRONOUS, 0, data_dir, _DO_NOT_EXIT)
        if self.sample_rate <= 0:
            raise InputError(
                f"espeak-ng must find its voices in {self._data_dir}; it does not. Reinstall espeakng-loader, "
                "in a shorter path where this one has more than 150 characters: espeak-ng cuts it off."
            )
        if hasattr(self._library, "espeak_ng_SetRandSeed"):  # since 1.52, which otherwise takes the time of day
            self._library.espeak_ng_SetRandSeed(ctypes.c_long(1))
        self._heard: list[np.ndarray] = []
        self._callback = _Callback(self._hear)  # kept here, since the library holds no reference
        self._library.espeak_SetSynthCallback(self._callback)

    def speak(self, text: str, voice: str, *, words_per_minute: int, pitch: int, pitch_range: int) -> np.ndarray:
        """The int16 samples of a sentence, at `sample_rate`.

        Args:
            voice: accent and variant as espeak names them, such as `en-us+f3`.
            words_per_minute: 80 to 450.
            pitch, pitch_range: 0 to 100; 50 is the voice as it was made.

        Raises:
            InputError: for a voice that espeak does not have or a sentence it does not speak.
        """
        self._set_voice(voice)
        for parameter, value in (
            (_RATE, words_per_minute),
            (_VOLUME, _LOUDNESS),
            (_PITCH, pitch),
            (_RANGE, pitch_range),
        ):
            self._library.espeak_SetParameter(parameter, value, 0)
        self._heard.clear()
        encoded = text.encode()
        status = self._library.espeak_Synth(encoded, len(encoded) + 1, 0, 0, 0, _UTF8, None, None)
        if status != 0 or not self._heard:
            raise InputError(f"espeak-ng must speak {text!r} as {voice!r}; it gave status {status} and no samples.")
        return np.concatenate(self._heard)

    def _set_voice(self, voice: str) -> None:
        variant = voice.partition("+")[2]
        # An unknown variant is no error to espeak: it would quietly speak with the plain voice.
        known = not variant or (self._data_dir / "voices" / "!v" / variant).is_file()
        if not known or self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise InputError(f"espeak-ng must have the voice {voice!r}; {self._data_dir} does not hold it.")

    def _hear(self, samples: Any, num_samples: int, events: Any) -> int:
        if samples and num_samples > 0:
            self._heard.append(np.ctypeslib.as_array(samples, (num_samples,)).copy())
        return 0


@cache
def _locate() -> tuple[Path, Path]:
    """The shared library and the folder of its voices.

    Raises:
        InputError: with the command that installs them.
    """
    try:
        loader = importlib.import_module("espeakng_loader")
    except ImportError:
        raise InputError(f"recipes.mini needs espeak-ng; it is not installed. {how_to_install('mini')}") from None
    return Path(loader.get_library_path()), Path(loader.get_data_path())


def require_espeak() -> None:
    """Raise InputError, with the command to run, unless espeak-ng is installed."""
    _locate()
