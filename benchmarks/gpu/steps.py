"""The steps of `python -m benchmarks.gpu`, most valuable first."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.gpu import kernels, recognition, training

LOG = "log.txt"  # what a step prints, in its folder
CORRECTNESS = "correctness"
KERNELS = "kernels"
TRAINING = "training"
WAYS = "ways"
RATES = "rates"
RECOGNITION = "recognition"
SIZES = ("s", "l", "m", "fast_conformer_l")  # of training steps, each a step of its own
BATCHES = ("100", "200", "400")  # seconds of audio
RATES_NAME = "gpu_rates"


class Step(NamedTuple):
    """A program that runs in a process of its own.

    Args:
        what: it shows.
        module: with a function `main`, which takes the arguments and returns the exit status.
        arguments: of it; `{folder}` stands for the step's folder of results.
        minutes: that it may take.
        result: the file that it writes into its folder.
    """

    what: str
    module: str
    arguments: Sequence[str]
    minutes: float
    result: str


def steps_of(device: str, tiny: bool, models: Sequence[str], audio: Sequence[str]) -> Mapping[str, Step]:
    """List the steps by name.

    Args:
        device: cuda or cpu.
        tiny: sizes that take seconds on a processor.
        models: trained ones, for recognition.
        audio: that they recognise.
    """
    on, folder = ["--device", device], ["--output-dir", "{folder}"]
    tests = ["-vv", "-p", "no:cacheprovider", "tests/test_gpu.py"]
    steps = {
        CORRECTNESS: Step("the numbers of a processor", "pytest", tests, 2.5, LOG),
        KERNELS: Step("attention kernels", kernels.__name__, [*on, *folder], 1.5, f"{kernels.NAME}.json"),
    }
    bf16 = [*on, "--precision", "bfloat16", "--contenders", "ours", "Parakeet", "--attentions"]
    for size in SIZES:
        seconds = [*BATCHES, *(["1600"] if size == "l" else [])]
        batches = ["--sizes", size, "--batches", "--batch-seconds", *seconds, "--turns", "5"]
        name = f"steps_{size}"
        what = f"training steps of {size}, eager and as CUDA graphs"
        steps[name] = _train_step(what, [*bf16, *batches, *folder], 1.5)
    run = ["--overrides", "encoder=conformer_xs", "optimizer.lr=1e-3"]
    steps[TRAINING] = Step(
        "300 steps beside those of a processor", training.__name__, [*on, *run, *folder], 4, f"{training.NAME}.json"
    )
    given = [*(["--models", *models] if models else []), *(["--audio", *audio] if audio else [])]
    ways = ["-vv", "-p", "no:cacheprovider", "tests/test_devices.py"]
    steps[WAYS] = Step("each way of computing a step", "pytest", ways, 4, LOG)
    steps[RECOGNITION] = Step(
        "recognition", recognition.__name__, [*on, *given, *folder], 3, f"{recognition.NAME}.json"
    )
    large = ["encoder=conformer_m", "data.batch_seconds=400", "data.num_workers=8"]
    rates = ["--without-reference", "--steps", "100", "--utterances", "800", "--words", "24", "--name", RATES_NAME]
    rates += ["--runs", *list(training.RUNS)[1:], "--overrides", *large]
    steps[RATES] = Step("a training with 8 workers", training.__name__, [*on, *rates, *folder], 3, f"{RATES_NAME}.json")
    profile = [*on, "--precision", "bfloat16", "--size", "l", "--batch-seconds", "400", *folder]
    steps["profile"] = Step("kernels of a step of L", "benchmarks.step_profile", profile, 1, "step_profile.json")
    latency = [*bf16, "--sizes", "s", "l", "--batches", "1x10", "8x10", *folder]
    steps["inference"] = Step("inference", "benchmarks.inference", latency, 1, "inference_bfloat16.json")
    for size in ("s", "l"):
        compiled = ["--sizes", size, "--batches", "--batch-seconds", "100", "400", "--turns", "5", "--compile"]
        steps[f"compiled_{size}"] = _train_step(f"compiled steps of {size}", [*bf16, *compiled, *folder], 4)
    if not tiny:
        return steps
    return {name: steps[name]._replace(arguments=[*steps[name].arguments, *more]) for name, more in TINY.items()}


def _train_step(what: str, arguments: Sequence[str], minutes: float) -> Step:
    return Step(what, "benchmarks.train_step", arguments, minutes, "train_step_bfloat16.json")


# Of the steps that a processor takes: arguments that are appended; argparse takes an option's last value.
TINY: Mapping[str, Sequence[str]] = {
    CORRECTNESS: [],
    KERNELS: ["--encoders", "conformer_xs", "transformer", "--seconds", "1"],
    f"steps_{SIZES[0]}": ["--sizes", "xs", "--batches", "1x1", "--batch-seconds", "--turns", "1"],
    TRAINING: [
        *("--steps", "2", "--utterances", "20", "--words", "2", "--runs", "float32", "--overrides", "num_threads=1"),
        *("encoder.dim=16", "encoder.num_layers=2", "encoder.num_heads=2", "encoder.subsampling.num_channels=4"),
    ],
    RECOGNITION: [
        *("--encoder", "conformer_xs", "--batch-seconds", "10", "--utterances", "2", "--num-workers", "0"),
        *("--turns", "1", "--decoders", "greedy", "transducer_greedy"),
    ],
}
