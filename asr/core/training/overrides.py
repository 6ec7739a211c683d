"""Overrides of the command line: values that Hydra's grammar takes only in quotes, and names of settings."""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

OVERRIDE = re.compile(r"(\+{0,2}[A-Za-z_][\w./@:-]*)=(.+)", re.DOTALL)
LIST = re.compile(r"\[([^][{}'\"]*)\]")
MAX_SUGGESTIONS = 3
NOT_TEXTS = ("true", "false", "yes", "no", "on", "off", "null", "nan", "inf")  # words with another meaning in YAML

SYNONYMS = {  # names of other toolkits, and the settings of asr with this purpose
    "accum_grad": ("trainer.accumulate_grad_batches",),
    "amp": ("trainer.precision",),
    "batch_size": ("data.batch_seconds", "text.batch_tokens"),
    "checkpoint_path": ("init.from",),
    "d_model": ("encoder.dim", "token_model.dim"),
    "epochs": ("trainer.max_epochs",),
    "exp_dir": ("run_dir",),
    "extend": ("init.extend_tokenizer",),
    "fp16": ("trainer.precision",),
    "gpus": ("trainer.devices",),
    "grad_clip": ("trainer.gradient_clip_val",),
    "gradient_accumulation_steps": ("trainer.accumulate_grad_batches",),
    "hidden_size": ("encoder.dim", "token_model.dim"),
    "init_from": ("init.from",),
    "learning_rate": ("optimizer.lr",),
    "max_duration": ("data.max_seconds",),
    "n_epochs": ("trainer.max_epochs",),
    "num_epochs": ("trainer.max_epochs",),
    "num_gpus": ("trainer.devices",),
    "num_steps": ("trainer.max_steps",),
    "num_train_epochs": ("trainer.max_epochs",),
    "output_dir": ("run_dir",),
    "pretrained": ("init.from",),
    "save_steps": ("checkpoint.every_steps",),
    "steps": ("trainer.max_steps",),
    "train_manifest": ("corpus.train",),
    "vocab": ("tokenizer.vocab_size",),
    "warmup": ("schedule.warmup_steps",),
    "warmup_ratio": ("schedule.warmup_fraction",),
    "wd": ("optimizer.weight_decay",),
    "workers": ("data.num_workers",),
    "world_size": ("trainer.devices",),
}
NAMES = {  # names of the field for files of conf/, by group
    "decode": {"beam_search": "beam", "greedy_search": "greedy"},
    "encoder": {"blstm": "lstm", "bilstm": "lstm", "bgru": "gru", "fastconformer": "fast_conformer_s"},
    "features": {"logmel": "fbank", "log_mel": "fbank", "mel": "fbank"},
    "head": {
        **dict.fromkeys(("rnnt", "rnn_t", "rnn-t", "rnn_transducer", "pruned_transducer"), "transducer"),
        **dict.fromkeys(("aed", "attention", "las", "seq2seq", "hybrid"), "ctc_attention"),
        "interctc": "ctc_intermediate",
        "cr_ctc": "ctc_consistency",
        "self_conditioned": "ctc_self_conditioned",
    },
    "optimizer": {"adam": "adamw"},
    "schedule": {"cosine_annealing": "cosine", "inverse_sqrt": "noam", "transformer": "noam"},
    "tokenizer": {
        **dict.fromkeys(("bpe", "unigram", "spm", "spe", "sp", "wordpiece"), "sentencepiece"),
        **dict.fromkeys(("character", "characters", "chars"), "char"),
    },
}


def quoted(value: str) -> str:
    """Put a value into double quotes, as Hydra's grammar reads them; in a list, each entry."""
    if entries := LIST.fullmatch(value):
        return f"[{','.join(quoted(entry.strip()) for entry in entries[1].split(','))}]"
    return _in_double_quotes(value)


def _in_double_quotes(value: str) -> str:
    escaped = re.sub(r'(\\*)("|$)', lambda end: 2 * end[1] + ('\\"' if end[2] else ""), value)
    return f'"{escaped}"'


def setting(key: str, value: str | Sequence[str]) -> str:
    """Return the override that sets a key to a text or a list of texts, in quotes where Hydra reads something else."""
    entries = "" if isinstance(value, str) else ",".join(map(_text, value))
    return f"{key}={_text(value) if isinstance(value, str) else f'[{entries}]'}"


def _text(value: str) -> str:
    """Return a text as Hydra's grammar reads it, without OmegaConf's references."""
    if re.fullmatch(r"[A-Za-z_/][\w.:/-]*", value, re.ASCII) and value.lower() not in NOT_TEXTS:
        return value
    return _in_double_quotes(re.sub(r"(\\*)\$\{", r"\1\1\\${", value))


def in_quotes(override: str) -> str:
    """Return an override with its value in quotes, as a shell takes it."""
    key, _, value = override.partition("=")
    return shlex.quote(f"{key}={quoted(value)}")


def readable(argument: str, parses: Callable[[str], bool], is_sweep: bool) -> str:
    """Put the value of an override into quotes if Hydra's grammar refuses it otherwise, such as a path with = or é.

    As in a shell, ~ at the beginning of a path is the home folder.

    Args:
        argument: argument of the command line.
        parses: returns whether Hydra's grammar accepts an override.
        is_sweep: whether commas separate the values of several runs.
    """
    override = OVERRIDE.fullmatch(argument)
    if override is None or parses(argument):
        return argument
    key, value = override.groups()
    if (is_sweep and "," in value) or (value[0] in "'\"[{" and not LIST.fullmatch(value)):
        return argument
    repaired = f"{key}={quoted(os.path.expanduser(value))}"
    return repaired if parses(repaired) else argument


def settings_named(name: str, composed: Mapping[str, Any]) -> list[str]:
    """Return the settings that a user may mean by a name, with their full names.

    Args:
        name: name of a setting of another toolkit, of a setting without its section, or a similar name.
        composed: the composed config.
    """
    name = name.rpartition(".")[2].lower().replace("-", "_")
    full_names = list(_full_names(composed))
    meant = [full for full in full_names if full in SYNONYMS.get(name, ())]
    if meant:
        return meant
    last_parts = {full.rpartition(".")[2] for full in full_names}
    similar = get_close_matches(name, last_parts, n=1, cutoff=0.8)
    return [full for full in full_names if [full.rpartition(".")[2]] == similar][:MAX_SUGGESTIONS]


def _full_names(composed: Mapping[str, Any], section: str = "") -> Iterator[str]:
    for name, value in composed.items():
        if isinstance(value, Mapping):
            yield from _full_names(value, f"{section}{name}.")
        else:
            yield f"{section}{name}"
