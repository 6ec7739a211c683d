"""Shallow fusion with a neural language model in each beam search: scores, calls of the model, and search by chunks."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from asr.base.language_model.stored import write_token_model
from asr.base.language_model.token_histories import TokenHistories
from asr.base.language_model.token_scores import text_log_probs
from asr.base.settings.conf import default_settings
from asr.core.build import build_decoder, build_features, build_model, build_token_model, build_tokenizer
from asr.core.checkpoint.bundle import read_bundle, replace_bundle
from asr.core.checkpoint.load import load_recognizer
from asr.errors import InputError
from asr.interfaces import BOUNDARY_ID, Encoded
from tests.conftest import ROOT, TINY, resolved
from tests.refusals import refused

MODELS = {
    "lstm": {"embedding_dim": 8, "dim": 12, "num_layers": 2, "dropout": 0.0},
    "transformer_xl": {"dim": 8, "num_layers": 2, "num_heads": 2, "dropout": 0.0, "segment": 4, "memory": 6},
}
WEIGHT = 0.8
WIDE = {  # so wide that the beam drops no hypothesis
    "beam": {"beam_size": 10_000, "beam_threshold": 1000.0, "tokens_per_frame": 100, "token_threshold": -1000.0},
    "joint_beam": {"beam_size": 10_000, "beam_threshold": 1000.0, "tokens_per_step": 100},
    "transducer_beam": {"beam_size": 10_000, "beam_threshold": 1000.0, "tokens_per_frame": 100, "max_symbols": 2},
}
HEADS = {"beam": "ctc", "joint_beam": "ctc_attention", "transducer_beam": "transducer"}


def token_model(name: str = "lstm", vocab_size: int = 8) -> Any:
    model: Any = build_token_model(default_settings("token_model", name) | MODELS[name], vocab_size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter)
    return model.eval()


def stored(path: Path, model: Any, pieces: list[str], name: str = "lstm") -> str:
    write_token_model(path, default_settings("token_model", name) | MODELS[name], pieces, model.state_dict(), {})
    return str(path)


@torch.no_grad()
def alone(model: Any, text: list[int]) -> float:
    """Return log p(text, end), token by token, for one text without padding."""
    state, given, total = model.initial_state(1), BOUNDARY_ID, 0.0
    for token in [*text, BOUNDARY_ID]:
        log_probs, state = model(torch.tensor([[given]]), state)
        total += float(log_probs[0, 0, token])
        given = token
    return total


@pytest.mark.parametrize("name", MODELS)
def test_the_score_of_a_text_in_a_batch_is_the_sum_of_the_scores_of_its_tokens_alone(name: str) -> None:
    model, dice = token_model(name), random.Random(0)
    texts = [[dice.randint(1, 7) for _ in range(length)] for length in (0, 1, 13, 40)]
    padded = torch.tensor([text + [7] * (40 - len(text)) for text in texts])
    with torch.no_grad():
        together = text_log_probs(model, padded, torch.tensor([len(text) for text in texts]))
    assert together.tolist() == pytest.approx([alone(model, text) for text in texts], abs=1e-3, rel=1e-5)  # float32


def net(name: str) -> tuple[dict[str, Any], Any]:
    """Return config and model of a tiny net with the tokens a, b, c and a space, for beam search."""
    small = [*TINY, f"head={HEADS[name]}", f"decode={name}", "features/normalize=utterance_cmvn"]
    config = resolved(*small, "encoder.dim=16")
    tokenizer, features = build_tokenizer(config), build_features(config)
    tokenizer.fit(["abc "])
    return config, build_model(config, tokenizer, features).eval()


def decoder(config: dict[str, Any], model: Any, lm: str | None, **settings: Any) -> Any:
    fusion = config["decode"]["fusion"] | {"lm": lm, "lm_weight": WEIGHT, "word_insertion_bonus": 0.0}
    return build_decoder(config | {"decode": config["decode"] | settings | {"fusion": fusion}}, model)


def scores(decode: Any, encoder_out: torch.Tensor) -> list[dict[tuple[int, ...], float]]:
    lengths = torch.tensor([encoder_out.shape[1], encoder_out.shape[1] - 1])
    with torch.inference_mode():
        n_best = decode.search(decode.evidence(Encoded(encoder_out, lengths, {})))
    return [{tuple(each.tokens): each.score for each in hypotheses} for hypotheses in n_best]


@pytest.mark.parametrize(
    ("name", "lm"),
    [
        pytest.param(name, lm, marks=[pytest.mark.slow] * (name.endswith("beam") and (name, lm) != ("beam", "lstm")))
        for name in WIDE
        for lm in MODELS
    ],
)
def test_a_fused_score_is_the_acoustic_score_plus_the_weighted_score_of_the_language_model(
    name: str, lm: str, tmp_path: Path
) -> None:
    config, model = net(name)
    language_model = token_model(lm, model.tokenizer.vocab_size)
    path = stored(tmp_path / "lm.safetensors", language_model, list(model.tokenizer.pieces), lm)
    encoder_out = torch.randn(2, 3, model.encoder.output_dim)
    without = scores(decoder(config, model, None, **WIDE[name]), encoder_out)
    together = scores(decoder(config, model, path, **WIDE[name]), encoder_out)
    for acoustic, fused in zip(without, together, strict=True):
        assert fused.keys() == acoustic.keys()
        assert len(fused) > 5
        expected = {text: score + WEIGHT * alone(language_model, list(text)) for text, score in acoustic.items()}
        assert fused == pytest.approx(expected, abs=1e-3)
        assert max(fused, key=fused.__getitem__) == max(expected, key=expected.__getitem__)


class Counting(nn.Module):
    """A language model that counts its calls."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.calls, self.rows = model, 0, 0
        self.vocab_size, self.initial_state, self.join = model.vocab_size, model.initial_state, model.join

    def forward(self, tokens: Any, state: Any) -> Any:
        self.calls += 1
        self.rows += len(tokens)
        return self.model(tokens, state)


