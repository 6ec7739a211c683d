"""Settings and tensor names of NVIDIA NeMo's transducers (RNNT and TDT), with or without a CTC head."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from asr.apps.convert.account import ONE_FRAME, SAME, SUM, Layout, outputs
from asr.apps.convert.conformer import JOINT_ACTIVATIONS, Names, block_names, stages
from asr.apps.convert.foreign import HeadConfig
from asr.apps.convert.nemo.config import AUXILIARY, MODELS, check_class, ctc_decoder, ctc_head
from asr.apps.convert.section import Section, as_yaml, check, mapping, whole
from asr.base.settings.conf import default_settings
from asr.core.build import decoders_of
from asr.core.decoder_choice import greedy_decoder
from asr.errors import InputError, shown

# Maximum number of symbols in a frame in NeMo's recipes. It is exported if asr's decoder has no maximum.
MAX_SYMBOLS = 10
FUSED_BATCH_SIZE = 4  # batch size of joint network and loss in NeMo's recipes; only training uses it
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
RNNT_KWARGS, FAST_EMIT = "warprnnt_numba_kwargs", "fastemit_lambda"  # settings of the loss of an RNNT

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
        blank=None,
    )


class NemoTransducer(NamedTuple):
    """Result of converting a NeMo transducer to asr.

    Args:
        config: config of asr's head and its decoder.
        joint: section of NeMo's config for the joint network; it contains the vocabulary.
        names: names of the model's tensors.
    """

    config: HeadConfig
    joint: Section
    names: Names


def is_transducer(config: Section) -> bool:
    """Whether a model is a transducer, with or without a CTC head."""
    return config.get("joint") is not None


def transducer(config: Section) -> NemoTransducer:
    """Convert the config of a model's transducer, and of its CTC head if it also has one."""
    network, joint = mapping(config.get("decoder"), "decoder"), mapping(config.get("joint"), "joint")
    check_class(network, "decoder", "RNNTDecoder", "an LSTM prediction network")
    check_class(joint, "joint", "RNNTJoint", "a joint network")
    unsupported = {"normalization_mode": (None, (None,)), "blank_as_pad": (True, (True,))}
    check(network, "decoder", DECODER_KEYS, unsupported)
    check(joint, "joint", JOINT_KEYS, {"masking_prob": (-1.0, (-1.0, -1))})
    jointnet = mapping(joint.get("jointnet"), "joint.jointnet")
    check(jointnet, "joint.jointnet", JOINTNET_KEYS, {"activation": ("relu", JOINT_ACTIVATIONS)})
    durations = _durations(config, joint)
    auxiliary = config.get("aux_ctc")
    head = default_settings("head", "tdt" if durations else "transducer") | {
        "joint_dim": whole(jointnet, "joint.jointnet.joint_hidden"),
        "joint_activation": jointnet.get("activation", "relu"),
        "dropout": jointnet.get("dropout") or 0.0,
        "ctc_weight": auxiliary.get("ctc_loss_weight", 0.5) if isinstance(auxiliary, Mapping) else 0.0,
        "predictor": _predictor(mapping(network.get("prednet"), "decoder.prednet")),
        **({"durations": durations} if durations else {}),
        **_loss(config, bool(durations)),
    }
    if isinstance(auxiliary, Mapping):
        ctc_head(config)  # checks that asr supports the CTC head
    decode = default_settings("decode", greedy_decoder(decoders_of(head))) | _max_symbols(config)
    linear, blank = _last_layer(jointnet.get("dropout") or 0.0), whole(network, "decoder.vocab_size")
    return NemoTransducer(HeadConfig(head, decode), joint, _names(linear, blank))


def _predictor(prednet: Section) -> dict[str, Any]:
    dim = whole(prednet, "decoder.prednet.pred_hidden")
    # An LSTM of another size would have a projection at its output, which asr does not support.
    check(prednet, "decoder.prednet", PREDNET_KEYS, {"rnn_hidden_size": (-1, (-1, None, dim))})
    return {
        "name": "lstm",
        "dim": dim,
        "num_layers": whole(prednet, "decoder.prednet.pred_rnn_layers", 1),
        "dropout": prednet.get("dropout") or 0.0,
        "trains_blank": False,
    }


def _durations(config: Section, joint: Section) -> list[Any]:
    """Return the durations of a TDT model; [] for an RNNT."""
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


def _loss(config: Section, has_durations: bool) -> dict[str, Any]:
    """Return the settings of the loss that the config contains; each of them is optional."""
    loss = _section(config, "loss")
    if has_durations:
        kwargs = _section(loss, "tdt_kwargs")
        return {name: kwargs[name] for name in ("sigma", "omega") if name in kwargs}
    return {"fast_emit": _section(loss, RNNT_KWARGS).get(FAST_EMIT) or 0.0}


def _max_symbols(config: Section) -> dict[str, Any]:
    max_symbols = _section(_section(config, "decoding"), "greedy").get("max_symbols")
    return {} if max_symbols is None else {"max_symbols": max_symbols}


def _section(config: Section, name: str) -> Section:
    """Return an optional section; {} if the config does not contain it."""
    value = config.get(name)
    return value if isinstance(value, Mapping) else {}


