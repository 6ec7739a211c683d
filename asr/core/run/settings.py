"""The settings of a run: conf/train.yaml with its overrides, read once and passed on by section."""

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch

from asr.base.settings.plugins import NAMES
from asr.base.settings.read import REST, Key, read
from asr.base.settings.rule import (
    BOUND,
    DECAY,
    DEVICES,
    FOLDER,
    PATH,
    PRECISION,
    PROBABILITY,
    SWITCH,
    TEXT,
    THREADS,
    Rule,
    above,
    list_of,
    number,
    one_of,
    or_null,
    whole,
)
from asr.base.system.processes import workers_beside
from asr.core.build import find_class
from asr.core.checkpoint.saved import SELECTIONS
from asr.core.data.settings import CorpusSettings, DataSettings
from asr.core.data.training_set import RunBounds
from asr.errors import InputError, shown

# Sections of a config that only asr.core.build reads: those that every objective needs, and those that it may have.
OF_EVERY_OBJECTIVE = ("objective", "optimizer", "schedule")
OPTIONAL = ("callback", "logger")

FROM_TEXTS = "texts"  # value of init.extend_tokenizer
_PIECES = list_of(TEXT, "of pieces, such as [Ä,ö]", least=1)
EXTENSION = Rule(f"{FROM_TEXTS} or {_PIECES.words}", lambda value: value == FROM_TEXTS or _PIECES.holds(value))

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class InitSettings:
    """The trained model from which a run starts.

    Args:
        source: path or hf:// name of the model; None: random weights.
        parts: parts whose weights are loaded: encoder, head or both.
        frozen: name patterns of weights that are not trained.
        frozen_steps: number of optimizer steps for which these weights are not trained; None: all steps.
        extend_tokenizer: pieces that are appended to the model's tokenizer; FROM_TEXTS: the characters of the training
            texts that it cannot spell; None: none.
        share: share of the model in each weight of the run's bundle, which reduces forgetting.
    """

    source: Annotated[str | None, or_null(TEXT), Key("from")]
    parts: Annotated[list[str], list_of(one_of("encoder", "head"), "of encoder and head", least=1)]
    frozen: Annotated[list[str], list_of(TEXT, "of patterns, such as [encoder.subsampling.*]")]
    frozen_steps: Annotated[int | None, or_null(whole(1))]
    extend_tokenizer: Annotated[str | list[str] | None, or_null(EXTENSION)] = None
    share: Annotated[float, PROBABILITY] = 0.0

    def __post_init__(self) -> None:
        if self.source is not None:
            return
        if self.extend_tokenizer is not None:
            must = "init.extend_tokenizer extends the tokenizer of a trained model, and needs init.from=MODEL"
            raise InputError(f"{must}; got null.")
        if self.share:
            raise InputError(
                f"init.share is a share of a trained model, and needs init.from=MODEL; got {self.share:g}."
            )


@dataclass(frozen=True)
class CheckpointSettings:
    """When checkpoints are written, and which of them the bundle contains.

    Args:
        every_steps: maximum number of optimizer steps between two checkpoints.
        every_minutes: maximum minutes between two checkpoints.
        select: rule that selects the checkpoints whose weights the bundle contains.
        keep: number of validated checkpoints that are stored.
    """

    every_steps: Annotated[int, whole(1)]
    every_minutes: Annotated[float, above(0)]
    select: Annotated[str, one_of(*SELECTIONS)]
    keep: Annotated[int, whole(1)]


@dataclass(frozen=True)
class ResumeSettings:
    """How a run is resumed.

    Args:
        allow: settings that may differ from the checkpoint's settings.
        requeue: whether a job that SLURM stops is requeued.
    """

    allow: Annotated[list[str], list_of(TEXT, "of settings, such as [world_size]")]
    requeue: Annotated[bool, SWITCH]


@dataclass(frozen=True)
class DebugSettings:
    """Settings of the files in conf/debug.

    Args:
        same_utterances: whether to validate and test on the training utterances.
        max_wer: WER on the test manifests, a fraction, above which the run ends with an error; None: no limit.
        profile_batches: number of batches that torch's profiler records; None: no profile.
    """

    same_utterances: Annotated[bool, SWITCH]
    max_wer: Annotated[float | None, or_null(number(0))]
    profile_batches: Annotated[int | None, or_null(whole(1, 1_000))]


