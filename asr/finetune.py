"""python -m asr.finetune MODEL DATA --output DIR: train a model further on recordings with their texts."""

import argparse
import json
import math
import os
import platform
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.apps.finetune.own_corpus import DATA, MIN_CLIPS_WITH_CHOICE, TEST, Say, WrittenCorpus, parts_of, write_corpus
from asr.base.settings.rule import PROBABILITY
from asr.base.system.files import write_whole_text
from asr.base.system.lock import LOCK, alone_in
from asr.base.system.processes import die_with_parent
from asr.base.text.numbers import counted
from asr.base.text.printable import printable
from asr.core.checkpoint.saved import MERGED
from asr.core.cli.command import run_command
from asr.core.cli.output import new_output_dir
from asr.core.cli.parser import CommandParser
from asr.core.run.names import CONFIG, LORA
from asr.errors import InputError

if TYPE_CHECKING:
    from asr.apps.finetune.settings import ChosenSettings
    from asr.core.run.initialization import Initialization

STORED = "finetune.json"  # in --output: the command, and the settings that were chosen
CONVERTED = "model"  # in --output: MODEL, converted from another toolkit's format
MISSING = "???"  # a missing value in a config
# Not stored, as before these options existed.
NOT_GIVEN: tuple[tuple[str, list[str] | None], ...] = ("plugin", []), ("keep", None), ("share", None)
NEXT = {"transcribe": " RECORDING...", "serve": "", "export": " -o FOLDER"}
STOPS = signal.SIGINT, signal.SIGTERM, signal.SIGUSR1  # as in asr.base.system.signals, which imports more
WORST = 10  # number of utterances that are printed at the end

