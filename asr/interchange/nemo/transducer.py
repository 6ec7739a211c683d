"""NVIDIA NeMo's transducers, RNNT and TDT, alone or beside a CTC head: settings, and the names of tensors."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from asr.errors import InputError, shown
from asr.head.joint_network import ACTIVATIONS
from asr.interchange.account import ONE_FRAME, SAME, SUM, Layout, Names, outputs
from asr.interchange.foreign import HeadConfig
from asr.interchange.nemo.config import check_class, ctc_head
from asr.interchange.nemo.weights import FRONT_END, names
from asr.interchange.section import Section, as_yaml, check, mapping, whole
from asr.settings.conf import default_settings

DECODER_KEYS = {"_target_", "prednet", "vocab_size", "random_state_sampling"}
PREDNET_KEYS = {
    *("pred_hidden", "pred_rnn_layers", "dropout", "t_max", "forget_gate_bias", "weights_init_scale"),
    *("hidden_hidden_bias_scale",),
}
JOINT_KEYS = {
    *("_target_", "jointnet", "num_classes", "vocabulary", "num_extra_outputs", "log_softmax", "preserve_memory"),
    *("fuse_loss_wer", "fused_batch_size", "experimental_fuse_loss_wer"),
}
JOINTNET_KEYS = {"joint_hidden", "encoder_hidden", "pred_hidden", "dropout"}


class NemoTransducer(NamedTuple):
    """A transducer of NeMo's.

    Args:
        config: of our head, and its decoder's.
        joint: its section in the config, which has the vocabulary.
        names: of the model's tensors.
    """

    config: HeadConfig
    joint: Section
    names: Names


def is_transducer(config: Section) -> bool:
    """Tell a transducer, with or without a CTC head, from a model with a CTC head alone."""
    return config.get("joint") is not None


def transducer(config: Section) -> NemoTransducer:
    """Take a model's transducer, and the CTC head beside it.

    Raises:
        InputError: it asks for what we do not have.
    """
    network, joint = mapping(config.get("decoder"), "decoder"), mapping(config.get("joint"), "joint")
    check_class(network, "decoder", "RNNTDecoder", "an LSTM prediction network")
    check_class(joint, "joint", "RNNTJoint", "a joint network")
    never = {"normalization_mode": (None, (None,)), "blank_as_pad": (True, (True,))}
    check(network, "decoder", DECODER_KEYS, never)
    check(joint, "joint", JOINT_KEYS, {"masking_prob": (-1.0, (-1.0, -1))})
    jointnet = mapping(joint.get("jointnet"), "joint.jointnet")
    check(jointnet, "joint.jointnet", JOINTNET_KEYS, {"activation": ("relu", tuple(ACTIVATIONS))})
    durations = _durations(config, joint)
    name = "tdt" if durations else "transducer"
    auxiliary = config.get("aux_ctc")
    head = default_settings("head", name) | {
        "joint_dim": whole(jointnet, "joint.jointnet.joint_hidden"),
        "joint_activation": jointnet.get("activation", "relu"),
        "dropout": jointnet.get("dropout") or 0.0,
        "ctc_weight": auxiliary.get("ctc_loss_weight", 0.5) if isinstance(auxiliary, Mapping) else 0.0,
        "predictor": _predictor(mapping(network.get("prednet"), "decoder.prednet")),
        **({"durations": durations, **_loss(config)} if durations else {}),
    }
    if isinstance(auxiliary, Mapping):
        ctc_head(config)  # which must be one that we have
    decode = default_settings("decode", f"{name}_greedy") | _max_symbols(config)
    joiner = "duration_joiner" if durations else "joiner"
    linear = "joint.joint_net.2" if jointnet.get("dropout") else "joint.joint_net.1"
    return NemoTransducer(HeadConfig(head, decode), joint, _names(joiner, linear, whole(network, "decoder.vocab_size")))


def _predictor(prednet: Section) -> dict[str, Any]:
    dim = whole(prednet, "decoder.prednet.pred_hidden")
    check(prednet, "decoder.prednet", PREDNET_KEYS, {"rnn_hidden_size": (-1, (-1, None, dim))})  # else it is projected
    return {
        "name": "lstm",
        "dim": dim,
        "num_layers": whole(prednet, "decoder.prednet.pred_rnn_layers", 1),
        "dropout": prednet.get("dropout") or 0.0,
        "trains_blank": False,
    }


def _durations(config: Section, joint: Section) -> list[Any]:
    """Take the durations of a TDT; none of an RNNT."""
    decoding, loss = (_section(config, name) for name in ("decoding", "loss"))
    if decoding.get("big_blank_durations"):
        given = shown(decoding["big_blank_durations"])
        raise InputError(f"decoding.big_blank_durations must be null: asr has one blank; got {given}.")
    kwargs = _section(loss, "tdt_kwargs") if loss.get("loss_name") == "tdt" else {}
    durations = decoding.get("durations") or kwargs.get("durations") or []
    if not isinstance(durations, list):
        raise InputError(f"decoding.durations must be a list of frames; got {shown(durations)}.")
    extra = joint.get("num_extra_outputs", 0)
    if extra != len(durations):
        must = f"joint.num_extra_outputs must be the number of decoding.durations, {len(durations)}"
        raise InputError(f"{must}; got {as_yaml(extra)}.")
    return durations


def _loss(config: Section) -> dict[str, Any]:
    """The settings of the loss, where there are some; a model is also used without."""
    kwargs = _section(_section(config, "loss"), "tdt_kwargs")
    return {name: kwargs[name] for name in ("sigma", "omega") if name in kwargs}


def _max_symbols(config: Section) -> dict[str, Any]:
    most = _section(_section(config, "decoding"), "greedy").get("max_symbols")
    return {} if most is None else {"max_symbols": most}


def _section(config: Section, name: str) -> Section:
    """A section that need not be there."""
    value = config.get(name)
    return value if isinstance(value, Mapping) else {}


def _names(joiner: str, linear: str, blank: int) -> Names:
    """Name the tensors of a model; `linear` is the last layer of its joint network, `blank` the last of its tokens."""
    begin, rows = f"head.{joiner}", outputs(blank)
    ctc = "ctc_decoder.decoder_layers.0"
    transducer = {
        "head.predictor.embedding.weight": (("decoder.prediction.embed.weight",), _begins_with_zeros(rows)),
        f"{begin}.of_frames.weight": (("joint.enc.weight",), SAME),
        f"{begin}.of_frames.bias": (("joint.enc.bias", "joint.pred.bias"), SUM),
        f"{begin}.of_tokens.weight": (("joint.pred.weight",), SAME),
        **{f"{begin}.output.{kind}": ((f"{linear}.{kind}",), rows) for kind in ("weight", "bias")},
        "head.ctc.linear.weight": ((f"{ctc}.weight",), outputs(blank, ONE_FRAME)),
        "head.ctc.linear.bias": ((f"{ctc}.bias",), rows),
    }
    outside = FRONT_END | {"head.predictor.cells": "decoder.prediction.dec_rnn.lstm"}
    return names()._replace(outside=outside, transducer=transducer)


def _begins_with_zeros(layout: Layout) -> Layout:
    """The blank's row is zero: NeMo's prediction network begins with zeros, whatever that row holds."""

    def join(x: Any) -> Any:
        ours = layout.join(x)
        ours[0] = 0.0
        return ours

    return layout._replace(join=join)
