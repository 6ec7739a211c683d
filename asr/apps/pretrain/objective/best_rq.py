"""Pre-training of an encoder on speech without texts: predict the codes of masked frames (BEST-RQ)."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.apps.pretrain.without_texts import EncoderWithOutput, TrainableEncoder, WithoutTexts
from asr.base.kernels.choice import exact
from asr.base.settings.rule import above, number, whole
from asr.base.system.seeds import derive_seed
from asr.base.text.numbers import percent
from asr.core import build
from asr.core.data.batch import Batch, Rejected
from asr.core.evaluation.perplexity import of_loss, written
from asr.core.training.losses import Losses
from asr.core.training.objective import Measure, Processes, described
from asr.errors import InputError
from asr.interfaces import Encoder, Features
from asr.lengths import padding_mask

PERPLEXITY_OF_CODES = Measure("masked_perplexity", "perplexity of masked frames", written)

logger = logging.getLogger(__name__)


class RandomQuantizer(nn.Module):
    """A random projection and a random codebook, which are never trained.

    Args:
        input_dim: dimension of a vector.
        codebook_size: number of codes V.
        codebook_dim: dimension of the projection and of a code.
        seed: seed of both.
    """

    projection: Tensor
    codebook: Tensor

    def __init__(self, input_dim: int, codebook_size: int, codebook_dim: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        limit = math.sqrt(6 / (input_dim + codebook_dim))  # Xavier
        projection = torch.rand(input_dim, codebook_dim, generator=generator) * (2 * limit) - limit
        codebook = torch.randn(codebook_size, codebook_dim, generator=generator)
        self.register_buffer("projection", projection)
        self.register_buffer("codebook", F.normalize(codebook, dim=1))

    @torch.no_grad()
    def forward(self, vectors: Tensor) -> Tensor:
        """Return the nearest code of each projected vector of unit norm, (B, T', input_dim) -> (B, T') int64."""
        with torch.autocast(vectors.device.type, enabled=False):
            projected = F.normalize(vectors.to(self.projection.dtype) @ self.projection, dim=-1)
            return (projected @ self.codebook.T).argmax(dim=-1)


class PretrainedEncoder(EncoderWithOutput):
    """An encoder, and the prediction of codes from its output.

    Args:
        features: fitted features.
        encoder: the encoder to train.
        quantizer: gives each encoder frame its code.
        codebook_size: number of codes V.
    """

    def __init__(self, features: Features, encoder: Encoder, quantizer: RandomQuantizer, codebook_size: int) -> None:
        super().__init__(features, encoder, codebook_size)
        self.quantizer = quantizer

    def codes(self, features: Tensor, feature_lengths: Tensor) -> Tensor:
        """Return the code of each encoder frame, (B, T'), from features (B, T, F) without masks.

        The `stride` feature frames of an encoder frame are one vector. Frames after the end of an utterance are zero.
        """
        num_frames, stride = int(self.encoder.output_lengths(features.shape[1])), self.encoder.stride
        features = features.masked_fill(padding_mask(feature_lengths, features.shape[1])[:, :, None], 0.0)
        features = F.pad(features, (0, 0, 0, max(0, num_frames * stride - features.shape[1])))
        return self.quantizer(features[:, : num_frames * stride].unflatten(1, (num_frames, stride)).flatten(2))

    def log_probs(self, features: Tensor, feature_lengths: Tensor, num_frames: int) -> Tensor:
        """Return the log-probabilities of the codes at the first frames, (B, num_frames, V), at least float32."""
        logits = self.output(self.encoder(features, feature_lengths).out[:, :num_frames])
        return F.log_softmax(logits, dim=-1, dtype=None if logits.dtype.itemsize >= 4 else torch.float32)


class MaskedPrediction(TrainableEncoder[PretrainedEncoder]):
    """Masks, and the cross-entropy of the codes at the masked encoder frames.

    Args:
        model: the model to train.
        mask_probability: probability with which a masked span begins at a feature frame.
        span: length of a span in encoder frames.
        noise: standard deviation of the noise that replaces masked features.
        seed: seed of the masks of validations.
    """

    loss_names: Sequence[str] = ("accuracy",)

    def __init__(
        self, model: PretrainedEncoder, *, mask_probability: float, span: int, noise: float, seed: int
    ) -> None:
        super().__init__(model)
        # The paper draws for each feature frame; here, spans begin at encoder frames.
        self._probability = 1 - (1 - mask_probability) ** model.encoder.stride
        self._span, self._noise, self._seed = span, noise, seed

    def mask(self, frames: Tensor, num_frames: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw the masked encoder frames.

        Args:
            frames: number of encoder frames of each utterance, (B,).
            num_frames: T'.
            generator: source of random numbers; None: torch's own.

        Returns:
            True where an encoder frame is masked, (B, T').
        """
        drawn = torch.rand(len(frames), num_frames, device=frames.device, generator=generator)
        begins = F.pad((drawn < self._probability).to(drawn.dtype), (self._span - 1, 0))  # (B, T' + span - 1)
        is_masked = F.max_pool1d(begins[:, None], self._span, stride=1)[:, 0] > 0
        return is_masked & ~padding_mask(frames, num_frames)

    def predict(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities (B, T', V), codes (B, T') and mask (B, T') of a batch."""
        model, features, lengths = self.model, batch.features, batch.feature_lengths
        num_frames, stride = int(model.encoder.output_lengths(features.shape[1])), model.encoder.stride
        codes = model.codes(features, lengths)
        mask = self.mask(model.encoder.output_lengths(lengths), num_frames, generator)
        of_features = F.pad(mask.repeat_interleave(stride, dim=1), (0, max(0, features.shape[1] - num_frames * stride)))
        noise = torch.randn(features.shape, device=features.device, dtype=features.dtype, generator=generator)
        masked = torch.where(of_features[:, : features.shape[1], None], self._noise * noise, features)
        return model.log_probs(masked, lengths, num_frames), codes, mask

    def losses(self, batch: Batch) -> Losses:
        """Compute the cross-entropy at the masked frames of each utterance, (B,), and the number of correct codes."""
        log_probs, codes, mask = self.predict(batch)
        loss = -log_probs.gather(2, codes[:, :, None])[:, :, 0].masked_fill(~mask, 0.0).sum(dim=1)
        correct = ((log_probs.argmax(dim=2) == codes) & mask).sum(dim=1).to(loss.dtype)
        return Losses({"loss": loss, "accuracy": correct}, mask.sum(dim=1))

    def validation(self, step: int, epoch: int) -> "CodeValidation":
        """Begin a validation, whose masks are the same in each validation."""
        return CodeValidation(self, self._seed)


class CodeValidation:
    """Sums of a validation in one process: losses, and how often each code occurs.

    Args:
        trainable: computes the losses.
        seed: seed of the masks.
    """

    def __init__(self, trainable: MaskedPrediction, seed: int) -> None:
        self._trainable, self._seed = trainable, seed
        self._rejected: list[Rejected] = []
        self._sums: list[Tensor] = []  # of each batch: loss, number of correct codes, number of masked frames
        self._counts = torch.zeros(len(trainable.model.quantizer.codebook), dtype=torch.float64)

    @torch.no_grad()
    def add(self, batch: Batch) -> None:
        """Add a batch."""
        self._rejected += batch.rejected
        if not len(batch):
            return
        device = batch.features.device
        generator = torch.Generator(device).manual_seed(derive_seed(self._seed, "validation", batch.ids[0]))
        log_probs, codes, mask = self._trainable.predict(batch, generator)
        chosen, targets = log_probs[mask].to(exact(device)), codes[mask]
        loss = -chosen.gather(1, targets[:, None]).sum()
        correct = (chosen.argmax(dim=1) == targets).sum()
        self._sums.append(torch.stack([loss, correct.to(loss.dtype), mask.sum().to(loss.dtype)]).cpu().double())
        frames = self._trainable.model.encoder.output_lengths(batch.feature_lengths)
        spoken = codes[~padding_mask(frames, codes.shape[1])]
        self._counts += torch.bincount(spoken, minlength=len(self._counts)).cpu()

    def metrics(self, processes: Processes) -> dict[str, float]:
        """Return perplexity, loss, accuracy, and the entropy and use of the codes: sums over all processes.

        A model that knows only how frequent each code is has the entropy as its loss.
        """
        for reason, utterance_id in processes.gather(described(self._rejected)):
            logger.warning("validation: skipped %r: %s", utterance_id, reason)
        own = torch.cat([torch.stack([torch.zeros(3, dtype=torch.float64), *self._sums]).sum(dim=0), self._counts])
        sums = processes.add_up(own.to(exact(processes.device)).to(processes.device)).cpu().double()
        (loss, correct, masked), counts = sums[:3].tolist(), sums[3:]
        if not masked:
            processes.fail_together("validation must have a masked frame; got none. Give more validation utterances.")
        shares = counts[counts > 0] / counts.sum()
        entropy, used = float(-(shares * shares.log()).sum()), len(shares) / len(counts)
        accuracy = correct / masked
        codes = f"entropy {entropy:.3f} nats, {percent(used)} of the codes in use"
        logger.info("codes: %s; %s of the masked frames are predicted", codes, percent(accuracy))
        measures = {"accuracy": accuracy, "code_entropy": entropy, "codes_used": used}
        return {PERPLEXITY_OF_CODES.name: of_loss(loss / masked), "loss": loss / masked, **measures}


class BestRQ(WithoutTexts):
    """BEST-RQ: self-supervised learning with a random-projection quantizer.

    *Source*: Chiu et al. 2022, arXiv:2202.01855. Spans of features are replaced by noise; the encoder predicts the
    codes of the masked frames, which a random projection and a random codebook give to the unmasked features.

    Args:
        codebook_size: number of codes.
        codebook_dim: dimension of a code.
        codebook_seed: seed of projection and codebook.
        mask_probability: probability with which a masked span begins at a feature frame.
        mask_seconds: length of a span.
        noise: standard deviation of the noise that replaces masked features, relative to normalised features.
    """

    measure: ClassVar[Measure] = PERPLEXITY_OF_CODES

    def __init__(
        self,
        *,
        codebook_size: Annotated[int, whole(2)],
        codebook_dim: Annotated[int, whole(1)],
        codebook_seed: Annotated[int, whole(0)],
        mask_probability: Annotated[float, above(0, 1)],
        mask_seconds: Annotated[float, above(0)],
        noise: Annotated[float, number(0)],
    ) -> None:
        self._codebook = codebook_size, codebook_dim, codebook_seed
        self._mask_probability, self._mask_seconds, self._noise = mask_probability, mask_seconds, noise

    def check(self, components: Mapping[str, Any]) -> None:
        """Check the settings of all components before a training begins."""
        super().check(components)
        if components["features"]["normalize"]["name"] == "none":
            must = "features must be normalised with objective=best_rq, or most frames would have the same code"
            raise InputError(f"{must}; got features/normalize=none. Give features/normalize=global_cmvn.")
        if build.build_augmentation(components, components["features"]["sample_rate"]).features:
            must = "augment must not mask features with objective=best_rq, which masks them itself"
            raise InputError(f"{must}; got {', '.join(components['augment'])}. Give augment=[speed_perturb].")

    def trainable(self, features: Features, encoder: Encoder, seed: int) -> MaskedPrediction:
        """Make the model with its losses."""
        quantizer = RandomQuantizer(encoder.stride * features.dim, *self._codebook)
        model = PretrainedEncoder(features, encoder, quantizer, self._codebook[0])
        span = max(1, round(self._mask_seconds * features.sample_rate / features.hop / encoder.stride))
        masking = {"mask_probability": self._mask_probability, "noise": self._noise}
        return MaskedPrediction(model, span=span, seed=seed, **masking)

    def cells(self, frames: Any) -> Any:
        """Return the number of elements of the log-probabilities for an utterance with these encoder frames."""
        return frames * self._codebook[0]
