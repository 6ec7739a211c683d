"""What NVIDIA NeMo calls the tensors of a Conformer-CTC."""

from asr.interchange.account import SHARED_BLOCK, Names, stages

WINDOW, FILTERBANK = "preprocessor.featurizer.window", "preprocessor.featurizer.fb"
FRONT_END = stages("encoder.pre_encode.conv") | {
    "encoder.subsampling.conv1": "encoder.pre_encode.conv.0",
    "encoder.subsampling.conv2": "encoder.pre_encode.conv.2",
    "encoder.subsampling.linear": "encoder.pre_encode.out",
}
BLOCK: dict[str, str | tuple[str, ...]] = SHARED_BLOCK | {
    "attention.qkv": ("self_attn.linear_q", "self_attn.linear_k", "self_attn.linear_v"),
    "attention.position": "self_attn.linear_pos",
    "attention.u": "self_attn.pos_bias_u",
    "attention.v": "self_attn.pos_bias_v",
    "attention.output": "self_attn.linear_out",
    "convolution.norm": "conv.batch_norm",
}


def names(head: str = "decoder") -> Names:
    """Name the tensors of a model; `head` is what the names of its CTC head begin with."""
    return Names(
        toolkit="NeMo",
        outside=FRONT_END | {"head.linear": f"{head}.decoder_layers.0"},
        blocks="encoder.layers",
        block=BLOCK,
        computed={WINDOW: lambda features: features.hann, FILTERBANK: lambda features: features.mel.T[None]},
        blank=None,
    )
