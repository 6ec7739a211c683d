"""NVIDIA NeMo: greedy search of transducers with and without durations, with the weights of an asr model."""

from collections.abc import Callable
from typing import Any

import torch
from nemo.collections.asr.modules.rnnt import RNNTDecoder, RNNTJoint
from nemo.collections.asr.parts.submodules.rnnt_greedy_decoding import (
    GreedyBatchedRNNTInfer,
    GreedyBatchedTDTInfer,
)
from torch import Tensor

from asr.components.head.joint_network import ACTIVATIONS
from asr.components.head.transducer import Transducer


def make(head: Transducer, max_symbols: int) -> Callable[[Tensor, Tensor], list[list[int]]]:
    """Return a search that maps encoder_out (B, T', D) and lengths (B,) to tokens.

    NeMo's blank is the last id and asr's the first, so weights and tokens are shifted by one.
    """
    predictor: Any = head.predictor
    joiner = head.joiner
    durations = list(head.durations)
    dim, num_labels = predictor.output_dim, len(predictor.embedding.weight) - 1
    rows = [*range(1, num_labels + 1), 0, *range(num_labels + 1, len(joiner.output.bias))]
    decoder = RNNTDecoder(
        prednet={"pred_hidden": dim, "pred_rnn_layers": predictor.cells.num_layers, "dropout": 0.0},
        vocab_size=num_labels,
        blank_as_pad=True,
    )
    sizes = {"encoder_hidden": joiner.of_frames.in_features, "pred_hidden": dim}
    activation = next(name for name, function in ACTIVATIONS.items() if function is joiner.activation)
    joint = RNNTJoint(
        jointnet={**sizes, "joint_hidden": joiner.of_frames.out_features, "activation": activation, "dropout": 0.0},
        num_classes=num_labels,
        num_extra_outputs=len(durations),
    )
    with torch.no_grad():
        decoder.prediction["embed"].weight.copy_(predictor.embedding.weight.roll(-1, dims=0))
        decoder.prediction["dec_rnn"].lstm.load_state_dict(predictor.cells.state_dict())
        joint.enc.load_state_dict(joiner.of_frames.state_dict())
        joint.pred.weight.copy_(joiner.of_tokens.weight)
        joint.pred.bias.zero_()
        joint.joint_net[-1].weight.copy_(joiner.output.weight[rows])
        joint.joint_net[-1].bias.copy_(joiner.output.bias[rows])
    common = {"blank_index": num_labels, "max_symbols_per_step": max_symbols}
    if durations:
        search = GreedyBatchedTDTInfer(decoder.eval(), joint.eval(), durations=durations, **common)
    else:
        search = GreedyBatchedRNNTInfer(decoder.eval(), joint.eval(), **common)

    def decode(encoder_out: Tensor, lengths: Tensor) -> list[list[int]]:
        (hypotheses,) = search(encoder_output=encoder_out.transpose(1, 2), encoded_lengths=lengths)
        return [[int(token) + 1 for token in hypothesis.y_sequence] for hypothesis in hypotheses]

    return decode
