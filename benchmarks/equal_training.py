"""python -m benchmarks.equal_training: train the same model in asr and in other toolkits, and compare the losses.

A small Parakeet-CTC (or NeMo Conformer-CTC) with random weights is converted by `asr.apps.convert`, and both are
trained on equal batches of features by AdamW, without dropout. The loss of a step is the sum over its utterances
divided by the number of their tokens. The table has the largest relative difference of the losses in all steps. With
padding, the peers' batch norms count padded frames, and asr's do not; in the last form asr's are replaced by torch's.
"""

import argparse
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from asr.apps.convert.foreign import Converted
from asr.components.encoder.block.norm.masked_batch_norm import MaskedBatchNorm
from asr.core.checkpoint.load import bundle_recognizer
from asr.core.cli.command import run_command
from asr.core.data.dataset import load_utterance
from asr.core.data.manifest import read_manifest
from asr.core.recognition.model import Model
from benchmarks import results
from benchmarks.machine import about
from benchmarks.results import Results

DIM, LAYERS, HEADS, KERNEL, CHANNELS, MELS = 64, 2, 4, 9, 16, 80
SAMPLE_RATE = 16_000
LEARNING_RATE, BATCH = 1e-3, 4
FORMS = ((False, False), (True, False), (True, True))  # whether batches are padded, and asr's norms count padding


class TrainingBatch(NamedTuple):
    """Features (B, T, F), tokens (B, U) without the blank, which follows them, and their lengths (B,)."""

    features: Tensor
    feature_lengths: Tensor
    tokens: Tensor
    token_lengths: Tensor


class Contender(NamedTuple):
    """A model, and the sum of its losses over the utterances of a batch, ()."""

    model: nn.Module
    loss: Callable[[TrainingBatch], Tensor]


class Pair(NamedTuple):
    """A model of another toolkit, and its conversion to asr."""

    theirs: Contender
    ours: Contender


class TorchBatchNorm(nn.Module):
    """torch's batch norm, which counts padded frames, with the weights and the interface of asr's norm."""

    def __init__(self, norm: MaskedBatchNorm) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(len(norm.weight), eps=norm.eps, momentum=norm.momentum)
        self.norm.load_state_dict(norm.state_dict(), strict=False)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Normalise x (B, T, D)."""
        normalized: Tensor = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return normalized


def count_padding(model: nn.Module) -> None:
    """Replace asr's batch norms by torch's."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, MaskedBatchNorm):
                setattr(module, name, TorchBatchNorm(child))


def ours(converted: Converted) -> Contender:
    """Return the converted model."""
    model: Model = bundle_recognizer(converted.bundle, Path("converted")).model

    def loss(batch: TrainingBatch) -> Tensor:
        encoded = model(batch.features, batch.feature_lengths)
        targets = {"tokens": batch.tokens + 1, "token_lengths": batch.token_lengths}  # our blank is 0
        return model.head.losses(encoded, targets)["loss"].sum()

    return Contender(model, loss)


def parakeet(folder: Path) -> Pair:
    """Make a Parakeet-CTC of transformers."""
    from transformers import ParakeetCTCConfig, ParakeetFeatureExtractor, ParakeetForCTC

    from asr.apps.convert.huggingface.convert import from_huggingface
    from tests.parakeet import tokenizer

    pieces = tokenizer()
    blank = pieces.pad_token_id
    encoder = {
        "hidden_size": DIM,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 4 * DIM,
        "conv_kernel_size": KERNEL,
        "subsampling_conv_channels": CHANNELS,
        "num_mel_bins": MELS,
        "scale_input": False,  # asr multiplies this scale into the weights before it, which changes AdamW's steps
        **dict.fromkeys(("dropout", "layerdrop", "activation_dropout", "attention_dropout"), 0.0),
    }
    config = ParakeetCTCConfig(
        vocab_size=blank + 1,
        pad_token_id=blank,
        encoder_config=encoder,
        ctc_loss_reduction="sum",
        ctc_zero_infinity=False,
    )
    model = ParakeetForCTC(config)
    model.save_pretrained(folder)
    pieces.save_pretrained(folder)
    ParakeetFeatureExtractor(feature_size=MELS, sampling_rate=SAMPLE_RATE).save_pretrained(folder)

    def loss(batch: TrainingBatch) -> Tensor:
        rows = torch.arange(batch.features.shape[1])
        columns = torch.arange(batch.tokens.shape[1])
        labels = batch.tokens.masked_fill(columns >= batch.token_lengths[:, None], blank)
        valid = rows < batch.feature_lengths[:, None]
        summed: Tensor = model(input_features=batch.features, attention_mask=valid, labels=labels).loss
        return summed

    return Pair(Contender(model, loss), ours(from_huggingface(folder)))


