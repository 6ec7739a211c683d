"""Conformers of other toolkits: their tensors' names, and the parts that they have in common with asr's.

In names, `ours` stands for tensors of asr, and `theirs` for tensors of the other toolkit.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from asr.apps.convert.account import HEADS, ONE_FRAME, SAME, THREE, Layout, Row, outputs, scaled
from asr.apps.convert.section import check_parts
from asr.core.build import PROMPT
from asr.errors import InputError

EPS = 1e-5  # eps of the norms in the other toolkits
JOINT_ACTIVATIONS = ("relu", "tanh")  # activations of transducers that asr's joiner supports
CURES = {
    "encoder.subsampling": " Only encoder=fast_conformer_* can be converted.",
    "head.predictor": " Train with head/predictor=lstm.",
}
FULL_ATTENTION, LOCAL_ATTENTION = "relative_attention", "local_attention"
CTC, TRANSDUCER = "ctc", "transducer"  # heads of asr that the other toolkits also have
CONFORMER = "conformer"
PARTS = {  # parts of asr that the other toolkits also have, with any encoder
    "encoder.block.activation": ("swish",),
    "features": ("slaney_fbank",),
    "head": (CTC, TRANSDUCER),
}
CONFORMER_PARTS: dict[str, tuple[object, ...]] = {  # parts of a Conformer for whole recordings
    "encoder.last_norm": (False,),
    "encoder.block": ("conformer_block",),
    "encoder.block.convolution": ("depthwise_convolution",),
    "encoder.block.norm": ("masked_batch_norm",),
    "features.normalize": ("utterance_cmvn",),
}
SETTINGS = {"encoder.block.norm.eps": (EPS,), "features.normalize.eps": (EPS,), "encoder.block.activation.beta": (1,)}

HEAD = "head.linear"
QKV = "attention.qkv"
U_AND_V = ("attention.u", "attention.v")
POINTWISE = ("convolution.pointwise1", "convolution.pointwise2")  # linear layers in asr; convolutions in the toolkits
FOLDED = "encoder.subsampling.linear."
STAGES = {
    "0": 0,
    "1.0": 2,
    "1.1": 3,
    "2.0": 5,
    "2.1": 6,
}  # the convolutions of subsampling=depthwise_conv: asr's name to the number of the layer in the other toolkits


class Names(NamedTuple):
    """Another toolkit's names for the parts of a Conformer.

    Args:
        toolkit: name of the toolkit.
        outside: maps asr's modules outside of the blocks to the toolkit's modules.
        blocks: prefix before a block's number.
        block: maps asr's modules and parameters in a block to the toolkit's modules and parameters. The toolkit has
            separate modules for queries, keys and values.
        blank: index of the blank among the outputs of the head; None: the last output.
        others: maps tensors that `outside` does not cover to the toolkit's tensors and the layout.
        scale: factor by which the toolkit multiplies the subsampling's output; asr does not scale it.
    """

    toolkit: str
    outside: Mapping[str, str]
    blocks: str
    block: Mapping[str, str | tuple[str, ...]]
    blank: int | None
    others: Mapping[str, tuple[tuple[str, ...], Layout]] = MappingProxyType({})
    scale: float = 1.0

    def row(self, ours: str) -> Row:
        """Return the counterparts of one of asr's tensors, and the conversion."""
        if ours in self.others:
            return Row(ours, *self.others[ours])
        module, _, kind = ours.rpartition(".")
        is_weight = kind == "weight"
        if module in self.outside:
            layout = outputs(self.blank, ONE_FRAME if is_weight else SAME) if module == HEAD else SAME
            layout = scaled(self.scale) if self.scale != 1 and ours.startswith(FOLDED) else layout
            return Row(ours, (f"{self.outside[module]}.{kind}",), layout)
        block = re.fullmatch(r"encoder\.blocks\.(\d+)\.(.+)", ours)
        begin, part = (f"{self.blocks}.{block[1]}", block[2]) if block else ("", "")
        if part in U_AND_V:
            return Row(ours, (f"{begin}.{self.block[part]}",), HEADS)
        part = part.rpartition(".")[0]
        if part == QKV:
            return Row(ours, tuple(f"{begin}.{theirs}.{kind}" for theirs in self.block[part]), THREE)
        if part in self.block:
            is_convolution = part in POINTWISE and is_weight
            return Row(ours, (f"{begin}.{self.block[part]}.{kind}",), ONE_FRAME if is_convolution else SAME)
        raise InputError(f"{ours} must have a counterpart in {self.toolkit}'s Conformer; there is none.")


def block_names(
    qkv: tuple[str, str, str], position: str, biases: tuple[str, str], output: str, norm: str
) -> dict[str, str | tuple[str, ...]]:
    """Map asr's names of the parts of a block to another toolkit's names.

    Args:
        qkv: names of the attention's projections to queries, keys and values.
        position: name of the projection of positions.
        biases: names of the biases u and v.
        output: name of the attention's last projection.
        norm: name of the norm in the convolution.
    """
    u, v = biases
    return {
        "norm_feed_forward1": "norm_feed_forward1",
        "feed_forward1.linear1": "feed_forward1.linear1",
        "feed_forward1.linear2": "feed_forward1.linear2",
        "norm_attention": "norm_self_att",
        "attention.qkv": tuple(f"self_attn.{name}" for name in qkv),
        "attention.position": f"self_attn.{position}",
        "attention.u": f"self_attn.{u}",
        "attention.v": f"self_attn.{v}",
        "attention.output": f"self_attn.{output}",
        "norm_convolution": "norm_conv",
        "convolution.pointwise1": "conv.pointwise_conv1",
        "convolution.depthwise": "conv.depthwise_conv",
        "convolution.norm": f"conv.{norm}",
        "convolution.norm.norm": f"conv.{norm}",  # norm=layer_norm
        "convolution.pointwise2": "conv.pointwise_conv2",
        "norm_feed_forward2": "norm_feed_forward2",
        "feed_forward2.linear1": "feed_forward2.linear1",
        "feed_forward2.linear2": "feed_forward2.linear2",
        "norm_output": "norm_out",
    }


def stages(theirs: str) -> dict[str, str]:
    """Map the names of asr's convolutions (subsampling=depthwise_conv) to the other toolkit's names.

    Args:
        theirs: the toolkit's list of layers; its convolutions are named by their numbers in this list.
    """
    return {f"encoder.subsampling.stages.{ours}": f"{theirs}.{number}" for ours, number in STAGES.items()}


def kind_of(head: Mapping[str, Any]) -> str:
    """Return what other toolkits call a head: CTC, RNNT or TDT."""
    if head["name"] != TRANSDUCER:
        return "CTC"
    return "TDT" if head["durations"] else "RNNT"


def check_conformer(
    config: Mapping[str, Any], toolkit: str, encoders: Mapping[str, Mapping[str, tuple[object, ...]]]
) -> None:
    """Check that another toolkit has all parts of a Conformer of asr.

    Args:
        config: config of the model.
        toolkit: name of the toolkit.
        encoders: for each of asr's encoders that the toolkit has, the names of the parts that it has with this encoder.
    """
    if PROMPT in config and config["head"]["name"] != TRANSDUCER:
        raise InputError(
            f"head must be {TRANSDUCER} for conversion of a model with a prompt; got {config['head']['name']}."
        )
    needed = {"encoder": tuple(encoders), **PARTS, **encoders.get(config["encoder"]["name"], {})}
    if config["head"]["name"] == TRANSDUCER:
        needed["head.predictor"] = ("lstm",)
    check_parts(config, toolkit, {**needed, **SETTINGS}, CURES)
