"""What NVIDIA NeMo calls the tensors of a Conformer-CTC."""

from asr.interchange.account import Names

WINDOW, FILTERBANK = "preprocessor.featurizer.window", "preprocessor.featurizer.fb"
FRONT_END = {
    "encoder.subsampling.conv1": "encoder.pre_encode.conv.0",
    "encoder.subsampling.conv2": "encoder.pre_encode.conv.2",
    "encoder.subsampling.stages.0": "encoder.pre_encode.conv.0",
    "encoder.subsampling.stages.1.0": "encoder.pre_encode.conv.2",
    "encoder.subsampling.stages.1.1": "encoder.pre_encode.conv.3",
    "encoder.subsampling.stages.2.0": "encoder.pre_encode.conv.5",
    "encoder.subsampling.stages.2.1": "encoder.pre_encode.conv.6",
    "encoder.subsampling.linear": "encoder.pre_encode.out",
}
BLOCK: dict[str, str | tuple[str, ...]] = {
    "norm_feed_forward1": "norm_feed_forward1",
    "feed_forward1.linear1": "feed_forward1.linear1",
    "feed_forward1.linear2": "feed_forward1.linear2",
    "norm_attention": "norm_self_att",
    "attention.qkv": ("self_attn.linear_q", "self_attn.linear_k", "self_attn.linear_v"),
    "attention.position": "self_attn.linear_pos",
    "attention.u": "self_attn.pos_bias_u",
    "attention.v": "self_attn.pos_bias_v",
    "attention.output": "self_attn.linear_out",
    "norm_convolution": "norm_conv",
    "convolution.pointwise1": "conv.pointwise_conv1",
    "convolution.depthwise": "conv.depthwise_conv",
    "convolution.norm": "conv.batch_norm",
    "convolution.pointwise2": "conv.pointwise_conv2",
    "norm_feed_forward2": "norm_feed_forward2",
    "feed_forward2.linear1": "feed_forward2.linear1",
    "feed_forward2.linear2": "feed_forward2.linear2",
    "norm_output": "norm_out",
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
