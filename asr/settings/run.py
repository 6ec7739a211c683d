"""The settings of conf/train.yaml that belong to no component, and what they must be."""

from collections.abc import Mapping
from typing import Any

from asr.errors import InputError, shown
from asr.settings.rule import (
    BOUND,
    DECAY,
    DEVICES,
    FRACTION,
    MANIFESTS,
    PATH,
    POWERS_OF_TWO,
    PRECISION,
    SWITCH,
    TEXT,
    THREADS,
    WORKERS,
    Rule,
    above,
    is_whole,
    list_of,
    number,
    one_of,
    or_null,
    whole,
)

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
            Rule("a power of two, at most 64", lambda value: is_whole(value) and value in POWERS_OF_TWO)
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
