"""Where settings are kept, and what those of conf/train.yaml that belong to no component must be."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from asr.errors import InputError

HERE = Path(__file__).parent
CONF = HERE / "conf" if (HERE / "conf").is_dir() else HERE.parent / "conf"  # in a wheel it lies inside the package


def default_settings(group: str, name: str) -> dict[str, Any]:
    """Read the settings that conf/<group>/<name>.yaml gives a component without parts.

    Raises:
        InputError: there is no such component.
    """
    path = CONF / group / f"{name}.yaml"
    if not path.is_file():
        there = ", ".join(sorted(file.stem for file in (CONF / group).glob("*.yaml")))
        raise InputError(f"{group}.name must be one of {there}; got {name!r}.")
    settings: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return settings


class Rule(NamedTuple):
    """What a setting must be, in words and in code."""

    words: str
    holds: Callable[[Any], bool]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


TEXT = Rule("a text, and not empty", lambda value: isinstance(value, str) and value != "")
SWITCH = Rule("true or false", lambda value: isinstance(value, bool))
POSITIVE = Rule("a positive number", lambda value: _number(value) and value > 0)
POSITIVE_OR_NULL = Rule("a positive number, or null", lambda value: value is None or (_number(value) and value > 0))
NOT_NEGATIVE = Rule("a number, and not negative", lambda value: _number(value) and value >= 0)
FRACTION = Rule("a number from 0 to 1", lambda value: _number(value) and 0 <= value <= 1)
DECAY = Rule("a number between 0 and 1, or null", lambda value: value is None or (_number(value) and 0 < value < 1))
WHOLE = Rule("a whole number, and not negative", lambda value: _whole(value) and value >= 0)
COUNT = Rule("a positive whole number", lambda value: _whole(value) and value > 0)
COUNT_OR_NULL = Rule("a positive whole number, or null", lambda value: value is None or COUNT.holds(value))
NAMES = Rule(
    "a list, such as [world_size]",
    lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
)

BOUND = Rule("a whole number, or -1 for none", lambda value: value is None or (_whole(value) and value >= -1))

TRAINER = {
    "accumulate_grad_batches": COUNT,
    "max_epochs": BOUND,
    "max_steps": BOUND,
}  # the rest is Lightning's to check
RULES: dict[str, Rule | dict[str, Rule]] = {
    "seed": WHOLE,
    "run_dir": TEXT,
    "num_threads": COUNT,
    "gradient_checkpointing": SWITCH,
    "data": {
        "batch_seconds": POSITIVE,
        "max_utterances": COUNT,
        "max_squared_seconds": POSITIVE_OR_NULL,
        "min_seconds": NOT_NEGATIVE,
        "max_seconds": POSITIVE,
        "jitter": NOT_NEGATIVE,
        "num_workers": WHOLE,
        "max_bad_fraction": FRACTION,
    },
    "checkpoint": {"every_steps": COUNT, "every_minutes": POSITIVE, "select": TEXT, "keep": COUNT},
    "resume": {"allow": NAMES, "requeue": SWITCH},
    "ema": {"decay": DECAY},
    "early_stopping": {"patience": COUNT_OR_NULL},
}


def check_settings(config: Mapping[str, Any]) -> None:
    """Check a resolved config, but for what its components check themselves.

    Raises:
        InputError: naming the first setting that does not hold, or that there is not.
    """
    for key, rule in RULES.items():
        if isinstance(rule, Rule):
            _check(key, config.get(key), rule)
            continue
        given = config.get(key)
        if not isinstance(given, Mapping) or given.keys() != rule.keys():
            raise InputError(f"{key} must set exactly {', '.join(rule)}; got {given!r}.")
        for name, one in rule.items():
            _check(f"{key}.{name}", given[name], one)
    for name, one in TRAINER.items():
        _check(f"trainer.{name}", config["trainer"][name], one)


def _check(key: str, value: Any, rule: Rule) -> None:
    if not rule.holds(value):
        raise InputError(f"{key} must be {rule.words}; got {value!r}.")
