"""Rules for the values of settings, in words and in code.

A component annotates each parameter of its constructor with a rule, such as `dim: Annotated[int, whole(1, 65_536)]`;
`asr.core.build` checks the values.
"""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from asr.base.system.processes import can_fork
from asr.errors import InputError, shown

MAX_NUMBER = 1_000_000_000  # every setting rejects a larger number
ONLY_IN_QUOTES = "which is a text only in quotes"  # in messages about numbers, true and false
MAX_NAME_BYTES = 255  # limit for names of files and folders on nearly every file system


class Rule(NamedTuple):
    """A rule for a value: in words, for messages, and as a function."""

    words: str
    holds: Callable[[Any], bool]

    def check(self, name: str, value: Any) -> None:
        """Check a value; `name` is the setting's name, as the user writes it.

        Raises:
            InputError: the value breaks the rule.
        """
        if not self.holds(value):
            is_text = _as_text(value) != value and self.holds(_as_text(value))
            hint = f", {ONLY_IN_QUOTES}" if is_text else ""
            raise InputError(f"{name} must be {self.words}; got {shown(value)}{hint}.")


def _as_text(value: Any) -> Any:
    """Return a number or true or false as a text, in a list as well; another value is returned."""
    if isinstance(value, list):
        return [_as_text(entry) for entry in value]
    return str(value) if isinstance(value, int | float) else value


def whole(least: int, most: int = MAX_NUMBER) -> Rule:
    """Make the rule for a whole number from `least` to `most`."""
    return Rule(f"a whole number from {least:,} to {most:,}", lambda value: is_whole(value) and least <= value <= most)


def odd(most: int) -> Rule:
    """Make the rule for the size of a centred kernel: an odd whole number up to `most`."""
    words = f"odd, so that the kernel is centred, and at most {most:,}"
    return Rule(words, lambda value: is_whole(value) and 1 <= value <= most and value % 2 == 1)


def number(least: float, most: float = MAX_NUMBER) -> Rule:
    """Make the rule for a finite number from `least` to `most`."""
    return Rule(f"a number from {least:,} to {most:,}", lambda value: _is_number(value) and least <= value <= most)


def above(least: float, most: float = MAX_NUMBER) -> Rule:
    """Make the rule for a number greater than `least` and at most `most`."""
    words = f"a number greater than {least:,}, and at most {most:,}"
    return Rule(words, lambda value: _is_number(value) and least < value <= most)


def span(least: float, most: float) -> Rule:
    """Make the rule for a range: two numbers from `least` to `most`, in ascending order."""
    words = f"a list of two numbers from {least:,} to {most:,}, the lower one first"
    inside = number(least, most)
    return Rule(
        words,
        lambda value: (
            isinstance(value, list) and len(value) == 2 and all(map(inside.holds, value)) and value[0] <= value[1]
        ),
    )


def one_of(*names: str) -> Rule:
    """Make the rule for one of these names."""
    return Rule(f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names)


def or_null(rule: Rule) -> Rule:
    """Make the rule that allows null and the values of another rule."""
    return Rule(f"{rule.words}, or null", lambda value: value is None or rule.holds(value))


def list_of(rule: Rule, values: str, least: int = 0, most: int = MAX_NUMBER) -> Rule:
    """Make the rule for a list of `least` to `most` values that satisfy `rule`; `values` describes them."""
    return Rule(
        f"a list {values}",
        lambda value: isinstance(value, list) and least <= len(value) <= most and all(map(rule.holds, value)),
    )


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_path(value: Any) -> bool:
    is_text = isinstance(value, str) and value != "" and "\0" not in value
    return is_text and all(len(os.fsencode(part)) <= MAX_NAME_BYTES for part in Path(value).parts)


