"""Names of a Conformer-CTC's tensors in NVIDIA NeMo."""

from asr.interchange.account import Names, block_names, stages

WINDOW, FILTERBANK = "preprocessor.featurizer.window", "preprocessor.featurizer.fb"
FRONT_END = stages("encoder.pre_encode.conv") | {
    "encoder.subsampling.conv1": "encoder.pre_encode.conv.0",
    "encoder.subsampling.conv2": "encoder.pre_encode.conv.2",
    "encoder.subsampling.linear": "encoder.pre_encode.out",
}
BLOCK = block_names(
    ("linear_q", "linear_k", "linear_v"), "linear_pos", ("pos_bias_u", "pos_bias_v"), "linear_out", norm="batch_norm"
)


def names(head: str = "decoder") -> Names:
    """Return the names of a model's tensors; `head` is the prefix of its CTC head."""
    return Names(
        toolkit="NeMo",
        outside=FRONT_END | {"head.linear": f"{head}.decoder_layers.0"},
        blocks="encoder.layers",
        block=BLOCK,
        computed={WINDOW: lambda features: features.hann, FILTERBANK: lambda features: features.mel.T[None]},
        blank=None,
    )
