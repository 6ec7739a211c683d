"""Make a model from exported ONNX programs."""

from collections.abc import Mapping
from pathlib import Path

from asr.errors import InputError
from asr.interfaces import Encoder, Head
from asr.onnx.names import ENCODER, NET_INPUTS, NET_OUTPUTS, PROGRAM, STEP
from asr.onnx.runtime import LogProbs, OnnxEncoder
from asr.onnx.session import check_tokens, session
from asr.onnx.stream import OnnxStreamingEncoder, open_step
from asr.onnx.transducer import open_transducer
from asr.recognition.model import Model


def exported(model: Model, programs: Mapping[str, Path | bytes]) -> Model:
    """Make a model whose encoder and head are ONNX programs.

    Args:
        model: the model that was exported; its encoder and head need no weights.
        programs: ONNX files, or their contents, by file name.

    Raises:
        InputError: a program is damaged, or does not belong to the model.
    """
    vocab_size = model.tokenizer.vocab_size
    if ENCODER in programs:
        return _made(model, *open_transducer(programs, model, vocab_size))
    opened = session(programs[PROGRAM], NET_INPUTS, NET_OUTPUTS)
    check_tokens(programs[PROGRAM], opened, vocab_size)
    if STEP in programs:
        whole = OnnxEncoder(opened, model.encoder, vocab_size)
        encoder_of_config = model.encoder.streaming
        if encoder_of_config is None:
            raise InputError(f"{STEP} must belong to a streaming encoder; got {type(model.encoder).__name__}.")
        step = open_step(programs[STEP], encoder_of_config, vocab_size)
        return _made(model, OnnxStreamingEncoder(whole, step, encoder_of_config), LogProbs(vocab_size))
    return _made(model, OnnxEncoder(opened, model.encoder, vocab_size), LogProbs(vocab_size))


def _made(model: Model, encoder: Encoder, head: Head) -> Model:
    made = Model(model.normalize, model.tokenizer, model.features, encoder, head)
    made.eval()
    return made