@dataclass(frozen=True)
class DoctorSettings:
    """Settings of asr.doctor.

    Args:
        report: path of the report; None: doctor.html in run_dir.
        max_utterances: maximum number of utterances examined in a split whose audio is in shards or at URLs; None: all.
        listen_hours: maximum hours of audio to decode; None: all.
        model: trained model whose alignment scores detect wrong texts; None: texts are not checked with a model.
        card_gigabytes: memory of the GPU to train on, in GB; None: no comparison.
        learning_rates: whether to train a few steps with a rising learning rate.
    """

    report: Annotated[str | None, or_null(PATH)]
    max_utterances: Annotated[int | None, or_null(whole(1))]
    listen_hours: Annotated[float | None, or_null(above(0))]
    model: Annotated[str | None, or_null(TEXT)]
    card_gigabytes: Annotated[float | None, or_null(above(0))]
    learning_rates: Annotated[bool, SWITCH]


@dataclass(frozen=True)
class EmaSettings:
    """The moving average of the weights.

    Args:
        decay: decay of the average per optimizer step; None: no average.
    """

    decay: Annotated[float | None, DECAY]


@dataclass(frozen=True)
class EarlyStoppingSettings:
    """When training ends early.

    Args:
        patience: number of consecutive validations without a new best WER or perplexity after which training ends;
            None: no limit.
    """

    patience: Annotated[int | None, or_null(whole(1))]


