"""transformers: generate of ParakeetForTDT, with the weights of an asr model and without its encoder."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import ParakeetForTDT, ParakeetTDTConfig
from transformers.models.parakeet.modeling_parakeet import ParakeetEncoderModelOutput

from asr.components.head.transducer import Transducer

ENCODER = {"num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 8, "subsampling_conv_channels": 4}


def make(head: Transducer) -> Callable[[Tensor, Tensor], list[list[int]]]:
    """Return a search that maps encoder_out (B, T', D) and lengths (B,) to tokens.

    The blank of transformers' models is the last id and asr's the first, so weights and tokens are shifted by one.
    """
    predictor: Any = head.predictor
    joiner, blank = head.joiner, head.vocab_size - 1
    config = ParakeetTDTConfig(
        vocab_size=head.vocab_size,
        blank_token_id=blank,
        decoder_hidden_size=predictor.output_dim,
        num_decoder_layers=predictor.cells.num_layers,
        hidden_act="relu",
        durations=list(head.durations),
        encoder_config={"hidden_size": joiner.of_frames.in_features, **ENCODER},
    )
    model: Any = ParakeetForTDT(config).eval()
    model.generation_config.decoder_start_token_id = blank
    rows = [*range(1, head.vocab_size), 0, *range(head.vocab_size, len(joiner.output.bias))]
    with torch.no_grad():
        model.decoder.embedding.weight.copy_(predictor.embedding.weight.roll(-1, dims=0))
        model.decoder.lstm.load_state_dict(predictor.cells.state_dict())
        model.decoder.decoder_projector.weight.copy_(joiner.of_tokens.weight)
        model.decoder.decoder_projector.bias.zero_()
        model.encoder_projector.load_state_dict(joiner.of_frames.state_dict())
        model.joint.head.weight.copy_(joiner.output.weight[rows])
        model.joint.head.bias.copy_(joiner.output.bias[rows])

    def decode(encoder_out: Tensor, lengths: Tensor) -> list[list[int]]:
        valid = torch.arange(encoder_out.shape[1]) < lengths[:, None]
        frames = ParakeetEncoderModelOutput(
            last_hidden_state=encoder_out, pooler_output=model.encoder_projector(encoder_out), attention_mask=valid
        )
        model.get_audio_features = lambda **_: frames
        unused = encoder_out.new_zeros(len(lengths), 8 * encoder_out.shape[1], config.encoder_config.num_mel_bins)
        generated = model.generate(input_features=unused)
        starts = generated.durations.cumsum(dim=1) - generated.durations  # frame at which each token is emitted
        written = (generated.sequences != blank) & (starts < lengths[:, None])  # after its end, a row has padding
        return [(row[is_written] + 1).tolist() for row, is_written in zip(generated.sequences, written, strict=True)]

    return decode
