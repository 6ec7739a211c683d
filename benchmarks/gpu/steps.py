"""The parts of `python -m benchmarks.gpu` and their steps, the most important first."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu import kernels, lattices, launches, recognition, speech, training

LOG = "log.txt"  # output of a step, in its folder
RIGHT, TRAINED, FAST, REST = "right", "trained", "fast", "rest"  # names of the parts
TESTS, LATTICES = "tests", "lattices"  # names of steps
HEADS = ("ctc", "transducer", "tdt")  # heads whose losses are compared, each in a step of its own
SPEECH = "speech"
LAUNCHES, RECOGNITION = "launches", "recognition"
KERNELS, METHODS, RATES = "kernels", "methods", "rates"
STEPS = "steps"
SIZES = ("s", "l", "m")  # sizes whose training steps are timed


class Step(NamedTuple):
    """A program that runs in a process of its own.

    Args:
        description: the subject of its measurement.
        module: module with a function `main` that takes the arguments and returns the exit status.
        arguments: command-line arguments; `{folder}` is replaced by the step's folder, `{seconds}` by its time limit.
        result: name of the file of results in its folder.
        share: its time limit, relative to those of the other steps of its part.
    """

    description: str
    module: str
    arguments: Sequence[str]
    result: str
    share: float = 1.0


class Part(NamedTuple):
    """Steps that answer one question.

    Args:
        steps: the steps by name, the most important first.
        share: its time limit, relative to those of the other parts.
        together: whether all steps run at the same time, because none of them measures times.
    """

    steps: Mapping[str, Step]
    share: float
    together: bool = False


def parts_of(device: str, audio: Path | None, tiny: bool = False, overrides: Sequence[str] = ()) -> Mapping[str, Part]:
    """Return the parts by name.

    Args:
        device: cuda or cpu; on a CPU all steps but the training on speech have tiny sizes.
        audio: folder of speech for the training (`benchmarks.gpu.speech`); None: it is left out.
        tiny: whether that training has a tiny size, too.
        overrides: settings of that training, for asr.train.
    """
    common, folder = ["--device", device], ["--output-dir", "{folder}"]
    right = {
        TESTS: _tests("agreement with a CPU", "tests/test_gpu.py")._replace(share=3),
        LATTICES: _measured("sums over 50 lattices beside those in float64", lattices, [*common, *folder]),
    }
    for head in HEADS:
        run = ["--overrides", f"head={head}", "encoder=conformer_xs", "num_threads=4"]
        right[f"losses_{head}"] = _measured(
            f"losses of 20 steps of {head}, compared with those on a CPU", training, [*common, *run, *folder]
        )
    trained = {}
    if audio is not None:
        arguments = [*common, "--audio", str(audio.resolve()), "--seconds", "{seconds}", *folder]
        arguments += [*(["--tiny"] if tiny else []), "--overrides", *overrides]
        trained[SPEECH] = _measured("a recogniser from nothing", speech, arguments)
    bf16 = [*common, "--precision", "bfloat16"]
    contest = [*bf16, "--attentions", "--batches", *folder, "--turns", "3", "--contenders", "ours"]
    batches = ["Parakeet", "--sizes", *SIZES, "--batch-seconds", "100", "400", "1600"]
    counted = ["--cases", *launches.STUB_LAUNCHES, "--turns", "3", *folder]
    fast = {
        STEPS: _contest("training steps, eager and as CUDA graphs", [*contest, *batches], share=6),
        LAUNCHES: _measured("launches, waits and memory of training steps", launches, counted, share=2),
    }
    greedy = ["--decoders", "greedy", "--batch-seconds", "1600", "--utterances", "512", "--copies", "8", "--turns", "1"]
    greedy += ["--num-workers", "15", *folder]
    fast[RECOGNITION] = _measured("recognition of 4,096 utterances", recognition, [*common, *greedy], share=3)
    for size, seconds in (("s", "100"), ("l", "1600")):  # compilation takes longer than the steps
        compiled = [*contest, "--sizes", size, "--batch-seconds", seconds, "--compile"]
        fast[f"compiled_{size}"] = _contest(f"training steps of {size} with compiled blocks", compiled, share=2)
    profile = [*bf16, "--size", "l", "--batch-seconds", "400", *folder]
    others = [*common, "--utterances", "500", "--batch-seconds", "400", "--turns", "1", *folder]
    rest = {
        KERNELS: _measured("attention kernels", kernels, [*common, *folder]),
        "profile": Step("kernels of a step of l", "benchmarks.step_profile", profile, "step_profile.json"),
        RATES: _measured("speed, waiting and memory of training runs", training, [*common, *_RATES, *folder]),
        METHODS: _tests("methods of computing a step", "tests/test_devices.py"),
        "fast_conformer_l": _contest(
            "training steps of Fast Conformer L",
            [*contest, "Parakeet", "--sizes", "fast_conformer_l", "--batch-seconds", "400"],
        ),
        "latency": Step(
            "inference",
            "benchmarks.inference",
            [*contest, "Parakeet", "--sizes", "s", "l", "--batches", "1x10", "8x10"],
            "inference_bfloat16.json",
        ),
        "decoders": _measured("recognition by decoder", recognition, others),
    }
    parts = {
        RIGHT: Part(right, 1, together=device != "cpu"),
        TRAINED: Part(trained, 5),
        FAST: Part(fast, 2),
        REST: Part(rest, 1),
    }
    if device == "cpu":
        parts = {name: part._replace(steps=_tiny(part.steps)) for name, part in parts.items()}
    if tiny:  # all steps take about the same time: that of importing torch
        parts = {name: part._replace(share=len(part.steps)) for name, part in parts.items()}
    return {name: part for name, part in parts.items() if part.steps}


def steps_of(parts: Mapping[str, Part]) -> Mapping[str, Step]:
    """Return the steps of all parts by name."""
    return {name: step for part in parts.values() for name, step in part.steps.items()}


def _measured(description: str, program: object, arguments: Sequence[str], share: float = 1) -> Step:
    name, table = program.__name__, program.NAME  # type: ignore[attr-defined]
    return Step(description, name, arguments, f"{table}.json", share)


def _tests(description: str, path: str) -> Step:
    return Step(description, "pytest", ["-vv", "-p", "no:cacheprovider", path], LOG)


def _contest(description: str, arguments: Sequence[str], share: float = 1) -> Step:
    return Step(description, "benchmarks.train_step", arguments, "train_step_bfloat16.json", share)


def _tiny(steps: Mapping[str, Step]) -> Mapping[str, Step]:
    """Return the steps that can run on a CPU, with the arguments for tiny sizes.

    These arguments are appended to the step's own, and override them: argparse uses the last value of an option.
    """
    return {
        name: step._replace(arguments=[*step.arguments, *TINY[name]]) for name, step in steps.items() if name in TINY
    }


_RATES = [
    *("--without-reference", "--steps", "100", "--utterances", "800", "--words", "24"),
    *("--runs", *list(training.RUNS)[1:]),
    *("--overrides", "encoder=conformer_m", "data.batch_seconds=400", "data.num_workers=8"),
]
_SMALL = ["encoder.dim=16", "encoder.num_layers=2", "encoder.block.num_heads=2", "encoder.subsampling.num_channels=4"]
TINY: Mapping[str, Sequence[str]] = {
    TESTS: [],
    LATTICES: ["--lattices", "4"],
    **{
        f"losses_{head}": [
            *("--steps", "2", "--utterances", "20", "--words", "2", "--runs", "float32"),
            *("--overrides", f"head={head}", "encoder=conformer_xs", "num_threads=1", *_SMALL),
        ]
        for head in HEADS
    },
    SPEECH: [],
    STEPS: ["--sizes", "xs", "--batches", "1x1", "--batch-seconds", "--turns", "1"],
    RECOGNITION: [
        *(
            "--encoder",
            "conformer_xs",
            "--batch-seconds",
            "10",
            "--utterances",
            "2",
            "--copies",
            "1",
            "--num-workers",
            "0",
        ),
        *("--turns", "1", "--decoders", "greedy", "transducer_greedy"),
    ],
    KERNELS: ["--encoders", "conformer_xs", "transformer", "--seconds", "1"],
}