@dataclass(frozen=True)
class TrainerSettings:
    """Arguments of Lightning's Trainer.

    Args:
        accelerator: kind of device; auto: a GPU if there is one.
        devices: number of devices, -1 or auto for all, or a list of their numbers.
        num_nodes: number of machines.
        strategy: how processes share the work: ddp, fsdp, or another name that Lightning knows.
        precision: precision of weights and computation.
        max_epochs: number of epochs after which the run ends; -1 or None: no limit.
        max_steps: number of optimizer steps after which the run ends; -1: no limit.
        gradient_clip_val: maximum norm of the gradient; None: not clipped.
        accumulate_grad_batches: batches per process in an optimizer step.
        check_val_every_n_epoch: epochs between two validations; None: val_check_interval counts batches across epochs.
        log_every_n_steps: optimizer steps between two lines of metrics.
        others: further arguments of the Trainer, which Lightning checks.
    """

    accelerator: Annotated[str, one_of("auto", "cpu", "gpu", "cuda", "mps")]
    devices: Annotated[int | str | list[int], DEVICES]
    num_nodes: Annotated[int, whole(1, 100_000)]
    strategy: Annotated[str, TEXT]
    precision: Annotated[int | str, PRECISION]
    max_epochs: Annotated[int | None, or_null(BOUND)]
    max_steps: Annotated[int, BOUND]
    gradient_clip_val: Annotated[float | None, or_null(number(0))]
    accumulate_grad_batches: Annotated[int, whole(1)]
    check_val_every_n_epoch: Annotated[int | None, or_null(whole(1))]
    log_every_n_steps: Annotated[int, whole(1)]
    others: Annotated[Mapping[str, Any], REST]

    def __post_init__(self) -> None:
        if not any((bound or -1) > 0 for bound in (self.max_epochs, self.max_steps)):
            given = f"got {self.max_epochs} and {self.max_steps}"
            raise InputError(f"trainer.max_epochs or trainer.max_steps must be positive, to bound the run; {given}.")
        if self.is_sharded and str(self.precision).startswith("16"):
            must = "trainer.precision must be 32-true or bf16-mixed with trainer.strategy=fsdp"
            raise InputError(f"{must}, which is untested with the loss scaling of float16; got {self.precision}.")

    @property
    def is_sharded(self) -> bool:
        """Whether each process stores a part of the weights."""
        return self.strategy == "fsdp"

    @property
    def bounds(self) -> RunBounds:
        """Limits at which the run ends."""
        return RunBounds(self.max_epochs, self.max_steps, self.accumulate_grad_batches)

    def num_processes(self) -> tuple[int, str]:
        """Return the number of processes of a run on this machine, and the settings that determine it."""
        devices, given = self.devices, f"trainer.devices={self.devices}, trainer.num_nodes={self.num_nodes}"
        if isinstance(devices, str) and devices not in ("auto", "-1"):
            listed = [part for part in devices.split(",") if part.strip()]
            devices = [int(part) for part in listed] if "," in devices else int(devices)
        if isinstance(devices, list):
            return len(devices) * self.num_nodes, given
        if isinstance(devices, int) and devices != -1:
            return devices * self.num_nodes, given
        if self.accelerator == "cpu":
            return self.num_nodes, f"{given}, and on the CPU"
        gpus = torch.cuda.device_count()
        return max(1, gpus) * self.num_nodes, f"{given}, and this machine has {gpus or 'no'} GPU{'s' * (gpus != 1)}"


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of a run with any objective.

    Args:
        components: the sections of the components, by name; only asr.core.build reads them.
        plugins: packages outside of asr that contain components.
        seed: seed of all random numbers.
        run_dir: folder of the run.
        num_threads: number of threads of the training process on a CPU.
        checkpoint: section.
        resume: section.
        ema: section.
        early_stopping: section.
        trainer: section.
    """

    components: Annotated[Mapping[str, Any], REST]
    plugins: Annotated[list[str], NAMES]
    seed: Annotated[int, whole(0, 2**32 - 1)]
    run_dir: Annotated[str, FOLDER]
    num_threads: Annotated[int, THREADS]
    checkpoint: CheckpointSettings
    resume: ResumeSettings
    ema: EmaSettings
    early_stopping: EarlyStoppingSettings
    trainer: TrainerSettings

    def __post_init__(self) -> None:
        check_sections(self.components)


@dataclass(frozen=True)
class RunSettings(TrainingSettings):
    """All settings of a run on speech, conf/train.yaml; the others are those of `TrainingSettings`.

    Args:
        corpus: section.
        init: section.
        data: section.
        gradient_checkpointing: whether activations are computed twice instead of stored.
        compile_blocks: whether the blocks of the encoder are compiled.
        debug: section.
        doctor: section.
    """

    corpus: CorpusSettings
    init: InitSettings
    data: DataSettings
    gradient_checkpointing: Annotated[bool, SWITCH]
    compile_blocks: Annotated[bool, SWITCH]
    debug: DebugSettings
    doctor: DoctorSettings

    @property
    def num_workers(self) -> int:
        """Number of worker processes of each training process: `data.num_workers`, or what suits this machine."""
        if self.data.num_workers is not None:
            return self.data.num_workers
        return workers_beside(self.trainer.num_processes()[0] // self.trainer.num_nodes)

    def with_batch_seconds(self, batch_seconds: float) -> "RunSettings":
        """Return the settings with another `data.batch_seconds`."""
        plan = self.data.plan
        plan = replace(plan, batches=replace(plan.batches, batch_seconds=batch_seconds))
        return replace(self, data=replace(self.data, plan=plan))

    def with_accumulation(self) -> "RunSettings":
        """Return the settings whose batches and accumulation give an optimizer step of `data.step_seconds`.

        A step of each process is divided into the smallest number of equal batches of at most `data.batch_seconds`.

        Raises:
            InputError: a batch would be too short for the longest utterances.
        """
        total = self.data.step_seconds
        if total is None or self.data.plan.batches.is_auto:
            return self
        processes, why = self.trainer.num_processes()
        given = self.data.plan.batches.seconds
        number = max(1, math.ceil(total / (processes * given) - 1e-9))  # - 1e-9: rounding of a batch found before
        seconds = total / (processes * number)
        head = self.components.get("head")
        views: int = getattr(find_class("head", head.get("name")), "views", 1) if isinstance(head, Mapping) else 1
        longest = views * self.data.plan.selection.max_seconds
        least = longest if longest <= given else given / 2  # shorter batches would drop utterances
        if seconds < least:
            parts = f"batches of {least:g} to {given:g} s for each of {processes} processes ({why})"
            cure = "Take fewer devices, another data.step_seconds or a lower data.max_seconds"
            raise InputError(f"data.step_seconds must be divisible into equal {parts}; got {total:g}. {cure}.")
        trainer = replace(self.trainer, accumulate_grad_batches=number)
        return replace(self.with_batch_seconds(seconds), trainer=trainer)

    @property
    def step_size(self) -> str:
        """Description of the size of an optimizer step."""
        processes, _ = self.trainer.num_processes()
        number, seconds = self.trainer.accumulate_grad_batches, self.data.plan.batches.seconds
        batches = f"{processes} x {number} batches of {seconds:g} s (processes, trainer.accumulate_grad_batches)"
        return f"an optimizer step has at most {processes * number * seconds:g} s of audio with padding: {batches}"

    def __post_init__(self) -> None:
        super().__post_init__()
        TEXT.check("normalizer", self.components.get("normalizer", "none"))
        if "adapter" in self.components:
            self._check_adapter(str(self.components["adapter"].get("name")))
        prompt = self.components.get("prompt", {})
        if "label" in prompt and prompt["label"] not in self.corpus.labels:
            must = f"corpus.labels must name the label of prompt={prompt.get('name')}, {shown(prompt['label'])}"
            raise InputError(f"{must}; got {shown(self.corpus.labels)}. Give corpus.labels=[{prompt['label']}].")
        if not self.corpus.valid:
            self._check_without_validation()
        if self.trainer.is_sharded and self.compile_blocks:
            must = "compile_blocks must be false with trainer.strategy=fsdp, which replaces the weights in each block"
            raise InputError(f"{must}; got true.")
        if self.trainer.is_sharded and self.components["encoder"].get("name") == "transformer_xl":
            must = "trainer.strategy must be ddp with encoder=transformer_xl"
            raise InputError(f"{must}, whose number of passes through a block depends on the batch; got fsdp.")

    def _check_without_validation(self) -> None:
        """Check that no setting needs a validation."""
        select, patience = self.checkpoint.select, self.early_stopping.patience
        for setting, given in (
            ("checkpoint.select=last", None if select == "last" else select),
            ("early_stopping.patience=null", patience),
        ):
            if given is not None:
                must = f"{setting} is needed without a validation (corpus.valid=[])"
                raise InputError(f"{must}; got {shown(given)}. Give {setting}, or a validation manifest.")

    def _check_adapter(self, name: str) -> None:
        """Check the settings that an adapter depends on."""
        if self.init.source is None:
            raise InputError(f"adapter={name} needs a trained model to adapt; give init.from=MODEL.")
        if self.init.frozen_steps is not None:
            must = f"init.frozen_steps must be null with adapter={name}, whose base is frozen for the whole run"
            raise InputError(f"{must}; got {self.init.frozen_steps}.")


def sections_of(components: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the sections that the objective of these components needs, and those that it may have."""
    objective = _objective_of(components)
    return [*OF_EVERY_OBJECTIVE, *objective.sections], [*OPTIONAL, *objective.optional]


