"""What the trainings of other toolkits share: sizes, batches of waveforms, and greedy transcription."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from asr.core.build import build_optimizer, build_schedule
from asr.core.data.dataset import Augmentation, Item, SpeechDataset, load_utterance
from asr.core.data.manifest import Utterance
from asr.core.data.waveforms import WaveformBatch, WaveformFeatures, collate_waveforms
from asr.core.run.settings import RunSettings
from asr.interfaces import Moment
from benchmarks.nets import Shape, shape_of
from benchmarks.time_to_wer.watch import Transcribe
from benchmarks.training_speech import TrainingSpeech

EVALUATION_BATCH = 20


class Job(NamedTuple):
    """A training of a peer.

    Args:
        settings: settings of asr.train, which the peer follows.
        speech: the speech to train on.
        is_published: whether the peer uses its published recipe instead of `settings`.
        batches: the batches of all epochs.
    """

    settings: RunSettings
    speech: TrainingSpeech
    is_published: bool
    batches: list[list[Item]]

    @property
    def shape(self) -> Shape:
        """The size of asr's encoder, which the peer copies."""
        return shape_of(self.settings.components["encoder"])

    @property
    def has_optimizer_of_asr(self) -> bool:
        """Whether the peer is given asr's optimizer, because it has none of this kind itself."""
        return not self.is_published and self.settings.components["optimizer"]["name"] != "adamw"

    @property
    def characters(self) -> Sequence[str]:
        """The tokens without the blank, which follows them in a peer's model."""
        return self.speech.tokenizer.pieces[1:]

    def loader(self, collate: Callable[[WaveformBatch], Any]) -> DataLoader[Any]:
        """Return the batches, each converted by `collate`."""
        speech, settings = self.speech, self.settings
        dataset = SpeechDataset(
            speech.training_set.utterances,
            WaveformFeatures(speech.features),  # type: ignore[arg-type]  # as in the data module
            speech.model.reference,
            Augmentation() if self.is_published else speech.augmentation,
            settings.seed,
        )
        return DataLoader(dataset, batch_sampler=self.batches, collate_fn=lambda each: collate(collate_waveforms(each)))


def shuffled(speech: TrainingSpeech, batch_size: int, num_epochs: int, seed: int) -> list[list[Item]]:
    """Draw batches of `batch_size` utterances at random, without a change of speed."""
    draw = torch.Generator().manual_seed(seed)
    batches = []
    for epoch in range(num_epochs):
        order = torch.randperm(len(speech.training_set.utterances), generator=draw).tolist()
        batches += [[Item(epoch, row, 1.0) for row in rows.tolist()] for rows in torch.tensor(order).split(batch_size)]
    return batches


def transcriber(
    characters: Sequence[str], sample_rate: int, frames: Callable[[list[Tensor]], list[Tensor]]
) -> Transcribe:
    """Return greedy transcription.

    Args:
        characters: the tokens; the blank follows them.
        sample_rate: Hz.
        frames: converts waveforms to the most probable token of each frame, (T',) each.
    """

    def text(tokens: Tensor) -> str:
        kept = (token for token, _ in groupby(tokens.tolist()) if token < len(characters))
        return " ".join("".join(characters[token] for token in kept).split())

    @torch.inference_mode()
    def transcribe(utterances: Sequence[Utterance]) -> list[str]:
        waveforms = [load_utterance(utterance, sample_rate) for utterance in utterances]
        batches = (waveforms[start : start + EVALUATION_BATCH] for start in range(0, len(waveforms), EVALUATION_BATCH))
        return [text(tokens) for batch in batches for tokens in frames(batch)]

    return transcribe


class PointwiseConvolution(nn.Linear):
    """A convolution with a kernel of one frame, (B, C, T) -> (B, C', T); its weight is a matrix, as in asr's blocks."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        return F.conv1d(x, self.weight[:, :, None], self.bias)


def pointwise(layer: nn.Conv1d) -> PointwiseConvolution:
    """Return a layer with the weights of a convolution whose kernel has one frame."""
    made = PointwiseConvolution(layer.in_channels, layer.out_channels, bias=layer.bias is not None)
    made.load_state_dict({name: weight.view(weight.shape[:2]) for name, weight in layer.state_dict().items()})
    return made


def optimizer_of_asr(job: Job, model: nn.Module) -> tuple[Optimizer, LambdaLR]:
    """Return the job's optimizer and schedule, with asr's code, for a peer's model.

    The blocks, `model.encoder.layers`, get their matrices as in asr: linear layers, and convolutions with a kernel of
    one frame, the first of which is followed by a gated linear unit.
    """
    depths: dict[str, int] = {}
    for number, block in enumerate(model.encoder.layers):  # type: ignore[union-attr, arg-type]
        for owner in list(block.modules()):
            for name, layer in list(owner.named_children()):
                if isinstance(layer, nn.Conv1d) and layer.kernel_size == (1,):
                    setattr(owner, name, pointwise(layer))
                    if layer.out_channels == 2 * layer.in_channels:
                        owner.stacked_matrices = {name: 2}
        depths |= {f"encoder.layers.{number}.{name}": number + 1 for name, _ in block.named_parameters()}
    components, num_steps = job.settings.components, len(job.batches)
    optimizer = build_optimizer(components, model, depths)
    schedule = build_schedule(components)
    return optimizer, LambdaLR(optimizer, lambda step: schedule(Moment(step, num_steps, 0)))


def num_parameters(model: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(weight.numel() for weight in model.parameters())
