"""Interfaces of objectives: what a training minimises, on what data, how it is validated, and what it writes.

`run_training` runs an objective in these steps: `Objective.read` reads the settings and `Objective.check` checks them,
`prepare` reads the data, `build` makes the model with its losses, its data module and its callbacks, Lightning trains,
and `finish` writes and tests the bundle.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, NoReturn, Protocol, TypeVar

import torch
from torch import Tensor, nn

from asr.base.text.numbers import percent
from asr.core.data.token_counts import TokenCounts
from asr.core.data.utterances import Utterances
from asr.core.evaluation.perplexity import written
from asr.core.recognition.model import Model
from asr.core.run.run import Run
from asr.core.run.settings import RunSettings, TrainingSettings
from asr.core.training.losses import Losses

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from asr.core.training.data_module import TrainingData

Result = TypeVar("Result")
Inputs = TypeVar("Inputs")
S = TypeVar("S", bound=TrainingSettings)
FindBatchSeconds = Callable[[RunSettings, Utterances, Model, TokenCounts], float]


class Measure(NamedTuple):
    """The metric of a validation, which selects checkpoints and stops a training early; lower is better.

    Args:
        name: name in the names of metrics and checkpoints: lower-case letters and underscores.
        title: name in the log.
        write: formats a value, given the number of digits after the decimal point.
    """

    name: str
    title: str
    write: Callable[[float, int], str]


WER = Measure("wer", "WER", percent)
PERPLEXITY = Measure("perplexity", "perplexity per word", written)


class Rate(NamedTuple):
    """The unit in which the speed of a training is logged.

    Args:
        name: the metric is `train/<name>_per_second`.
        title: name in the log.
        per_element: number of these units in an element of a batch without padding, such as a feature frame.
    """

    name: str
    title: str
    per_element: float


class TrainedBatch(Protocol):
    """A batch of B examples, with tensors that can be moved to a device."""

    @property
    def ids(self) -> Sequence[str]:
        """Names of the B examples, for messages."""

    @property
    def rejected(self) -> Sequence[Any]:
        """Planned utterances that could not be read (`Rejected`)."""

    @property
    def sizes(self) -> Tensor:
        """Number of elements of each example without padding, such as feature frames, (B,) on the batch's device."""

    @property
    def padded_size(self) -> int:
        """Number of elements of the batch including padding."""

    @property
    def contents(self) -> Mapping[str, Any]:
        """The tensors, by name, which are stored if a loss is not finite."""

    def __len__(self) -> int:
        """Return B."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Any:
        """Return the batch on a device."""


def described(rejected: Sequence[Any]) -> list[tuple[str, str]]:
    """Return reason and id of rejected utterances."""
    return [(example.reason, example.utterance.id) for example in rejected]


class Processes(Protocol):
    """The processes of a training. All of them must call each method, in the same order."""

    @property
    def is_first(self) -> bool:
        """Whether this is the first process, which alone writes files."""

    @property
    def device(self) -> torch.device:
        """Device of this process."""

    def add_up(self, values: Tensor) -> Tensor:
        """Sum a tensor over all processes."""

    def gather(self, own: list[Result]) -> list[Result]:
        """Concatenate the lists of all processes, in order."""

    def fail_together(self, message: str) -> NoReturn:
        """Stop all processes; the first reports the error."""


class Validation(Protocol):
    """Sums of one validation in one process."""

    def add(self, batch: Any) -> None:
        """Add a batch."""

    def metrics(self, processes: Processes) -> Mapping[str, float]:
        """Return the metrics over all processes, by name: the objective's measure, `loss`, and others."""


class Trainable(Protocol):
    """A model with its losses. It contains no data, because a moving average copies it.

    Attributes:
        model: what is trained and saved.
        loss_names: names of the losses besides "loss".
        rate: unit of the speed.
        own_tensors: names of the model's tensors that a checkpoint contains; None: all. The others never change.
        blocks: parts of the model whose weights are gathered one part at a time if weights are sharded.
        depths: depths of weights by name, from which an optimizer can derive their learning rates; {}: all are equal.
    """

    model: Any
    loss_names: Sequence[str]
    rate: Rate
    own_tensors: Collection[str] | None
    blocks: Sequence[nn.Module]
    depths: Mapping[str, int]

    def losses(self, batch: Any) -> Losses:
        """Compute the losses of a batch with at least one example; all random numbers are drawn here."""

    def idle(self) -> Tensor:
        """Return a zero, (1,), that depends on every trained weight: the loss of a batch without examples."""

    def too_large(self, batch: Any | None) -> str:
        """Return the error message for a batch that does not fit into memory; None: it is unknown."""

    def validation(self, step: int, epoch: int) -> Validation:
        """Begin a validation after this number of optimizer steps, in this epoch, from 1."""


class Built(NamedTuple, Generic[Inputs]):
    """What is trained, on what, and with what.

    Args:
        trainable: the model with its losses.
        data: the data module.
        callbacks: callbacks of this objective, in the order in which they are called. Those of every objective (trial
            of the largest batch, moving average, early stopping, plugins) are added.
        inputs: what `Objective.prepare` returned, reduced to what the training uses.
    """

    trainable: Trainable
    data: "TrainingData"
    callbacks: "Sequence[pl.Callback]"
    inputs: Inputs


class Objective(Protocol[S, Inputs]):
    """What is trained: a component, conf/objective/<name>.yaml and <package>/objective/<name>.py.

    `S` is the class of its settings; `Inputs` is what it reads before it makes the model.

    Attributes:
        command: name of the command that trains with it, asr.<command>, whose settings are conf/<command>.yaml.
        measure: metric of validations.
        sections: sections of the config that the objective needs, besides `OF_EVERY_OBJECTIVE`.
        optional: sections that its config may have. Other sections are left out; an override of one is refused.
    """

    command: ClassVar[str]
    measure: ClassVar[Measure]
    sections: ClassVar[Sequence[str]]
    optional: ClassVar[Sequence[str]]

    def read(self, resolved: Mapping[str, Any], overrides: Sequence[str]) -> S:
        """Read the settings from the config; overrides of the command line precede components of an initial model."""

    def check(self, components: Mapping[str, Any]) -> None:
        """Check the settings of all components, and their combination, before a training begins."""

    def prepare(self, run: Run[S], find_batch_seconds: "FindBatchSeconds | None") -> tuple[Run[S], Inputs]:
        """Read the data, fit what is fitted, and enter the run.

        The first process calls this method before the others, which read the files that it has written.

        Args:
            run: the open run.
            find_batch_seconds: finds a number for `data.batch_seconds=auto` of a recogniser in the first process of a
                new run; None: `auto` is refused.
        """

    def build(self, run: Run[S], inputs: Inputs) -> Built[Inputs]:
        """Make the model with its losses, the data module and the callbacks; log sizes and the start of the run."""

    def finish(self, run: Run[S], inputs: Inputs, device: torch.device) -> None:
        """Write the bundle and test it; only the first process calls this method.

        Raises:
            InputError: a setting refuses the results of the tests; the report of the run is written nevertheless.
        """