def command_of(components: Mapping[str, Any]) -> str:
    """Return the name of the command that trains with the objective of these components; its settings' file, too."""
    command: str = _objective_of(components).command
    return command


def _objective_of(components: Mapping[str, Any]) -> Any:
    """Return the class of the objective of these components."""
    chosen = components.get("objective")
    return find_class("objective", chosen.get("name") if isinstance(chosen, Mapping) else chosen)


def check_sections(components: Mapping[str, Any]) -> None:
    """Check that a config has the sections that its objective needs, and no unknown ones."""
    required, optional = sections_of(components)
    missing = [name for name in required if name not in components]
    unknown = [str(name) for name in components if name not in (*required, *optional)]
    if missing or unknown:
        must = f"a config must have the sections of objective={components['objective']['name']} and no others"
        raise InputError(f"{must}; missing: {', '.join(missing) or 'none'}, unknown: {', '.join(unknown) or 'none'}.")


def without_unused(resolved: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Leave out the sections of components that the objective does not use, such as the head in a pre-training.

    Args:
        resolved: the config of asr.train.
        overrides: overrides on the command line.
    """
    recognition: Any = find_class("objective", "recognition")
    required, optional = sections_of(resolved)
    used = [*required, *optional]
    unused = [name for name in (*recognition.sections, *recognition.optional) if name not in used]
    for override in overrides:
        if (section := re.split(r"[=./@]", override.lstrip("+~"))[0]) in unused:
            must = f"{section} must be left out with objective={resolved['objective']['name']}, which does not use it"
            raise InputError(f"{must}; got {override}.")
    if absent := [name for name in unused if name in resolved]:
        logger.info("objective=%s does not use %s", resolved["objective"]["name"], ", ".join(absent))
    return {name: section for name, section in resolved.items() if name not in unused}


def read_run_settings(resolved: Mapping[str, Any]) -> RunSettings:
    """Read the resolved config of a run."""
    settings: RunSettings = read(RunSettings, resolved)
    divided, given = settings.with_accumulation(), settings.trainer.accumulate_grad_batches
    if settings.data.step_seconds is not None and given not in (1, divided.trainer.accumulate_grad_batches):
        must = "trainer.accumulate_grad_batches must be left out with data.step_seconds, from which it follows"
        raise InputError(f"{must}; got {given}. Leave it out, or give data.step_seconds=null.")
    return divided