BATCH = "data.batch_seconds="
LENGTHS = ("trainer.max_steps=", "trainer.max_epochs=")
ADAPTER = "adapter"  # its settings, such as adapter.rank, may be set if an adapter is trained
INSTEAD = {  # settings that --set must not contain, and the options that choose them
    "run_dir": "--output",
    "corpus": "DATA, --test or --also-test",
    "init.from": "MODEL",
    "experiment": "asr.finetune itself",
    "init.extend_tokenizer": "--extend",
    "init.share": "--share",
    ADAPTER: "--method",
    "seed": "--seed",
    "plugins": "--plugin",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Choose the settings of a training run, run it, and print what it has gained."""
    options = parse(arguments)
    with _folder(options.output):
        stored = _stored_or_new(options)
    share = options.share
    if share is None and stored["is_chosen"] and not options.dry_run:
        from asr.apps.doctor.trial import device_of
        from asr.apps.finetune.share import chosen_share

        share = chosen_share(options.output, stored, _train, _print, device_of)
    # The initial model itself, a share of 1, has no training.
    overrides = [*stored["overrides"], *([f"init.share={share:g}"] if share and share < 1 else [])]
    print(f"\n{shlex.join(['python', '-m', 'asr.train', *overrides])}\n", flush=True)
    if options.dry_run:
        return 0
    _train(overrides)
    conclude(options.output, stored, share != 1, plugin_options(options.plugin))
    return 0


def plugin_options(plugins: Sequence[str]) -> list[str]:
    """Return the options of another command for these plugins."""
    return [word for name in plugins for word in ("--plugin", name)]


def _print(line: str) -> None:
    print(printable(line), flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the command line; paths become absolute, so that the command can be repeated in any folder."""
    from asr.apps.finetune.options import add_source_options
    from asr.core.run.names import METHODS

    parser = CommandParser(
        prog="python -m asr.finetune",
        description="Train a model further on recordings with their texts; report what it has gained and forgotten.",
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="a run folder, a bundle, a .nemo archive, hf://OWNER/NAME, ...")
    data = "recordings and texts: a manifest, a table, a folder, ..., or hf://datasets/OWNER/NAME, also with :SPLIT"
    add("data", metavar="DATA", help=data)
    folder = "folder of the run; the same command resumes it; the model is DIR, or DIR/merged if an adapter is trained"
    add("--output", metavar="DIR", type=Path, required=True, help=folder)
    add("--format", metavar="NAME", help="format of DATA (default: recognised)")
    add("--test", metavar="DATA", help="recordings and texts for the test (default: a part of DATA)")
    other = "other speech, which shows what the model forgets"
    add("--also-test", metavar="DATA", nargs="+", default=[], help=other)
    add("--test-format", metavar="NAME", help="format of --test, --also-test and --keep (default: recognised)")
    keep = "speech that must not get worse: the share of MODEL in each weight is chosen for it, too"
    add("--keep", metavar="DATA", help=keep)
    share = "share of MODEL in each weight of the result, from 0 to less than 1 (default: chosen on a part of DATA)"
    add("--share", type=float, metavar="S", help=share)
    method = "train an adapter, or all weights (default: by the amount of speech)"
    add("--method", choices=METHODS, help=method)
    hours = "time of the run on this machine with its tests, which becomes a number of steps before the first step"
    add("--hours", type=float, metavar="H", help=hours)
    deadline = "end after --hours even if the machine is slower than measured; then the schedule is cut"
    add("--stop-at-deadline", action="store_true", help=deadline)
    extend = "add tokens for the characters that the model has no token for, instead of leaving these out"
    add("--extend", action="store_true", help=extend)
    add("--seed", type=int, default=0, metavar="N", help="seed of the split and of the training (default 0)")
    settings = "settings of asr.train that replace those chosen here, such as trainer.max_steps=500"
    add("--set", metavar="KEY=VALUE", nargs="+", default=[], help=settings)
    stop = "write the split of DATA to DIR, print the choices and the equal asr.train command, and stop"
    add("--dry-run", action="store_true", help=stop)
    parser.add_plugins()
    add_source_options(parser.add_argument_group("DATA").add_argument)
    options = parser.parse_args(arguments)
    _check(options)
    options.output = options.output.absolute()
    options.model, options.data, *tests = map(_absolute, (options.model, options.data, *options.also_test))
    options.also_test = tests
    options.test, options.keep = (each and _absolute(each) for each in (options.test, options.keep))
    return options


def _absolute(given: str) -> str:
    return given if given.startswith("hf://") else os.path.abspath(given)


def _check(options: argparse.Namespace) -> None:
    """Check the options that depend on each other, and the name of the run."""
    if (name := options.output.absolute().name) in ("", MISSING):
        must = f"--output must be a folder whose name, which is that of the corpus, is not {name or 'empty'}"
        raise InputError(f"{must}; got {options.output}. Give another folder.")
    if options.share is not None:
        PROBABILITY.check("--share", options.share)
        if options.keep is not None:
            raise InputError(f"--keep chooses the share of MODEL; leave out --share {options.share:g}.")
    if options.hours is not None and not 0 < options.hours < math.inf:
        raise InputError(f"--hours must be a number above 0; got {options.hours:g}.")
    for option, format in ("--format", options.format), ("--test-format", options.test_format):
        if format is not None:
            from asr.apps.finetune.collect import check_format

            check_format(format, option)
    if options.test_format is not None and not (options.test or options.also_test or options.keep):
        raise InputError(f"--test-format needs --test, --also-test or --keep; got {options.test_format} alone.")
    if options.stop_at_deadline and options.hours is None:
        raise InputError("--stop-at-deadline needs --hours; it is not given.")
    for setting in options.set:
        key = setting.partition("=")[0].lstrip("+~")
        for part, option in INSTEAD.items():
            if key == part or (key.startswith(f"{part}.") and part != ADAPTER):
                raise InputError(f"--set must not contain {key}, which {option} sets; got {setting}.")
        if setting == f"{BATCH}auto":
            raise InputError(f"asr.finetune finds the longest batch that fits; leave out --set {setting}.")
        if options.hours is not None and setting.startswith(LENGTHS):
            raise InputError(f"--hours chooses the number of steps; leave out --set {setting}.")


@contextmanager
def _folder(output: Path) -> Iterator[None]:
    """Create and lock the folder of the run; a command that is refused leaves none of the files that it has made."""
    with new_output_dir(output, "--output"):
        before = set(os.listdir(output))
        with alone_in(output):
            try:
                yield
            except BaseException:
                for name in {DATA, CONVERTED, STORED, LOCK} - before:
                    shutil.rmtree(output / name) if (output / name).is_dir() else (output / name).unlink(
                        missing_ok=True
                    )
                raise


def _stored_or_new(options: argparse.Namespace) -> dict[str, Any]:
    """Return the choices of an earlier start of this command, or make and store them."""
    command = {
        key: str(value) for key, value in vars(options).items() if key != "dry_run" and (key, value) not in NOT_GIVEN
    }
    path = options.output / STORED
    stored = _stored(path, command)
    if stored is None:
        write_whole_text(path, json.dumps({"command": command}, indent=1) + "\n")
        stored = {"command": command} | prepare(options)
        write_whole_text(path, json.dumps(stored, indent=1) + "\n")
    else:
        print("\n".join([f"{path}: data and settings are those of the earlier start", *stored["lines"]]), flush=True)
    return stored


def _stored(path: Path, command: dict[str, str]) -> dict[str, Any] | None:
    """Return what an earlier start of this command stored; None if there was none, or it ended before the choices.

    The choices of another command are made anew as long as its training has not begun, such as after --dry-run.
    """
    if all(file.name == LOCK for file in path.parent.iterdir()):
        return None
    must = "--output must be a new folder, or the folder of the same command"
    try:
        stored: Any = json.loads(path.read_text(encoding="utf-8"))
        earlier = stored["command"]
    except (OSError, ValueError, LookupError, TypeError):
        raise InputError(f"{must}; {path.parent} has other content. Give another folder.") from None
    if "overrides" not in stored:
        return None
    for key in {**command, **earlier}:  # an option that only the earlier command has was left out
        value = command.get(key)
        if earlier.get(key) != value:
            if not (path.parent / CONFIG).exists():
                return None
            raise InputError(f"{must} ({key}={earlier.get(key)}); got {key}={value}. Give another folder.")
    return {"is_chosen": False, "pieces": [], **stored}  # runs of earlier versions choose no share


def prepare(options: argparse.Namespace) -> dict[str, Any]:
    """Read the data, split it, write the manifests, and choose the settings.

    Returns:
        "lines", which were printed; "overrides" of asr.train; "model", as in `init.from`; "is_adapter"; "is_chosen",
        whether the share of MODEL is chosen; "pieces", which extend the tokenizer.
    """
    from asr.base.text.normalize import get_normalizer
    from asr.core.data.tokenizer_extension import pieces_for
    from asr.core.training.hydra_command import compose_settings
    from asr.core.training.overrides import setting

    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(printable(line))
        print(lines[-1], flush=True)

    model, folder = model_of(options), options.output / DATA
    start = initial_model(model)
    base = ["experiment=finetune", setting("init.from", model)]
    base += [setting("plugins", options.plugin)] if options.plugin else []
    settings = compose_settings([*base, *(each for each in options.set if not _is_of_adapter(each))])
    parts, tokenizer, normalizer = parts_of(options, say), start.tokenizer(), settings.components["normalizer"]
    if languages := [*getattr(tokenizer, "encoders", {})]:
        must = f"MODEL must have one tokenizer; this one has a tokenizer for each of {', '.join(languages)}"
        cure = f"Cut one language out of the original model, as in asr.convert --language {languages[0]}"
        raise InputError(f"{must}. {cure}, or train it with asr.train and corpus.labels=[language].")
    pieces: list[str] = []
    if options.extend:
        normalize = get_normalizer(normalizer)
        pieces = pieces_for((normalize(each.text) for each in parts.train), tokenizer)
        tokenizer.extend(pieces)
        base.append("init.extend_tokenizer=texts")
    corpus = write_corpus(parts, tokenizer, normalizer, settings.data.plan.selection.max_seconds, folder, say)
    names = [setting("corpus.name", options.output.name), setting("corpus.dir", str(folder)), "corpus.prepare=null"]
    fixed = [*base, *names, *corpus.settings, setting("run_dir", str(options.output)), f"seed={options.seed}"]
    chosen = [override for choice in choices(options, start, corpus, fixed, say) for override in choice.overrides]
    return {
        "lines": lines,
        "overrides": [*fixed, *chosen, *options.set],
        "model": model,
        "is_adapter": "adapter=lora" in chosen,
        "is_chosen": len(corpus.durations) >= MIN_CLIPS_WITH_CHOICE,
        "pieces": [*pieces],
    }


def _is_of_adapter(setting: str) -> bool:
    return setting.lstrip("+~").startswith(f"{ADAPTER}.")


def model_of(options: argparse.Namespace) -> str:
    """Return MODEL as `init.from` takes it; a model in another toolkit's format is converted first."""
    from asr.apps.convert.huggingface.files import is_huggingface
    from asr.apps.convert.packages import fitting, readers
    from asr.core.checkpoint.bundle import OF_A_BUNDLE
    from asr.core.checkpoint.load import is_nemo
    from asr.core.hub.download import path_of

    path = path_of(options.model)
    is_bundle = all((path / name).is_file() for name in OF_A_BUNDLE)
    is_of_package = path.exists() and fitting(readers(), path) is not None
    if not is_of_package and (is_bundle or not (is_nemo(path) or is_huggingface(path))):
        return str(options.model)
    folder = options.output / CONVERTED
    _run("asr.convert", [str(options.model), "-o", str(folder), *plugin_options(options.plugin)])
    return str(folder)


def initial_model(model: str) -> "Initialization":
    """Read the initial model."""
    from asr.core.checkpoint.load import check_recognises
    from asr.core.run.initialization import start_of
    from asr.core.run.settings import InitSettings

    merged = Path(model) / MERGED
    if (Path(model) / STORED).is_file() and merged.is_dir():
        raise InputError(f"MODEL must be a whole model; {model} is a run whose bundle is an adapter. Give {merged}.")
    start = start_of(InitSettings(model, ["encoder", "head"], [], None))
    assert start is not None
    check_recognises(start.bundle, Path(model))
    return start


def choices(
    options: argparse.Namespace, start: "Initialization", corpus: WrittenCorpus, fixed: Sequence[str], say: Say
) -> "list[ChosenSettings]":
    """Choose the settings that the user does not give, and print each with its reason."""
    import torch

    from asr.apps.finetune import settings as finetuning
    from asr.apps.finetune.settings import ChosenSettings

    chosen: list[ChosenSettings] = []

    def choose(choice: ChosenSettings) -> None:
        for each in finetuning.without([choice], options.set):
            chosen.append(each)
            say(str(each))

    on_gpu, seconds = torch.cuda.is_available(), sum(corpus.durations)
    choose(finetuning.device_choice(on_gpu, len(os.sched_getaffinity(0))))
    method = finetuning.method_choice(options.method, seconds, start.bundle.weights, options.extend)
    if "adapter=lora" not in method.overrides and (settings := [*filter(_is_of_adapter, options.set)]):
        must = f"--set {settings[0]} needs an adapter; {method.reason}"
        raise InputError(f"{must}. Add --method {LORA}, or leave out --set {settings[0]}.")
    choose(method)
    for choice in finetuning.mask_choices(start.bundle.config["features"]):
        choose(choice)
    choose(finetuning.selection_choice(corpus.has_valid))
    say(share_line(options, corpus))
    overrides = [*fixed, *(override for choice in chosen for override in choice.overrides)]
    for choice in plan_choices(options, start, overrides, finetuning.batch_choice(corpus.durations, on_gpu)):
        choose(choice)
    choose(ChosenSettings(("schedule.warmup_fraction=0.1",), "a tenth of the steps"))
    say(finetuning.MEASURED)
    return chosen


def share_line(options: argparse.Namespace, corpus: WrittenCorpus) -> str:
    """Describe how the share of the initial model in each weight is found."""
    if options.share is not None:
        return f"init.share={options.share:g}: as given"
    if len(corpus.durations) < MIN_CLIPS_WITH_CHOICE:
        few = counted(len(corpus.durations), "training utterance")
        return f"init.share=0: {few} are too few to choose it, less than {MIN_CLIPS_WITH_CHOICE}; --share sets it"
    on = "the validation set" if corpus.has_valid else "two halves of the training speech, after a training on each"
    return f"init.share, the share of MODEL in each weight: chosen after the training by losses on {on}"


def plan_choices(
    options: argparse.Namespace, start: "Initialization", overrides: Sequence[str], batch: "ChosenSettings"
) -> "Iterator[ChosenSettings]":
    """Choose the size of a batch, by the memory, and the number of steps, by the amount of speech or by the time.

    `batch` is the size that is chosen if it fits.
    """
    import numpy as np
    import torch

    from asr.apps.doctor.durations import Durations, durations
    from asr.apps.doctor.forecast import fresh_model
    from asr.apps.doctor.memory import find_batch_seconds
    from asr.apps.doctor.planned import planned
    from asr.apps.doctor.trial import device_of
    from asr.apps.finetune import settings as finetuning
    from asr.apps.finetune.own_corpus import kept_speech
    from asr.apps.finetune.share import SHARES
    from asr.base.text.normalize import get_normalizer
    from asr.core.data.corpus import read_corpus
    from asr.core.data.index_cache import IndexCache
    from asr.core.training.gradient_checkpointing import recompute_blocks
    from asr.core.training.hydra_command import compose_settings

    settings = compose_settings([*overrides, *batch.overrides, *options.set])
    cache = IndexCache(settings.data.index_dir)
    corpus = read_corpus(settings.corpus, get_normalizer(settings.components["normalizer"]), cache.utterances)
    model, utterances, _ = fresh_model(settings, corpus, corpus)
    if settings.gradient_checkpointing:
        recompute_blocks(model.encoder)
    if not any(override.startswith(BATCH) for override in options.set):
        fitting = find_batch_seconds(settings, utterances, model)
        if fitting < settings.data.plan.batches.seconds:
            batch = finetuning.smaller_batch_choice(fitting)
            settings = settings.with_batch_seconds(fitting).with_accumulation()
    yield batch
    if any(override.startswith(LENGTHS) for override in options.set):
        return
    plan = planned(settings, utterances, model)
    train_seconds = 3600 * plan.training_set.utterances.hours
    if options.hours is None:
        yield finetuning.length_choice(plan.per_epoch, train_seconds)
        return
    recognizer = start.recognizer(settings.components["decode"], device_of(settings))
    tests = [each for utterances in corpus.all_tests.values() for each in utterances]
    sizes = [(len(each), each.hours) for each in (plan.training_set.utterances, *corpus.all_tests.values())]
    where = platform.node(), len(os.sched_getaffinity(0)), torch.__version__, date.today()
    # A command that was refused because of --hours does not measure again on the same day.
    numbers = cache.numbers(
        repr(("durations", *overrides, *batch.overrides, *options.set, sizes, where)),
        lambda: np.array(durations(settings, plan, model, recognizer, tests)),
    )
    measured = Durations(*map(float, numbers))
    validation = 3600 * corpus.valid.hours * measured.recognition
    # Before and after the training; at the end, the first test is repeated for its page.
    tests_seconds = measured.recognition * 3 * sum(each.duration for each in tests)
    by_halves = options.share is None and not corpus.valid.hours and len(corpus.train) >= MIN_CLIPS_WITH_CHOICE
    compared = corpus.valid.hours if corpus.valid.hours else corpus.train.hours if by_halves else 0.0
    kept = sum(each.duration for each in kept_speech(options.output))
    losses = len(SHARES) * measured.recognition * (3600 * compared + kept) if options.share is None else 0.0
    seconds = finetuning.RunSeconds(measured.step * (1 + by_halves), validation, tests_seconds + losses)
    yield finetuning.hours_choice(options.hours, seconds, plan.per_epoch, train_seconds)
    if options.stop_at_deadline:
        yield finetuning.deadline_choice(options.hours, seconds)


def conclude(output: Path, stored: dict[str, Any], has_gained: bool, plugins: list[str]) -> None:
    """Test the trained model; print the gains, the worst utterances and the next commands.

    Args:
        output: folder of the run.
        stored: choices of the command.
        has_gained: whether something was gained on the speech that chose the share of the initial model.
        plugins: the options of further commands for the plugins of the model.
    """
    from asr.core.evaluation.comparison import before_and_after
    from asr.core.evaluation.utterances import read_scored
    from asr.core.run.names import COMPARISON, REPORT

    model = output
    if stored["is_adapter"]:
        model = output / MERGED
        _run("asr.merge", [str(output), "--base", stored["model"], "-o", str(model), *plugins])
    page, folder = output / f"{TEST}.html", output / TEST
    manifest = output / DATA / f"{TEST}.jsonl"
    written = ["--output-dir", str(folder), "--report", str(page)]
    _run("asr.evaluate", [str(model), str(manifest), *written, *plugins])
    scored = sorted(read_scored(folder / f"{TEST}.utterances.jsonl"), key=lambda each: -each.counts.errors)
    worst = [each for each in scored[:WORST] if each.counts.errors]
    lines = ["", "The utterances with the most errors:"] if worst else []
    for each in worst:
        lines.append(f"{each.utterance.id}: {counted(each.counts.errors, 'error')}")
        lines += [f"  recognised: {each.transcript.text}", f"  reference:  {each.reference}"]
    is_compared = (output / COMPARISON).is_file()
    comparisons = json.loads((output / COMPARISON).read_text(encoding="utf-8")) if is_compared else {}
    lines += ["", *(f"{name}: {before_and_after(comparison)}" for name, comparison in comparisons.items()), ""]
    lines += [f"Pages: {output / REPORT} (the run), {page} (the test)", ""]
    lines += recommendation(comparisons.get(TEST), stored["model"], str(model), has_gained, plugins)
    print("\n".join(map(printable, lines)))


def recommendation(
    comparison: Mapping[str, Any] | None, initial: str, new: str, has_gained: bool, plugins: Sequence[str]
) -> list[str]:
    """Return the verdict on the new model, and the next commands with the model that is to be used.

    Args:
        comparison: comparison of the initial with the new model; None: they were not compared.
        initial: path or address of the initial model.
        new: path of the new model.
        has_gained: whether something was gained on the speech that chose the share of the initial model.
        plugins: options of the commands for the plugins of the model.
    """
    from asr.core.evaluation.comparison import gain, is_shown, num_utterances_to_show

    lines, used = [gain(comparison) if comparison else "Not compared with MODEL: see the warning in the log."], new
    is_better, is_worse = (comparison is not None and is_shown(comparison, which) for which in ("b", "a"))
    if is_worse or not (has_gained or is_better):
        if not has_gained:
            lines.append("Nothing was gained on the speech that was left out to choose the share of MODEL.")
        lines.append(f"Keep {initial}. More recordings may help; the new model remains in {new}.")
        used = initial
    elif comparison is not None and not is_better:
        number = num_utterances_to_show(comparison)
        cure = f"a test of about {number:,} utterances may show one" if number else "train on more recordings"
        lines.append(f"No difference to {initial} can be shown: {cure}.")
    lines.append(f"Next, with the {'initial' if used == initial else 'new'} model:")
    for command in ("transcribe", "serve", "export"):
        lines.append(f"  python -m asr.{command} {shlex.join([used, *plugins])}{NEXT[command]}")
    return lines


def _train(overrides: Sequence[str]) -> None:
    """Run asr.train in a process of its own, which can start further processes, and leaves no memory occupied.

    The process gets the signals that stop this one, and completes its step before it ends.

    Raises:
        SystemExit: the training failed or was stopped; it has printed the reason.
    """
    command = [sys.executable, "-m", "asr.train", *overrides]
    sys.stdout.flush()
    with subprocess.Popen(command, start_new_session=True, preexec_fn=partial(die_with_parent, os.getpid())) as process:
        before = {each: signal.signal(each, lambda number, _: process.send_signal(number)) for each in STOPS}
        try:
            status = process.wait()
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
    if status:
        raise SystemExit(status if status > 0 else 128 - status)


def _run(module: str, arguments: Sequence[str]) -> None:
    """Run a command of asr in this process, as `python -m` does.

    Raises:
        SystemExit: the command failed; it has printed the reason.
    """
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            raise


if __name__ == "__main__":
    run_command(main)
