"""Which decoder a command means: the settings of the model's decoder, changed by those that the user gives.

Heads name their decoders (`interfaces.Decoders`); these functions choose among them. `add_decoding` adds the options
of commands, which are named as the settings.
"""

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from asr.base.settings.conf import default_settings, names
from asr.base.settings.rule import Rule
from asr.base.text.numbers import finite
from asr.errors import InputError, shown

if TYPE_CHECKING:
    from asr.core.build import Config
    from asr.core.recognition.recognizer import Recognizer
    from asr.interfaces import Decoders

DECODERS = names("decode")  # of asr itself; plugins may have others
LEXICON = (
    "allow only these words: the first word of each line (the rest, such as a pronunciation, is ignored), or the words "
    "of an ARPA file"
)
FUSION: Mapping[str, Mapping[str, Any]] = {  # settings of decode.fusion that are options, with argparse's arguments
    "lm": {"metavar": "FILE", "help": "language model: ARPA, KenLM's binary, or a model of asr.train_lm"},
    "lm_unit": {
        "choices": ("word", "token"),
        "help": "unit of the language model; token: from asr.ngram --tokens",
    },
    "lm_weight": {
        "type": finite,
        "metavar": "W",
        "help": "factor of the language model's log-probabilities",
    },
    "word_insertion_bonus": {"type": finite, "metavar": "S", "help": "score added for each word"},
    "unknown_score": {
        "type": finite,
        "metavar": "S",
        "help": "score added for each word unknown to the language model",
    },
    "spelling": {"metavar": "FILE", "help": "spelling model for unknown words, from asr.ngram --spelling"},
    "lexicon": {"metavar": "FILE", "help": LEXICON},
    "hotwords": {"metavar": "FILE", "help": "names and terms to recognise more easily, one per line"},
    "hotword_score": {"type": finite, "metavar": "S", "help": "bonus for each word of a hotword"},
}
NEED_LM = ("lm_unit", "lm_weight", "word_insertion_bonus", "unknown_score", "spelling")  # settings that need a model
OPTIONS = {"beam_size": "--beam", **{key: f"--{key.replace('_', '-')}" for key in FUSION}}  # options of settings
PRIOR_BEAM = "prior_beam"  # a removed decoder, which asr.tune --label-priors stored in bundles
HOTWORD_BEAM = 4  # makes the errors of 16 hypotheses with hotwords alone: recipes/hotwords


def add_decoding(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose another decoder or change its settings, and that restrict its letters."""
    search = parser.add_argument_group("decoding (default: the model's own settings)")
    implied = "with a greedy decoder, the following options imply beam search"
    search.add_argument("--decode", metavar="NAME", help=f"{', '.join(DECODERS)}; {implied}")
    search.add_argument("--beam", type=int, metavar="N", help="number of hypotheses in the beam")
    for key, arguments in FUSION.items():
        search.add_argument(OPTIONS[key], **arguments)
    characters = "write only the letters of a language (de, sr-Latn) or of a script (latin, cyrillic), and digits and "
    characters += "punctuation; this cannot choose between languages of one script"
    search.add_argument("--characters", metavar="NAME", help=characters)


def check_used(recognizer: "Recognizer", options: argparse.Namespace) -> None:
    """Check that the language model that an option needs is present."""
    for key in NEED_LM:
        if getattr(options, key, None) is not None and "lm_weight" not in recognizer.decode.tunable:
            raise InputError(f"{OPTIONS[key]} needs --lm; the model has none of its own.")


def greedy_decoder(decoders: "Decoders") -> str:
    """Return the greedy decoder that a head prefers."""
    return decoders.greedy[0]


def with_beam(decoders: "Decoders", name: str) -> str:
    """Return the beam search over the same part of the head as a greedy decoder; another decoder stays unchanged."""
    return dict(zip(decoders.greedy, decoders.beam, strict=False)).get(name, name)


def of_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of decode that the options of a command give; a command may lack some of the options."""
    given = {key: value for key, value in vars(options).items() if value is not None}
    settings = {setting: given[key] for key, setting in (("decode", "name"), ("beam", "beam_size")) if key in given}
    fusion = {key: given[key] for key in FUSION if key in given}
    return settings | ({"fusion": fusion} if fusion else {})


def with_decoder(config: "Config", instead: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the config of a model with another decoder, or with other settings of its decoder.

    Args:
        config: config of the model.
        instead: name of another decoder, or settings; None: no change. Settings without a name apply to the model's
            decoder, or to beam search if the model's decoder is greedy and does not have them. The other settings of
            another decoder come from conf/decode.

    Raises:
        InputError: the decoder does not exist or was removed, it does not have the settings, or they are invalid.
    """
    from asr.core.build import decoders_of

    if not isinstance(instead, str | Mapping | None):
        raise InputError(f"decode must be the name of a decoder, or a mapping of its settings; got {shown(instead)}.")
    given: Mapping[str, Any] = {"name": instead} if isinstance(instead, str) else instead or {}
    own = config["decode"]
    name = given.get("name", own.get("name"))
    if "name" not in given and given.keys() - own.keys() and isinstance(name, str):
        name = with_beam(decoders_of(config["head"]), name)
    if name == PRIOR_BEAM:
        cure = "Give --decode beam, and the language model with --lm; both are stored by: asr.tune --attach always."
        raise InputError(f"decode must not be {PRIOR_BEAM}, because label priors were removed; it is. {cure}")
    settings = own if name == own.get("name") else default_settings("decode", name)
    only_hotwords = given.keys() == {"fusion"} and given["fusion"].keys() <= {"hotwords", "hotword_score"}
    if settings is not own and name == "beam" and only_hotwords:
        settings = {**settings, "beam_size": HOTWORD_BEAM}
    values = dict(_values("decode", given))
    if unknown := [_spelled(path) for path in values if path.split(".")[1] not in ("name", *settings)]:
        must = f"decode={name} (--decode {name}) must have the settings that are given"
        raise InputError(f"{must}; it has no {', '.join(unknown)}. Leave them out, or choose another decoder.")
    parts = {key: part | given[key] for key, part in settings.items() if isinstance(given.get(key), Mapping)}
    chosen = {**settings, **given, **parts}
    for path, rule in _rules("decode", chosen) if given else ():
        if path in values:
            rule.check(_spelled(path), values[path])
    return {**config, "decode": chosen}


def _values(path: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each setting of a component and of its parts, such as decode.fusion.lm."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _values(f"{path}.{key}", value)
        else:
            yield f"{path}.{key}", value


def _rules(group: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, Rule]]:
    """Yield path and rule of each setting of a component and of its parts."""
    from asr.core.build import rules_of

    for key, rule in rules_of(group, settings.get("name")).items():
        yield f"{group}/{key}".replace("/", "."), rule
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _rules(f"{group}/{key}", value)


def _spelled(path: str) -> str:
    """Return the path of a setting, with the option of a command that gives it."""
    option = OPTIONS.get(path.rpartition(".")[2])
    return f"{path} ({option})" if option else path


def with_values(settings: Mapping[str, Any], values: Mapping[str, float]) -> dict[str, Any]:
    """Replace the values of a decoder's tunable settings, including those of its fusion."""
    own = {key: value for key, value in values.items() if key in settings}
    of_fusion = {key: value for key, value in values.items() if key not in settings}
    return {**settings, **own, **({"fusion": settings["fusion"] | of_fusion} if of_fusion else {})}
