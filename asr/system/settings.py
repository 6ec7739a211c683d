"""Where settings are kept, and what they must be.

A component says of each of its own settings what it must be, as an annotation of the parameter that takes it up:
`dim: Annotated[int, whole(1, 65_536)]`; `asr.build` checks them. The settings that belong to no component have theirs
in `RULES`.
"""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from asr.errors import InputError, shown

HERE = Path(__file__).parent.parent  # of the package
CONF = HERE / "conf" if (HERE / "conf").is_dir() else HERE.parent / "conf"  # in a wheel it lies inside the package

MANY = 1_000_000_000  # more of anything is a mistake
MAX_NAME_BYTES = 255  # of a file or a folder, on nearly every file system


def default_settings(group: str, name: str) -> dict[str, Any]:
    """Read the settings that conf/<group>/<name>.yaml gives a component, with those of its parts.

    Raises:
        InputError: there is no such component.
    """
    import yaml

    one_of(*sorted(file.stem for file in (CONF / group).glob("*.yaml"))).check(f"{group}.name", name)
    settings: dict[str, Any] = yaml.safe_load((CONF / group / f"{name}.yaml").read_text(encoding="utf-8"))
    chosen = [entry for entry in settings.pop("defaults", []) if isinstance(entry, dict)]
    parts = {key: default_settings(f"{group}/{key}", part) for entry in chosen for key, part in entry.items()}
    return {**settings, **{key: part | settings.get(key, {}) for key, part in parts.items()}}


class Rule(NamedTuple):
    """What a setting must be, in words and in code."""

    words: str
    holds: Callable[[Any], bool]

    def check(self, name: str, value: Any) -> None:
        """Check a value.

        Raises:
            InputError: it is not what it must be; `name` is what the user calls the setting.
        """
        if not self.holds(value):
            raise InputError(f"{name} must be {self.words}; got {shown(value)}.")


def whole(least: int, most: int = MANY) -> Rule:
    """Make the rule for a whole number within bounds, both allowed."""
    return Rule(f"a whole number from {least:,} to {most:,}", lambda value: _is_whole(value) and least <= value <= most)


def odd(most: int) -> Rule:
    """Make the rule for the size of a kernel that has a middle."""
    words = f"odd, so that it is centred, and at most {most:,}"
    return Rule(words, lambda value: _is_whole(value) and 1 <= value <= most and value % 2 == 1)


def number(least: float, most: float = MANY) -> Rule:
    """Make the rule for a number within bounds, both allowed; infinity and NaN are none."""
    return Rule(f"a number from {least:,} to {most:,}", lambda value: _is_number(value) and least <= value <= most)


def above(least: float, most: float = MANY) -> Rule:
    """Make the rule for a number that is greater than `least`, and at most `most`."""
    words = f"a number greater than {least:,}, and at most {most:,}"
    return Rule(words, lambda value: _is_number(value) and least < value <= most)


def span(least: float, most: float) -> Rule:
    """Make the rule for two numbers within bounds, from the lower to the upper, between which one is drawn."""
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
    """Make the rule that allows null beside what `rule` allows."""
    return Rule(f"{rule.words}, or null", lambda value: value is None or rule.holds(value))


