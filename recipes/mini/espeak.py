"""espeak-ng through ctypes: text to samples."""

import ctypes
import importlib
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from asr.errors import InputError, how_to_install

_SYNCHRONOUS = 2  # the callback has received all samples when espeak_Synth returns
_RATE, _VOLUME, _PITCH, _RANGE = 1, 2, 3, 4
_UTF8 = 1
_DO_NOT_EXIT = 0x8000  # return an error if the voices are not found, instead of exiting
_LOUDNESS = 40  # per cent; at espeak's default of 100 the loud voices clip

_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class Espeak:
    """The speech synthesiser; a process can have only one.

    It has state between utterances (phases, flutter), so the samples of a sentence depend on what was spoken before.
    The same calls in a new process give the same samples.

    Raises:
        InputError: the wheel `espeakng-loader`, which contains espeak-ng, is missing or does not load.
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
                f"espeak-ng must find its voices in {self._data_dir}; it does not. Reinstall espeakng-loader; if this "
                "path has more than 150 characters, choose a shorter one, because espeak-ng truncates it."
            )
        if hasattr(self._library, "espeak_ng_SetRandSeed"):  # since 1.52; the default seed is the time of day
            self._library.espeak_ng_SetRandSeed(ctypes.c_long(1))
        self._received: list[np.ndarray] = []
        self._callback = _Callback(self._receive)  # stored here, because the library does not keep a reference to it
        self._library.espeak_SetSynthCallback(self._callback)

    def speak(self, text: str, voice: str, *, words_per_minute: int, pitch: int, pitch_range: int) -> np.ndarray:
        """Return the int16 samples of a sentence, at `sample_rate`.

        Args:
            text: the sentence.
            voice: accent and variant in espeak's notation, such as `en-us+f3`.
            words_per_minute: 80 to 450.
            pitch: 0 to 100; 50 is the default of the voice.
            pitch_range: 0 to 100; 50 is the default of the voice.

        Raises:
            InputError: espeak does not have the voice, or cannot speak the sentence.
        """
        self._set_voice(voice)
        for parameter, value in (
            (_RATE, words_per_minute),
            (_VOLUME, _LOUDNESS),
            (_PITCH, pitch),
            (_RANGE, pitch_range),
        ):
            self._library.espeak_SetParameter(parameter, value, 0)
        self._received.clear()
        encoded = text.encode()
        status = self._library.espeak_Synth(encoded, len(encoded) + 1, 0, 0, 0, _UTF8, None, None)
        if status != 0 or not self._received:
            raise InputError(f"espeak-ng must speak {text!r} as {voice!r}; it returned status {status} and no samples.")
        return np.concatenate(self._received)

    def _set_voice(self, voice: str) -> None:
        variant = voice.partition("+")[2]
        # An unknown variant is no error for espeak: it would silently use the plain voice.
        known = not variant or (self._data_dir / "voices" / "!v" / variant).is_file()
        if not known or self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise InputError(f"espeak-ng must have the voice {voice!r}; {self._data_dir} does not hold it.")

    def _receive(self, samples: Any, num_samples: int, events: Any) -> int:
        if samples and num_samples > 0:
            self._received.append(np.ctypeslib.as_array(samples, (num_samples,)).copy())
        return 0


@cache
def _locate() -> tuple[Path, Path]:
    """Return the paths of the shared library and of the folder of its voices.

    Raises:
        InputError: espeak-ng is not installed; the message has the command that installs it.
    """
    try:
        loader = importlib.import_module("espeakng_loader")
    except ImportError:
        raise InputError(f"recipes.mini needs espeak-ng; it is not installed. {how_to_install('mini')}") from None
    return Path(loader.get_library_path()), Path(loader.get_data_path())


def require_espeak() -> None:
    """Check that espeak-ng is installed.

    Raises:
        InputError: espeak-ng is not installed; the message has the command that installs it.
    """
    _locate()