def conformer(folder: Path) -> Pair:
    """Make a Conformer-CTC of NeMo."""
    from nemo.collections.asr.models import EncDecCTCModelBPE
    from omegaconf import OmegaConf

    from asr.apps.convert.nemo.convert import from_nemo
    from tests.nemo import nemo_config, sentencepiece_model, vocabulary

    folder.mkdir(parents=True)
    (folder / "tokenizer.model").write_bytes(sentencepiece_model())
    (folder / "vocab.txt").write_text("\n".join(vocabulary()))
    config = nemo_config()
    config["tokenizer"] = {"dir": str(folder), "type": "bpe"}
    config["sample_rate"] = config["preprocessor"]["sample_rate"] = SAMPLE_RATE
    config["preprocessor"] |= {"features": MELS, "n_fft": 512}
    config["encoder"] |= {
        "feat_in": MELS,
        "n_layers": LAYERS,
        "d_model": DIM,
        "subsampling": "striding",
        "subsampling_factor": 4,
        "subsampling_conv_channels": DIM,
        "ff_expansion_factor": 4,
        "n_heads": HEADS,
        "conv_kernel_size": KERNEL,
        "xscaling": False,
        **dict.fromkeys(("dropout", "dropout_pre_encoder", "dropout_emb", "dropout_att"), 0.0),
    }
    config["decoder"]["feat_in"] = DIM
    model = EncDecCTCModelBPE(OmegaConf.create(config))
    model.save_to(str(folder / "theirs.nemo"))
    blank = len(vocabulary())

    def loss(batch: TrainingBatch) -> Tensor:
        out, lengths = model.encoder(audio_signal=batch.features.transpose(1, 2), length=batch.feature_lengths)
        log_probs = model.decoder(encoder_output=out).transpose(0, 1)  # (T', B, V)
        rest = (lengths, batch.token_lengths, blank, "sum")
        return nn.functional.ctc_loss(log_probs, batch.tokens, *rest)

    return Pair(Contender(model, loss), ours(from_nemo(folder / "theirs.nemo")))


PEERS: dict[str, Callable[[Path], Pair]] = {"transformers": parakeet, "nemo": conformer}