def list_of(rule: Rule, values: str, least: int = 0, most: int = MANY) -> Rule:
    """Make the rule for a list of so many values, each of which `rule` allows."""
    return Rule(
        f"a list, {values}",
        lambda value: isinstance(value, list) and least <= len(value) <= most and all(map(rule.holds, value)),
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_path(value: Any) -> bool:
    is_text = isinstance(value, str) and value != "" and "\0" not in value
    return is_text and all(len(os.fsencode(part)) <= MAX_NAME_BYTES for part in Path(value).parts)


TEXT = Rule("a text, and not empty", lambda value: isinstance(value, str) and value != "")
PATH = Rule(f"a path whose names have at most {MAX_NAME_BYTES} bytes each", _is_path)
SWITCH = Rule("true or false", lambda value: isinstance(value, bool))
FRACTION = number(0, 1)
PROBABILITY = Rule("a number from 0 to less than 1", lambda value: _is_number(value) and 0 <= value < 1)
DECAY = Rule("a number between 0 and 1, or null", lambda value: value is None or (_is_number(value) and 0 < value < 1))
BOUND = Rule(
    "a positive whole number, or -1 for none",
    lambda value: _is_whole(value) and (value == -1 or 1 <= value <= MANY),
)
MANIFESTS = "of manifests, such as [train.jsonl]"
DEVICES = Rule(
    "a positive whole number, -1 or auto for all there are, or their numbers, such as [0,1]",
    lambda value: (
        (_is_whole(value) and (value == -1 or 1 <= value <= 10_000))
        or (isinstance(value, str) and value != "")
        or (isinstance(value, list) and value != [] and all(_is_whole(index) and index >= 0 for index in value))
    ),
)
PRECISION = Rule(  # of training: weights are float32, so others of Lightning's are not among them
    "32-true, bf16-mixed or 16-mixed",
    lambda value: (
        not isinstance(value, bool) and str(value) in ("32-true", "32", "bf16-mixed", "bf16", "16-mixed", "16")
    ),
)

CHUNK_SECONDS = above(0, 3_600)  # of a stream, that are recognised at once
LEFT_SECONDS = number(0, 3_600)  # that are seen before a chunk
RIGHT_SECONDS = number(0, 30)  # that are seen behind it, and go through the net once more with each chunk
STREAM_SECONDS = {"chunk_seconds": CHUNK_SECONDS, "left_seconds": LEFT_SECONDS, "right_seconds": RIGHT_SECONDS}
POWERS_OF_TWO = (1, 2, 4, 8, 16, 32, 64)
THREADS = whole(1, 1_024)
WORKERS = whole(0, 1_024)  # processes that read audio

# What several components' parameters are.
Dim = Annotated[int, whole(1, 65_536)]  # channels
Layers = Annotated[int, whole(1, 1_000)]
Heads = Annotated[int, whole(1, 1_024)]
Probability = Annotated[float, PROBABILITY]  # of dropout
Eps = Annotated[float, above(0, 1)]
KernelSize = Annotated[int, odd(1_001)]  # of a convolution, in frames
Bias = Annotated[bool, SWITCH]  # of linear layers and convolutions

SELECTIONS = ("best", "last", "average_best", "average_last")  # of checkpoints, for a bundle

# Of conf/train.yaml, but for the components. A key that ends with a question mark need not be there.
RULES: dict[str, Rule | dict[str, Rule]] = {
    "seed": whole(0, 2**32 - 1),
    "run_dir": PATH,
    "num_threads": THREADS,
    "normalizer": TEXT,
    "gradient_checkpointing": SWITCH,
    "compile_blocks": SWITCH,
    "graph_memory": FRACTION,
    "corpus": {
        "name": TEXT,
        "dir": PATH,
        "train": list_of(PATH, MANIFESTS, least=1),
        "valid": list_of(PATH, MANIFESTS, least=1),
        "test": list_of(PATH, MANIFESTS),
        "also_test": list_of(PATH, MANIFESTS),
        "prepare": or_null(TEXT),
        "how_to_prepare?": or_null(TEXT),
    },
    "data": {
        "batch_seconds": above(0),
        "max_utterances": whole(1),
        "max_squared_seconds": or_null(above(0)),
        "max_cells": or_null(above(0, 2**40)),
        "min_seconds": number(0),
        "max_seconds": above(0),
        "max_train_utterances": or_null(whole(1)),
        "jitter": number(0),
        "sorted_epochs": whole(0),
        "lengths_per_doubling": or_null(
            Rule("a power of two, at most 64", lambda value: _is_whole(value) and value in POWERS_OF_TWO)
        ),
        "features_on": one_of("cpu", "device"),
        "num_workers": WORKERS,
        "max_bad_fraction": FRACTION,
    },
    "checkpoint": {
        "every_steps": whole(1),
        "every_minutes": above(0),
        "select": one_of(*SELECTIONS),
        "keep": whole(1),
    },
    "init": {
        "from": or_null(TEXT),
        "parts": list_of(one_of("encoder", "head"), "of encoder and head", least=1),
        "frozen": list_of(TEXT, "such as [encoder.subsampling.*]"),
        "frozen_steps": or_null(whole(1)),
    },
    "resume": {"allow": list_of(TEXT, "such as [world_size]"), "requeue": SWITCH},
    "debug": {"same_utterances": SWITCH, "max_wer": or_null(number(0)), "profile_batches": or_null(whole(1, 1_000))},
    "doctor": {"report": or_null(PATH), "listen_hours": or_null(above(0)), "model": or_null(TEXT)},
    "ema": {"decay": DECAY},
    "early_stopping": {"patience": or_null(whole(1))},
}
TRAINER = {  # beside these, trainer may hold what else Lightning's Trainer takes
    "accelerator": one_of("auto", "cpu", "gpu", "cuda", "mps"),
    "devices": DEVICES,
    "num_nodes": whole(1, 100_000),
    "strategy": TEXT,
    "precision": PRECISION,
    "max_epochs": or_null(BOUND),
    "max_steps": BOUND,
    "gradient_clip_val": or_null(number(0)),
    "accumulate_grad_batches": whole(1),
    "check_val_every_n_epoch": or_null(whole(1)),
    "log_every_n_steps": whole(1),
}


def check_settings(config: Mapping[str, Any]) -> None:
    """Check a resolved config, but for what its components check themselves.

    Raises:
        InputError: naming the first setting that does not hold, or that there is not.
    """
    for key, rule in RULES.items():
        if isinstance(rule, Rule):
            rule.check(key, config.get(key))
        else:
            _check_section(key, config.get(key), rule)
    trainer = config.get("trainer")
    if not isinstance(trainer, Mapping):
        raise InputError(f"trainer must be a mapping; got {shown(trainer)}.")
    for name, rule in TRAINER.items():
        rule.check(f"trainer.{name}", trainer.get(name))
    if not any((trainer[name] or -1) > 0 for name in ("max_epochs", "max_steps")):
        given = f"got {trainer['max_epochs']} and {trainer['max_steps']}"
        raise InputError(f"trainer.max_epochs or trainer.max_steps must be positive, to bound the run; {given}.")


def check_fields(section: str, settings: object) -> None:
    """Check a dataclass whose fields are settings of a section of `RULES`.

    Raises:
        InputError: naming the first setting that does not hold.
    """
    rules = RULES[section]
    assert isinstance(rules, dict)
    for name, value in vars(settings).items():
        rules[name].check(f"{section}.{name}", value)


def _check_section(section: str, given: Any, rules: Mapping[str, Rule]) -> None:
    needed = {key for key in rules if not key.endswith("?")}
    rules = {key.rstrip("?"): rule for key, rule in rules.items()}
    if not isinstance(given, Mapping) or not needed <= given.keys() <= rules.keys():
        raise InputError(f"{section} must set exactly {', '.join(rules)}; got {given!r}.")
    for key, value in given.items():
        rules[key].check(f"{section}.{key}", value)