TEXT = Rule("a non-empty text", lambda value: isinstance(value, str) and value != "")
PATH = Rule(f"a path whose names have at most {MAX_NAME_BYTES} bytes each", _is_path)
FOLDER = Rule(
    f"the path of a folder on a disk, not a URL, whose names have at most {MAX_NAME_BYTES} bytes each",
    lambda value: _is_path(value) and "://" not in value,
)
SWITCH = Rule("true or false", lambda value: isinstance(value, bool))
FRACTION = number(0, 1)
PROBABILITY = Rule("a number from 0 to less than 1", lambda value: _is_number(value) and 0 <= value < 1)
DECAY = Rule("a number between 0 and 1, or null", lambda value: value is None or (_is_number(value) and 0 < value < 1))
BOUND = Rule(
    "a positive whole number, or -1 for no limit",
    lambda value: is_whole(value) and (value == -1 or 1 <= value <= MAX_NUMBER),
)
OWN_KEYS = ("audio_filepath", "duration", "text", "offset", "id", "speaker")  # of a manifest line; not labels
LABEL = Rule(
    f"the key of a label in manifest lines, such as language, but not {', '.join(OWN_KEYS)}",
    lambda value: isinstance(value, str) and value.isidentifier() and value not in OWN_KEYS,
)
LABELS = list_of(LABEL, f"of keys of labels in manifest lines, such as [language], but not {', '.join(OWN_KEYS)}")
MANIFESTS = "of manifests, such as [train.jsonl]"
DEVICES = Rule(
    "a positive whole number, -1 or auto for all devices, or a list of their numbers, such as [0,1]",
    lambda value: (
        (is_whole(value) and (value == -1 or 1 <= value <= 10_000))
        or (isinstance(value, str) and value != "")
        or (isinstance(value, list) and value != [] and all(is_whole(index) and index >= 0 for index in value))
    ),
)
PRECISION = Rule(  # weights are float32, so Lightning's other precisions are excluded
    "32-true, bf16-mixed or 16-mixed",
    lambda value: (
        not isinstance(value, bool) and str(value) in ("32-true", "32", "bf16-mixed", "bf16", "16-mixed", "16")
    ),
)

HOTWORD_SCORE = number(0, 1_000)  # natural logarithm
DECODED_SECONDS = number(1, 3_600)  # maximum length of a decoder's input; a limit below 1 s would cut words
CHUNK_SECONDS = above(0, 3_600)  # length of a chunk of a stream
LEFT_SECONDS = number(0, 3_600)  # left context of a chunk
RIGHT_SECONDS = number(0, 30)  # right context of a chunk, computed again in the next chunk
STREAM_SECONDS = {"chunk_seconds": CHUNK_SECONDS, "left_seconds": LEFT_SECONDS, "right_seconds": RIGHT_SECONDS}
SAMPLE_RATES = whole(1_000, 192_000)  # Hz
THREADS = whole(1, 1_024)
WORKERS = Rule(
    "a whole number from 0 to 1,024, and 0 on macOS, whose libraries fail in forked processes",
    lambda value: is_whole(value) and 0 <= value <= 1_024 and (value == 0 or can_fork()),
)  # processes that read audio

# Types of parameters that several components have.
Dim = Annotated[int, whole(1, 65_536)]  # channels
Layers = Annotated[int, whole(1, 1_000)]
Heads = Annotated[int, whole(1, 1_024)]
FeedForwardFactor = Annotated[float, above(0, 64)]  # inner dimension / dim
Probability = Annotated[float, PROBABILITY]  # dropout probability
Fraction = Annotated[float, FRACTION]
Text = Annotated[str, TEXT]
OptionalText = Annotated[str | None, or_null(TEXT)]
SampleRate = Annotated[int, SAMPLE_RATES]
MelBins = Annotated[int, whole(1, 512)]
FrameLength = Annotated[float, number(0.002, 0.2)]  # seconds
FrameShift = Annotated[float, number(0.001, 0.2)]  # seconds
Eps = Annotated[float, above(0, 1)]
KernelSize = Annotated[int, odd(1_001)]  # size of a convolution's kernel, in frames
Bias = Annotated[bool, SWITCH]  # whether linear layers and convolutions have a bias
