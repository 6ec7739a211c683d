"""The steps of `python -m benchmarks.gpu`, the most important first."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.gpu import kernels, launches, recognition, training

LOG = "log.txt"  # output of a step, in its folder
CORRECTNESS = "correctness"
KERNELS = "kernels"
LAUNCHES = "launches"
TRAINING = "training"
METHODS = "methods"
RATES = "rates"
RECOGNITION = "recognition"
SIZES = ("s", "l", "m", "fast_conformer_l")  # sizes whose training steps are timed, each in a step of its own
BATCHES = ("100", "200", "400")  # seconds of audio
RATES_NAME = "gpu_rates"
TINY_MINUTES = 10.0  # time limit of a step with tiny sizes, because the limits of the other steps assume a GPU


class Step(NamedTuple):
    """A program that runs in a process of its own.

    Args:
        description: the subject of its measurement.
        module: module with a function `main` that takes the arguments and returns the exit status.
        arguments: command-line arguments; `{folder}` is replaced by the step's folder.
        minutes: time limit.
        result: name of the file of results in its folder.
    """

    description: str
    module: str
    arguments: Sequence[str]
    minutes: float
    result: str


def steps_of(device: str, tiny: bool, models: Sequence[str], audio: Sequence[str]) -> Mapping[str, Step]:
    """Return the steps by name.

    Args:
        device: cuda or cpu.
        tiny: whether to use sizes that take seconds on a CPU.
        models: trained models for the recognition step.
        audio: audio files, folders or manifests for the recognition step.
    """
    device_options, folder = ["--device", device], ["--output-dir", "{folder}"]
    tests = ["-vv", "-p", "no:cacheprovider", "tests/test_gpu.py"]
    steps = {
        CORRECTNESS: Step("agreement with a CPU", "pytest", tests, 2.5, LOG),
        KERNELS: Step("attention kernels", kernels.__name__, [*device_options, *folder], 1.5, f"{kernels.NAME}.json"),
    }
    bf16 = [*device_options, "--precision", "bfloat16", "--contenders", "ours", "Parakeet", "--attentions"]
    for size in SIZES:
        seconds = [*BATCHES, *(["1600"] if size == "l" else [])]
        batches = ["--sizes", size, "--batches", "--batch-seconds", *seconds, "--turns", "5"]
        name = f"steps_{size}"
        description = f"training steps of {size}, eager and as CUDA graphs"
        steps[name] = _train_step(description, [*bf16, *batches, *folder], 1.5)
    steps[LAUNCHES] = Step(
        "launches, waits and memory of training steps", launches.__name__, folder, 2, f"{launches.NAME}.json"
    )
    run = ["--overrides", "encoder=conformer_xs", "optimizer.lr=1e-3"]
    steps[TRAINING] = Step(
        "losses of 300 steps, compared with those on a CPU",
        training.__name__,
        [*device_options, *run, *folder],
        4,
        f"{training.NAME}.json",
    )
    inputs = [*(["--models", *models] if models else []), *(["--audio", *audio] if audio else [])]
    methods = ["-vv", "-p", "no:cacheprovider", "tests/test_devices.py"]
    steps[METHODS] = Step("methods of computing a step", "pytest", methods, 4, LOG)
    steps[RECOGNITION] = Step(
        "recognition", recognition.__name__, [*device_options, *inputs, *folder], 3, f"{recognition.NAME}.json"
    )
    large = ["encoder=conformer_m", "data.batch_seconds=400", "data.num_workers=8"]
    rates = ["--without-reference", "--steps", "100", "--utterances", "800", "--words", "24", "--name", RATES_NAME]
    rates += ["--runs", *list(training.RUNS)[1:], "--overrides", *large]
    steps[RATES] = Step(
        "a training run with 8 workers", training.__name__, [*device_options, *rates, *folder], 3, f"{RATES_NAME}.json"
    )
    profile = [*device_options, "--precision", "bfloat16", "--size", "l", "--batch-seconds", "400", *folder]
    steps["profile"] = Step(
        "kernels of a training step of L", "benchmarks.step_profile", profile, 1, "step_profile.json"
    )
    latency = [*bf16, "--sizes", "s", "l", "--batches", "1x10", "8x10", *folder]
    steps["inference"] = Step("inference", "benchmarks.inference", latency, 1, "inference_bfloat16.json")
    for size in ("s", "l"):
        compiled = ["--sizes", size, "--batches", "--batch-seconds", "100", "400", "--turns", "5", "--compile"]
        steps[f"compiled_{size}"] = _train_step(f"compiled steps of {size}", [*bf16, *compiled, *folder], 4)
    if not tiny:
        return steps
    return {
        name: steps[name]._replace(arguments=[*steps[name].arguments, *extra], minutes=TINY_MINUTES)
        for name, extra in TINY.items()
    }


def _train_step(description: str, arguments: Sequence[str], minutes: float) -> Step:
    return Step(description, "benchmarks.train_step", arguments, minutes, "train_step_bfloat16.json")


# The steps that can run on a CPU, each with arguments for tiny sizes. These arguments are appended to the step's own
# arguments, and override them, because argparse uses the last value of an option.
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
