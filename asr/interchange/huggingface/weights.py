"""What transformers calls the tensors of a Parakeet."""

from asr.interchange.account import SAME, SHARED_BLOCK, SUM, Names, outputs, stages

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
    """Name the tensors of a Parakeet-CTC; `blank` is the blank's number among its outputs."""
    return Names("Hugging Face", OUTSIDE, "encoder.layers", BLOCK, computed={}, blank=blank)


def transducer_names(blank: int, joiner: str) -> Names:
    """Name the tensors of a Parakeet-RNNT or TDT.

    Args:
        blank: the blank's number among the tokens; in the joint network's outputs durations follow them.
        joiner: what our head calls its own.
    """
    begin = f"head.{joiner}"
    transducer = {
        "head.predictor.embedding.weight": (("decoder.embedding.weight",), outputs(blank)),
        f"{begin}.of_frames.weight": (("encoder_projector.weight",), SAME),
        f"{begin}.of_frames.bias": (("encoder_projector.bias", "decoder.decoder_projector.bias"), SUM),
        f"{begin}.of_tokens.weight": (("decoder.decoder_projector.weight",), SAME),
        **{f"{begin}.output.{kind}": ((f"joint.head.{kind}",), outputs(blank)) for kind in ("weight", "bias")},
    }
    outside = {name: module for name, module in OUTSIDE.items() if name != "head.linear"}
    outside |= {"head.predictor.cells": "decoder.lstm"}
    return names(blank)._replace(outside=outside, transducer=transducer)
