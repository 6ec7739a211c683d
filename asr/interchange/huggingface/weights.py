"""Names of a Parakeet's tensors in transformers."""

from asr.interchange.account import SAME, SUM, Names, block_names, outputs, stages

OUTSIDE = stages("encoder.subsampling.layers") | {
    "encoder.subsampling.linear": "encoder.subsampling.linear",
    "head.linear": "ctc_head",
}
BLOCK = block_names(("q_proj", "k_proj", "v_proj"), "relative_k_proj", ("bias_u", "bias_v"), "o_proj", norm="norm")


def names(blank: int) -> Names:
    """Return the names of a Parakeet-CTC's tensors; `blank` is the index of the blank among its outputs."""
    return Names("Hugging Face", OUTSIDE, "encoder.layers", BLOCK, computed={}, blank=blank)


def transducer_names(blank: int, joiner: str) -> Names:
    """Return the names of the tensors of a Parakeet-RNNT or Parakeet-TDT.

    Args:
        blank: index of the blank among the tokens, which precede the durations in the joint network's outputs.
        joiner: name of the joiner in asr's head.
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