def _names(linear: str, blank: int) -> Names:
    """Return the names of a model's tensors; `linear` is its joint network's last layer, `blank` the blank's index."""
    rows, ctc = outputs(blank), f"{AUXILIARY}.decoder_layers.0"
    transducer = {
        "head.predictor.embedding.weight": (("decoder.prediction.embed.weight",), _begins_with_zeros(rows)),
        "head.joiner.of_frames.weight": (("joint.enc.weight",), SAME),
        "head.joiner.of_frames.bias": (("joint.enc.bias", "joint.pred.bias"), SUM),
        "head.joiner.of_tokens.weight": (("joint.pred.weight",), SAME),
        **{f"head.joiner.output.{kind}": ((f"{linear}.{kind}",), rows) for kind in ("weight", "bias")},
        "head.ctc.linear.weight": ((f"{ctc}.weight",), outputs(blank, ONE_FRAME)),
        "head.ctc.linear.bias": ((f"{ctc}.bias",), rows),
    }
    outside = FRONT_END | {"head.predictor.cells": "decoder.prediction.dec_rnn.lstm"}
    return names()._replace(outside=outside, others=transducer)


def _begins_with_zeros(layout: Layout) -> Layout:
    """Return a layout that sets the blank's row to zero: NeMo starts with zeros and ignores this row."""

    def join(x: Any) -> Any:
        ours = layout.join(x)
        ours[0] = 0.0
        return ours

    def part(x: Any) -> Any:
        if bool(x[0].any()):
            must = "the blank's row of head.predictor.embedding.weight must be zero for conversion to NeMo"
            raise InputError(f"{must}; it is not. Train with head.predictor.trains_blank=false.")
        return layout.part(x)

    return layout._replace(join=join, part=part)


def transducer_sections(config: Section, vocabulary: list[str], is_subword: bool) -> dict[str, Any]:
    """Return the sections of NeMo's config for a transducer of asr, and for its CTC head if it also has one.

    Args:
        config: config of the asr model.
        vocabulary: vocabulary of the head, without blank and durations.
        is_subword: whether tokens are subwords, not characters.
    """
    head, dim = config["head"], config["encoder"]["dim"]
    predictor, durations = head["predictor"], head["durations"]
    kind = "hybrid_rnnt_ctc" if head["ctc_weight"] else "rnnt"
    name = "EncDecHybridRNNTCTC" if head["ctc_weight"] else "EncDecRNNT"
    kind, name = (f"{kind}_bpe", f"{name}BPE") if is_subword else (kind, name)
    sections = {
        "target": f"{MODELS}.{kind}_models.{name}Model",
        "model_defaults": {
            "enc_hidden": dim,
            "pred_hidden": predictor["dim"],
            "joint_hidden": head["joint_dim"],
            **({"tdt_durations": durations, "num_tdt_durations": len(durations)} if durations else {}),
        },
        "decoder": {
            "_target_": "nemo.collections.asr.modules.RNNTDecoder",
            "normalization_mode": None,
            "random_state_sampling": False,
            "blank_as_pad": True,
            "vocab_size": len(vocabulary),
            "prednet": {
                "pred_hidden": predictor["dim"],
                "pred_rnn_layers": predictor["num_layers"],
                "t_max": None,
                "dropout": predictor["dropout"],
            },
        },
        "joint": {
            "_target_": "nemo.collections.asr.modules.RNNTJoint",
            "log_softmax": None,
            "preserve_memory": False,
            "fuse_loss_wer": True,
            "fused_batch_size": FUSED_BATCH_SIZE,
            **({"num_extra_outputs": len(durations)} if durations else {}),
            "jointnet": {
                "encoder_hidden": dim,
                "pred_hidden": predictor["dim"],
                "joint_hidden": head["joint_dim"],
                "activation": head["joint_activation"],
                "dropout": head["dropout"],
            },
            "num_classes": len(vocabulary),
            "vocabulary": vocabulary,
        },
        "decoding": {
            "strategy": "greedy_batch",
            **({"model_type": "tdt", "durations": durations} if durations else {}),
            "greedy": {"max_symbols": config["decode"].get("max_symbols", MAX_SYMBOLS)},
        },
        "loss": _nemo_loss(head),
    }
    if head["ctc_weight"]:
        sections["aux_ctc"] = {
            "ctc_loss_weight": head["ctc_weight"],
            "use_cer": False,
            "ctc_reduction": "mean_batch",
            "decoder": ctc_decoder(dim, vocabulary),
            "decoding": {"strategy": "greedy"},
        }
    return sections


def _nemo_loss(head: Section) -> dict[str, Any]:
    """Return the section of NeMo's config for the loss."""
    if not head["durations"]:
        kwargs = {RNNT_KWARGS: {FAST_EMIT: head["fast_emit"], "clamp": -1.0}} if head["fast_emit"] else {}
        return {"loss_name": "default", **kwargs}
    settings = {name: head[name] for name in ("durations", "sigma", "omega")}
    return {"loss_name": "tdt", "tdt_kwargs": {FAST_EMIT: 0.0, "clamp": -1.0, **settings}}


def transducer_names(head: Section, num_pieces: int) -> Names:
    """Return NeMo's names for the tensors of a transducer of asr.

    Args:
        head: config of asr's head.
        num_pieces: number of tokens without the blank.
    """
    return _names(_last_layer(head["dropout"]), num_pieces)


def _last_layer(dropout: float) -> str:
    """Return the name of the joint network's last layer, which follows an activation and an optional dropout."""
    return "joint.joint_net.2" if dropout else "joint.joint_net.1"
