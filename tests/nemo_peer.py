"""Compute NeMo's outputs for its own transducers and for archives that asr writes. Run it in NeMo's environment.

    python nemo_peer.py make FOLDER      reads config.json; writes theirs.nemo with random weights, and expected.pt
    python nemo_peer.py read FOLDER      reads back.nemo; writes the texts that it recognises to texts.json
    python nemo_peer.py save FOLDER      reads back.nemo; writes theirs.nemo with the same weights

This program does not import asr. For make and read, FOLDER contains waveforms.pt (a list of (S,)); for make, also
tokenizer.model and vocab.txt.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

TOKENS = [[3, 1, 4, 1, 5], [9, 6], [7, 5, 3]]


def randomize(model: Any) -> None:
    """Set random weights that give different outputs for each frame and token, and make blanks as likely as tokens."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not tensor.is_floating_point() or name.startswith("preprocessor."):
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            if name.endswith("running_var"):
                tensor.copy_(0.5 + noise.abs())
            elif tensor.dim() > 1:
                tensor.copy_(1.5 * noise / tensor[0].numel() ** 0.5)
            else:
                tensor += 0.1 * noise
        model.decoder.prediction["embed"].weight[-1] = 0.0
        blank = model.joint.num_classes_with_blank - 1 - model.joint.num_extra_outputs
        last = model.joint.joint_net[-1]
        last.weight.mul_(3.0)
        last.bias[blank] += 3.0


def encoded(model: Any, waveforms: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the encoder's output (B, D, T') for waveforms, and its lengths."""
    model.preprocessor.featurizer.dither = 0.0
    model.preprocessor.featurizer.pad_to = 0
    lengths = torch.tensor([len(waveform) for waveform in waveforms])
    batch = torch.nn.utils.rnn.pad_sequence(waveforms, batch_first=True)
    features, feature_lengths = model.preprocessor(input_signal=batch, length=lengths)
    out: tuple[Tensor, Tensor] = model.encoder(audio_signal=features, length=feature_lengths)
    return out


def streamed(model: Any, waveform: Tensor) -> Tensor:
    """Return the output (T', D) of a causal encoder for a waveform, chunk by chunk with NeMo's caches."""
    from nemo.collections.asr.parts.utils.streaming_utils import CacheAwareStreamingAudioBuffer

    features, lengths = model.preprocessor(input_signal=waveform[None], length=torch.tensor([len(waveform)]))
    model.encoder.setup_streaming_params()
    buffer = CacheAwareStreamingAudioBuffer(model)
    buffer.append_processed_signal(features[:, :, : lengths[0]], stream_id=-1)
    caches, outs = model.encoder.get_initial_cache_state(batch_size=1), []
    for number, (chunk, chunk_lengths) in enumerate(buffer):
        out, out_lengths, *caches = model.encoder.cache_aware_stream_step(
            chunk,
            chunk_lengths,
            *caches,
            keep_all_outputs=buffer.is_buffer_empty(),
            drop_extra_pre_encoded=model.encoder.streaming_cfg.drop_extra_pre_encoded if number else 0,
        )
        outs.append(out[0, :, : out_lengths[0]].T)
    return torch.cat(outs)


def texts(model: Any, waveforms: list[Tensor]) -> list[str]:
    """Return the greedy text of each recording; recordings are not batched."""
    transcripts = []
    for waveform in waveforms:
        out, lengths = encoded(model, [waveform])
        [best] = model.decoding.rnnt_decoder_predictions_tensor(encoder_output=out, encoded_lengths=lengths)
        transcripts.append(best.text)
    return transcripts


def losses(model: Any, logits: Tensor, lengths: Tensor, tokens: Tensor, token_lengths: Tensor) -> Tensor:
    """Return the losses (B,) of NeMo's implementations in plain torch; the TDT loss is patched to run without CUDA."""
    from nemo.collections.asr.losses import rnnt_pytorch

    kwargs = model.cfg.loss.get("tdt_kwargs")
    blank = logits.shape[-1] - 1 - model.joint.num_extra_outputs
    if kwargs is None:
        loss = rnnt_pytorch.RNNTLossPytorch(blank=blank, reduction="none")
        return -as_tensor(loss.compute_forward_prob(logits.log_softmax(dim=-1), tokens, lengths, token_lengths))
    Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign, assignment]
    durations = list(kwargs.durations)
    loss = rnnt_pytorch.TDTLossPytorch(blank=blank, durations=durations, reduction="none", sigma=0.0)
    token_part, duration_part = logits.split([blank + 1, len(durations)], dim=-1)
    parts = token_part.log_softmax(dim=-1), duration_part.log_softmax(dim=-1)
    return -as_tensor(loss.compute_forward_prob(*parts, tokens, lengths, token_lengths)[0])


def as_tensor(value: Tensor) -> Tensor:
    """Return the value unchanged, with a type for mypy, because NeMo has no type annotations."""
    return value


def make(folder: Path) -> None:
    """Make a model with random weights; write it and its outputs."""
    from nemo.collections.asr.models import EncDecHybridRNNTCTCBPEModel, EncDecRNNTBPEModel
    from omegaconf import OmegaConf

    config = json.loads((folder / "config.json").read_text())
    config["tokenizer"] = {"dir": str(folder), "type": "bpe"}
    cls = EncDecHybridRNNTCTCBPEModel if "aux_ctc" in config else EncDecRNNTBPEModel
    model = cls(OmegaConf.create(config)).eval()
    randomize(model)
    model.save_to(str(folder / "theirs.nemo"))
    waveforms = torch.load(folder / "waveforms.pt")
    token_lengths = torch.tensor([len(row) for row in TOKENS])
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in TOKENS], batch_first=True)
    with torch.no_grad():
        out, lengths = encoded(model, waveforms)
        before, _, _ = model.decoder(targets=tokens, target_length=token_lengths)
        logits = model.joint.joint(out.transpose(1, 2), before.transpose(1, 2))
        expected = {
            "encoder_out": out.transpose(1, 2),
            "lengths": lengths,
            "logits": logits,
            "losses": losses(model, logits, lengths, tokens, token_lengths),
            "texts": texts(model, waveforms),
        }
        if model.encoder.att_context_style == "chunked_limited":
            expected["streamed"] = [streamed(model, waveform) for waveform in waveforms]
    plain = {name: value.clone() if isinstance(value, Tensor) else value for name, value in expected.items()}
    torch.save(plain, folder / "expected.pt")  # NeMo's tensors have attributes of NeMo's classes; clones do not


def restored(folder: Path) -> Any:
    """Read the archive that asr wrote."""
    from nemo.collections.asr.models import ASRModel

    return ASRModel.restore_from(str(folder / "back.nemo"), map_location="cpu").eval()


def save(folder: Path) -> None:
    """Read an archive that asr wrote, and let NeMo write it."""
    restored(folder).save_to(str(folder / "theirs.nemo"))


def read(folder: Path) -> None:
    """Read an archive that asr wrote, and write the texts that its model recognises."""
    model = restored(folder)
    with torch.no_grad():
        transcripts = texts(model, torch.load(folder / "waveforms.pt"))
    (folder / "texts.json").write_text(json.dumps(transcripts))


if __name__ == "__main__":
    for place in sys.argv[2:]:
        {"make": make, "read": read, "save": save}[sys.argv[1]](Path(place))