def random_batches(num_tokens: int, is_padded: bool, seed: int = 0) -> list[TrainingBatch]:
    """Draw batches of random features and tokens."""
    draw = torch.Generator().manual_seed(seed)

    def batch() -> TrainingBatch:
        shortest = 160 if is_padded else 400
        lengths = torch.randint(shortest, 401, (BATCH,), generator=draw)
        lengths[0] = 400
        token_lengths = (lengths // 32).clamp(min=1)
        tokens = torch.randint(0, num_tokens, (BATCH, int(token_lengths.max())), generator=draw)
        features = torch.randn(BATCH, int(lengths.max()), MELS, generator=draw)
        features.masked_fill_((torch.arange(400) >= lengths[:, None])[:, :, None], 0.0)
        return TrainingBatch(features, lengths, tokens, token_lengths)

    return [batch() for _ in range(8)]


def speech_batches(manifest: Path, model: Model, is_padded: bool) -> list[TrainingBatch]:
    """Make batches of recorded speech with the beginnings of its texts; without padding, each has one utterance."""
    batches = []
    utterances = iter(read_manifest(manifest))
    for _ in range(8):
        chosen = [next(utterances) for _ in range(BATCH)] if is_padded else [next(utterances)] * BATCH
        features = [model.features(load_utterance(utterance, SAMPLE_RATE)) for utterance in chosen]
        texts = [re.sub("[^a-z ]", "", utterance.text.lower()) for utterance in chosen]  # the tokenizer's characters
        rows_and_texts = zip(features, texts, strict=True)
        # The tokenizer has few pieces, so that whole texts would not fit into an eighth of the frames.
        tokens = [torch.tensor(model.tokenizer.encode(text)[: len(rows) // 16]) - 1 for rows, text in rows_and_texts]
        pad = nn.utils.rnn.pad_sequence
        lengths = (torch.tensor([len(rows) for rows in parts]) for parts in (features, tokens))
        feature_lengths, token_lengths = lengths
        batches.append(TrainingBatch(pad(features, True), feature_lengths, pad(tokens, True), token_lengths))
    return batches


def losses(
    contender: Contender, batches: Sequence[TrainingBatch], num_steps: int, dtype: torch.dtype
) -> Iterator[float]:
    """Train, and yield the loss per token before each step."""
    contender.model.train().to(dtype)
    optimizer = torch.optim.AdamW(contender.model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(num_steps):
        batch = batches[step % len(batches)]
        batch = batch._replace(features=batch.features.to(dtype))
        loss = contender.loss(batch) / batch.token_lengths.sum()
        yield float(loss.detach())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


class Comparison(NamedTuple):
    """Losses of a training in both toolkits."""

    theirs: list[float]
    ours: list[float]

    @property
    def difference(self) -> float:
        """The largest relative difference of the losses of a step."""
        return max(abs(a - b) / abs(b) for a, b in zip(self.ours, self.theirs, strict=True))


def compared(
    peer: str,
    is_padded: bool,
    counts_padding: bool,
    num_steps: int,
    dtype: torch.dtype,
    manifest: Path | None = None,
) -> Comparison:
    """Train the same model in both toolkits.

    Args:
        peer: key of `PEERS`.
        is_padded: whether the utterances of a batch have different lengths.
        counts_padding: whether asr's batch norms are replaced by torch's, which count padded frames.
        num_steps: number of steps.
        dtype: precision of weights and computation; transformers computes the loss in float32.
        manifest: speech to train on; None: random features.
    """
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        pair = PEERS[peer](Path(folder) / "model")
    model: Any = pair.ours.model
    if manifest is None:
        batches = random_batches(model.tokenizer.vocab_size - 1, is_padded)
    else:
        batches = speech_batches(manifest, model, is_padded)
    if counts_padding:
        count_padding(pair.ours.model)
    return Comparison(*(list(losses(contender, batches, num_steps, dtype)) for contender in pair))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each peer and form of batches."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.equal_training", description=__doc__)
    parser.add_argument("--steps", type=int, default=50, metavar="N", help="optimizer steps (default: 50)")
    parser.add_argument("--manifest", type=Path, metavar="FILE", help="speech; without it, random features")
    results.add_options(parser)
    options = parser.parse_args(arguments)
    text = {"peer": str, "batches": str, "batch norm": str, "precision": str}
    numbers = dict.fromkeys(("first loss", "last loss", "theirs"), "{:.4f}".format)
    table = Results("equal_training", {**text, **numbers, "difference": "{:.1e}".format}, bars="difference")
    for peer in PEERS:
        if find_spec(peer) is None:
            print(f"{peer} is not installed, so it is left out")
            continue
        for dtype, (is_padded, counts_padding) in product((torch.float32, torch.float64), FORMS):
            result = compared(peer, is_padded, counts_padding, options.steps, dtype, options.manifest)
            names = ("padded" if is_padded else "of equal lengths", "torch's" if counts_padding else "asr's")
            precision = str(dtype).removeprefix("torch.")
            table.row(peer, *names, precision, result.ours[0], result.ours[-1], result.theirs[-1], result.difference)
    table.save(options.output_dir, about(options))
    return 0


if __name__ == "__main__":
    run_command(main)
