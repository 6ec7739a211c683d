"""What transformers calls the tensors of a Parakeet-CTC."""

from asr.interchange.account import SHARED_BLOCK, Names, stages

OUTSIDE = stages("encoder.subsampling.layers") | {
    "encoder.subsampling.linear": "encoder.subsampling.linear",
    "head.linear": "ctc_head",
}
BLOCK: dict[str, str | tuple[str, ...]] = SHARED_BLOCK | {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.position": "self_attn.relative_k_proj",
    "attention.u": "self_attn.bias_u",
    "attention.v": "self_attn.bias_v",
    "attention.output": "self_attn.o_proj",
    "convolution.norm": "conv.norm",
}


def names(blank: int) -> Names:
    """Name the tensors of a model; `blank` is the blank's number among its outputs."""
    return Names("Hugging Face", OUTSIDE, "encoder.layers", BLOCK, computed={}, blank=blank)