def test_the_language_model_is_called_at_most_once_per_frame_with_one_row_per_hypothesis(tmp_path: Path) -> None:
    config, model = net("beam")
    language_model = token_model("lstm", model.tokenizer.vocab_size)
    path = stored(tmp_path / "lm.safetensors", language_model, list(model.tokenizer.pieces))
    decode = decoder(config, model, path)
    counting = Counting(language_model)
    decode.fusion.token_model._model = counting
    frames, read = 30, []
    with torch.inference_mode():
        evidence = decode.evidence(Encoded(torch.randn(1, frames, 16), torch.tensor([frames]), {}))
        decode.search(evidence)
        assert 0 < counting.calls <= frames + 1, "the last call scores the ends"
        assert counting.rows > counting.calls
        read.append(counting.rows)
        histories = TokenHistories(counting)
        start = histories.start()
        _, history = histories.score(start, 2)
        _, same = histories.score(start, 2)
        histories.read([history, history, same, start])
    assert counting.rows - read[0] == 1 + 2, "each history object is read once, also if two are equal"


@pytest.mark.parametrize("lm", MODELS)
def test_searching_chunk_by_chunk_equals_searching_the_whole_utterance(lm: str, tmp_path: Path) -> None:
    config, model = net("beam")
    language_model = token_model(lm, model.tokenizer.vocab_size)
    path = stored(tmp_path / "lm.safetensors", language_model, list(model.tokenizer.pieces), lm)
    decode = decoder(config, model, path)
    encoder_out = torch.randn(2, 40, 16)
    with torch.inference_mode():
        whole = decode.search(decode.evidence(Encoded(encoder_out, torch.tensor([40, 40]), {})))
        states = [decode.initial_state(), decode.initial_state()]
        for chunk in encoder_out.split([7, 1, 20, 12], dim=1):
            hypotheses, states = decode.step(Encoded(chunk, torch.full((2,), chunk.shape[1]), {}), states)
    for streamed, at_once in zip(hypotheses, whole, strict=True):
        assert streamed[0].tokens == at_once[0].tokens
        assert streamed[0].score == pytest.approx(at_once[0].score, abs=1e-3)
        final = streamed[0].num_final
        assert all(each.tokens[:final] == streamed[0].tokens[:final] for each in streamed)


def test_a_bundle_contains_the_language_model(tmp_path: Path) -> None:
    bundle = read_bundle(ROOT / "tests" / "bundles" / "format-11")
    model = load_recognizer(ROOT / "tests" / "bundles" / "format-11").model
    pieces = list(model.tokenizer.pieces)
    path = stored(tmp_path / "other.safetensors", token_model(vocab_size=len(pieces)), pieces)
    decode = default_settings("decode", "beam")
    decode["fusion"]["lm"] = path
    replace_bundle(tmp_path / "bundle", replace(bundle, config=bundle.config | {"decode": decode}))
    assert (tmp_path / "bundle" / "lm.safetensors").read_bytes() == Path(path).read_bytes()
    config = json.loads((tmp_path / "bundle" / "config.json").read_text())
    assert config["decode"]["fusion"]["lm"] == "lm.safetensors"
    expected = build_decoder(bundle.config | {"decode": decode}, model)
    Path(path).unlink()
    recognizer = load_recognizer(tmp_path / "bundle")
    assert recognizer.decode.description == "beam search, 16 hypotheses, language model, weight 0.3"
    assert set(recognizer.decode.tunable) == {"lm_weight", "word_insertion_bonus"}
    encoder_out = torch.randn(2, 30, recognizer.model.encoder.output_dim)
    assert scores(recognizer.decode, encoder_out) == scores(expected, encoder_out)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "neural language model ... asr.train_lm"),
        (b"what is this", "neural language model ... header"),
        ("no metadata", "asr.train_lm ... metadata describe"),
        ("other weights", "weights ... fit the settings"),
        ("other tokens", "decode.fusion.lm ... other tokens"),
    ],
)
def test_a_file_that_is_not_a_language_model_is_refused_in_one_line(content: Any, message: str, tmp_path: Path) -> None:
    config, model = net("beam")
    path, pieces = tmp_path / "lm.safetensors", list(model.tokenizer.pieces)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "no metadata":
        save_file({"x": torch.zeros(1)}, path)
    elif content == "other weights":
        stored(path, token_model("transformer_xl", len(pieces)), pieces)
    elif content == "other tokens":
        stored(path, token_model("lstm", len(pieces) + 1), [*pieces, "z"])
    with refused(InputError, message):
        decoder(config, model, str(path))
