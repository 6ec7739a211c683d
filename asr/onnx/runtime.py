"""A program run by ONNX Runtime, as an encoder whose encoder_out are log_probs."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asr.errors import InputError
from asr.head.ctc import CTC, ctc_loss
from asr.interfaces import NO_TAPS, Encoded, Encoder, Tap
from asr.lengths import Lengths
from asr.onnx.program import FEATURE_LENGTHS, FEATURES, LENGTHS, LOG_PROBS
from asr.recognition.model import Model

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class OnnxEncoder:
    """Features (B, T, F), feature_lengths (B,) to log_probs (B, T', V) as encoder_out; on the processor.

    Args:
        session: runs the program.
        made_of: the encoder that was exported, which needs no weights.
        vocab_size: V.
    """

    num_blocks = 0  # none can be tapped

    def __init__(self, session: "InferenceSession", made_of: Encoder, vocab_size: int) -> None:
        self._session = session
        self.output_dim = vocab_size
        self.stride = made_of.stride
        self.output_lengths = made_of.output_lengths

    def __call__(self, features: Tensor, feature_lengths: Tensor, taps: Mapping[int, Tap] = NO_TAPS) -> Encoded:
        """As above."""
        out, lengths = run(self._session, features, feature_lengths)
        return Encoded(out, lengths, {})


class LogProbs:
    """The head of such an encoder, a frame head that has nothing to do.

    Args:
        vocab_size: V.
    """

    loss_names: tuple[str, ...] = ()
    taps = NO_TAPS
    views = 1
    min_frames = staticmethod(CTC.min_frames)

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    @property
    def frame_head(self) -> "LogProbs":
        """Itself."""
        return self

    def log_probs(self, encoder_out: Tensor) -> Tensor:
        """(B, T', V) to the same."""
        return encoder_out

    def losses(self, encoded: Encoded, tokens: Tensor, token_lengths: Tensor) -> dict[str, Tensor]:
        """Compute -log p(tokens) of each utterance, (B,)."""
        return {"loss": ctc_loss(encoded.out, tokens, encoded.lengths, token_lengths)}

    def cells(self, frames: Lengths, tokens: Lengths) -> Lengths:
        """Numbers in log_probs."""
        return frames * self.vocab_size


def exported(model: Model, program: Path | bytes) -> Model:
    """Make the model whose encoder and head are a program.

    Args:
        model: as it was exported; its net needs no weights.
        program: an ONNX file, or what one holds.

    Raises:
        InputError: the program is damaged, or not of such a model.
    """
    vocab_size = model.tokenizer.vocab_size
    opened = session(program, (FEATURES, FEATURE_LENGTHS), ("batch", vocab_size))
    encoder = OnnxEncoder(opened, model.encoder, vocab_size)
    made = Model(model.normalize, model.tokenizer, model.features, encoder, LogProbs(vocab_size))
    made.eval()
    return made


def session(
    program: Path | bytes, inputs: Sequence[str], shape: Sequence[object] = (), num_threads: int | None = None
) -> "InferenceSession":
    """Open a program.

    Args:
        program: an ONNX file, or what one holds.
        inputs: names that it must have.
        shape: first and last dimension of its log_probs, unless empty.
        num_threads: None: as many as torch has.

    Raises:
        InputError: ONNX Runtime is not installed, or cannot open it, or its inputs and outputs are others.
    """
    check_installed(("onnxruntime",), "a model in ONNX")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads or torch.get_num_threads()
    options.log_severity_level = 3  # errors
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # other work may have the cores
    named = program if isinstance(program, Path) else "the program"
    try:
        opened = onnxruntime.InferenceSession(
            program if isinstance(program, bytes) else str(program), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # one of many kinds, all of them ONNX Runtime's own
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{named}: must be a program that ONNX Runtime can open; {reason}") from None
    there = ([value.name for value in opened.get_inputs()], [value.name for value in opened.get_outputs()])
    if there != (list(inputs), [LOG_PROBS, LENGTHS]):
        must = f"{named}: must have the inputs {', '.join(inputs)} and the outputs {LOG_PROBS}, {LENGTHS}"
        raise InputError(f"{must}; got {', '.join(there[0])} and {', '.join(there[1])}.")
    outputs = opened.get_outputs()[0].shape
    if shape and [outputs[0], outputs[-1]] != list(shape):
        raise InputError(f"{named}: must give as many log_probs as the model has tokens, {shape[-1]}; got {outputs}.")
    return opened


def run(session: "InferenceSession", batch: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Run a program of a batch and its lengths; (B, ..., V) and (B,)."""
    names = [value.name for value in session.get_inputs()]
    inputs = dict(zip(names, (batch.float().numpy(), lengths.numpy()), strict=True))
    out, out_lengths = session.run(None, inputs)
    return torch.from_numpy(out), torch.from_numpy(out_lengths)


def check_installed(packages: Sequence[str], what: str) -> None:
    """Check that optional packages are there.

    Raises:
        InputError: one is not.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"{what} must have {', '.join(missing)}; not installed. pip install '.[onnx]'")
