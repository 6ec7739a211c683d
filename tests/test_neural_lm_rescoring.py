"""n-best rescoring by a neural language model: the score of a hypothesis does not depend on the batch."""

import json
import random
import shutil
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from asr import tune
from asr.base.language_model.stored import write_token_model
from asr.base.settings.conf import default_settings
from asr.components.decode import lm_rescoring
from asr.components.decode.lm_rescoring import LMRescoring, hypothesis_log_probs
from asr.core.build import build_decoder, build_features, build_model, build_token_model, build_tokenizer
from asr.core.checkpoint.bundle import read_bundle
from asr.core.checkpoint.load import decoder_settings, load_recognizer, with_values
from asr.errors import InputError
from asr.interfaces import BOUNDARY_ID, NO_BIASING, Encoded, Hypothesis, Tunable
from asr.transcribe import main as transcribe
from tests.conftest import TINY, resolved
from tests.refusals import refused

MODELS = {
    "lstm": {"embedding_dim": 8, "dim": 12, "num_layers": 2, "dropout": 0.0},
    "transformer_xl": {"dim": 8, "num_layers": 2, "num_heads": 2, "dropout": 0.0, "segment": 4, "memory": 6},
}
V = 8


def token_model(name: str = "lstm", vocab_size: int = V, sharpness: float = 1.0) -> Any:
    settings = default_settings("token_model", name) | MODELS[name]
    model: Any = build_token_model(settings, vocab_size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += sharpness * torch.randn_like(parameter)
    return model.eval()


def stored(path: Path, model: Any, pieces: list[str], name: str = "lstm") -> str:
    settings = default_settings("token_model", name) | MODELS[name]
    write_token_model(path, settings, pieces, model.state_dict(), {})
    return str(path)


def alone(model: Any, text: list[int]) -> float:
    """Return log p(text, end), token by token, for one text without padding."""
    state, given, total = model.initial_state(1), BOUNDARY_ID, 0.0
    for token in [*text, BOUNDARY_ID]:
        with torch.no_grad():
            log_probs, state = model(torch.tensor([[given]]), state)
        total += float(log_probs[0, 0, token])
        given = token
    return total


def random_texts(number: int, longest: int) -> list[list[int]]:
    dice = random.Random(number)
    return [[dice.randint(1, V - 1) for _ in range(dice.randint(0, longest))] for _ in range(number)]


class FirstPass:
    """A first pass that does not search: its evidence is the list of its hypotheses."""

    needs = ()
    max_seconds = 7.0
    max_hypotheses = 5
    biasing = NO_BIASING
    compile_hotwords = None
    description = "a search"
    tunable = MappingProxyType({"beta": Tunable(1.0, (0.0, 0.5, 1.0, 1.5, 2.0))})

    def __init__(self, *wired: Any) -> None:
        self.values: dict[str, float] = {}

    def evidence(self, encoded: Any) -> list[list[Hypothesis]]:
        return encoded.out.hypotheses

    def search(self, evidence: list[list[Hypothesis]], **values: float) -> list[list[Hypothesis]]:
        self.values = values
        return evidence


class Frames:
    """The part of encoder_out's interface that FirstPass needs."""

    device = torch.device("cpu")

    def __init__(self, hypotheses: list[list[Hypothesis]]) -> None:
        self.hypotheses = hypotheses


def rescoring(model: Any, weight: float = 0.7, bonus: float = 0.2) -> Any:
    settings = {"language_model": model, "rescoring_weight": weight, "token_insertion_bonus": bonus, "first": FirstPass}
    return LMRescoring(None, None, str, **settings)  # type: ignore[arg-type]


@pytest.fixture
def first_hypotheses() -> list[list[Hypothesis]]:
    texts = random_texts(17, 15)
    scores = torch.randn(17).tolist()
    all_of_them = [Hypothesis(text, score) for text, score in zip(texts, scores, strict=True)]
    return [all_of_them[:9], all_of_them[9:10], [Hypothesis([], -1.0)], all_of_them[10:]]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("at_once", [lm_rescoring.AT_ONCE, 20], ids=["one batch", "several batches"])
def test_rescoring_equals_scoring_each_hypothesis_alone(
    name: str, at_once: int, first_hypotheses: list[list[Hypothesis]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm_rescoring, "AT_ONCE", at_once)
    monkeypatch.setattr(lm_rescoring, "TOKENS", 6)  # a long hypothesis is split
    model = token_model(name).double()
    decode = rescoring(model)
    for before, after in zip(
        first_hypotheses, decode.search(decode.evidence(Encoded(Frames(first_hypotheses), None, {}))), strict=True
    ):
        expected = sorted(
            ((each.score + 0.7 * alone(model, each.tokens) + 0.2 * len(each.tokens), each.tokens) for each in before),
            reverse=True,
        )
        assert [each.tokens for each in after] == [tokens for _, tokens in expected]
        assert [each.score for each in after] == pytest.approx([score for score, _ in expected], abs=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_the_float32_score_of_a_hypothesis_does_not_depend_on_the_batch(name: str) -> None:
    model, texts = token_model(name), random_texts(12, 40)
    together = hypothesis_log_probs(model, texts, torch.device("cpu"))
    assert together == pytest.approx([alone(model, text) for text in texts], abs=1e-3, rel=1e-5)


def test_each_text_of_an_utterance_is_scored_once_for_all_weights(first_hypotheses: list[list[Hypothesis]]) -> None:
    class Counting(nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model, self.rows = model, 0

        def initial_state(self, batch: int) -> Any:
            return self.model.initial_state(batch)

        def forward(self, tokens: Any, state: Any) -> Any:
            self.rows += len(tokens)
            return self.model(tokens, state)

    model = Counting(token_model())
    decode = rescoring(model)
    evidence = decode.evidence(Encoded(Frames(first_hypotheses), None, {}))
    first = decode.search(evidence)
    different = sum(len({tuple(each.tokens) for each in hypotheses}) for hypotheses in first_hypotheses)
    assert model.rows == different
    again = decode.search(evidence, rescoring_weight=0.0, token_insertion_bonus=0.0, beta=1.5)
    assert model.rows == different
    assert decode.first.values["beta"] == 1.5, "the first pass receives its tunable values"
    assert [[each.score for each in n_best] for n_best in again] == [
        sorted((each.score for each in n_best), reverse=True) for n_best in first_hypotheses
    ]
    assert first != again


def test_the_tunable_values_are_those_of_rescoring_and_those_of_the_first_pass(
    first_hypotheses: list[list[Hypothesis]],
) -> None:
    decode = rescoring(token_model())
    assert list(decode.tunable) == ["rescoring_weight", "token_insertion_bonus", "beta"]
    without = rescoring(None)
    assert list(without.tunable) == ["beta"]
    assert without.search(without.evidence(Encoded(Frames(first_hypotheses), None, {}))) == first_hypotheses
    assert (decode.max_seconds, decode.max_hypotheses, decode.streaming) == (7.0, 5, None)


# Settings


def recognizer_with(folder: Path, head: str = "ctc", first: str = "beam") -> tuple[dict[str, Any], Any]:
    """Return config and model of a tiny net; the config names a language model that is written to `folder`."""
    overrides = [*TINY, f"head={head}", "decode=lm_rescoring", f"decode@decode.first={first}"]
    config = resolved(*overrides, "features/normalize=utterance_cmvn")
    tokenizer, features = build_tokenizer(config), build_features(config)
    tokenizer.fit(["abcdef "])
    path = stored(folder / "lm.safetensors", token_model(), list(tokenizer.pieces))
    config["decode"]["language_model"] = path
    return config, build_model(config, tokenizer, features).eval()


@pytest.mark.parametrize(
    ("head", "first"),
    [
        ("ctc", "beam"),
        ("transducer", "transducer_beam"),
        ("tdt", "transducer_beam"),
        ("ctc_attention", "joint_beam"),
    ],
)
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_the_hypotheses_of_each_beam_search_are_rescored(head: str, first: str, batch: int, tmp_path: Path) -> None:
    config, model = recognizer_with(tmp_path, head, first)
    decode = build_decoder(config, model)
    assert "rescored by a neural language model, weight 0.3" in decode.description
    encoder_out, lengths = torch.randn(batch, 12, model.encoder.output_dim), torch.tensor([12, 7, 9])[:batch]
    with torch.inference_mode():
        evidence = decode.evidence(Encoded(encoder_out, lengths, {}))
        by_search = decode.search(evidence, rescoring_weight=0.0)
        by_both = decode.search(evidence, rescoring_weight=2.0)
    language_model: Any = decode.language_model  # type: ignore[attr-defined]
    assert len(by_search) == batch
    for before, after in zip(by_search, by_both, strict=True):
        scores = {tuple(each.tokens): each.score for each in before}
        assert scores.keys() == {tuple(each.tokens) for each in after}
        for each in after:
            expected = scores[tuple(each.tokens)] + 2.0 * alone(language_model, each.tokens)
            assert each.score == pytest.approx(expected, abs=1e-3)


def test_a_first_pass_that_does_not_fit_the_head_or_is_itself_rescoring_is_refused() -> None:
    config = resolved(*TINY, "head=ctc", "decode=lm_rescoring", "decode@decode.first=transducer_beam")
    tokenizer, features = build_tokenizer(config), build_features(config)
    tokenizer.fit(["abc"])
    model = build_model(config, tokenizer, features)
    with refused(InputError, "head=ctc ... none"):
        build_decoder(config, model)
    config["decode"]["first"] = dict(config["decode"])
    with refused(InputError, "decode.first ... lm_rescoring"):
        build_decoder(config, model)


def test_the_settings_equal_those_composed_by_hydra() -> None:
    assert default_settings("decode", "lm_rescoring") == resolved("head=ctc", "decode=lm_rescoring")["decode"]


def test_settings_of_a_search_reach_the_first_pass() -> None:
    head = default_settings("head", "transducer")
    bundle: Any = SimpleNamespace(
        config={"head": head, "decode": default_settings("decode", "beam") | {"beam_size": 5}}
    )
    given = {"language_model": "lm", "rescoring_weight": 0.0, "beam_size": 9, "fusion": {"lm_weight": 2.0}}
    settings = decoder_settings(bundle, given)
    assert (settings["name"], settings["language_model"], settings["rescoring_weight"]) == ("lm_rescoring", "lm", 0.0)
    assert (settings["first"]["name"], settings["first"]["beam_size"]) == ("beam", 9)
    assert settings["first"]["fusion"] == default_settings("decode/fusion", "shallow_fusion") | {"lm_weight": 2.0}
    assert decoder_settings(bundle, {"name": "lm_rescoring"})["first"]["beam_size"] == 5
    bundle.config = {"head": head, "decode": settings}
    again = decoder_settings(bundle, {"rescoring_weight": 0.5, "beam_size": 3})
    assert (again["rescoring_weight"], again["first"]["beam_size"], again["language_model"]) == (0.5, 3, "lm")
    assert decoder_settings(bundle, {"name": "greedy"}) == {"name": "greedy"}
    bundle.config = {"head": head, "decode": {"name": "transducer_greedy", "max_symbols": 3}}
    assert decoder_settings(bundle, {"language_model": "lm"})["first"]["name"] == "transducer_beam"
    tuned = with_values(settings, {"rescoring_weight": 1.0, "lm_weight": 0.1})
    assert (tuned["rescoring_weight"], tuned["first"]["fusion"]["lm_weight"]) == (1.0, 0.1)


# A recogniser with rescoring


@pytest.mark.timeout(300)
def test_tuning_adds_the_language_model_to_the_bundle(fluent: Path, tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "copied"
    shutil.copytree(fluent / "run" / "bundle", folder)
    pieces = list(load_recognizer(folder).model.tokenizer.pieces)
    path = stored(tmp_path / "lm.safetensors", token_model(vocab_size=len(pieces)), pieces)
    assert (
        tune.main(
            [str(folder), str(fluent / "valid.jsonl"), "--language-model", path, "--beam", "4", "--attach", "always"]
        )
        == 0
    )
    assert "rescoring weight" in capsys.readouterr().out
    decode = json.loads((folder / "config.json").read_text())["decode"]
    assert (decode["name"], decode["language_model"]) == ("lm_rescoring", "language-model.safetensors")
    assert (folder / "language-model.safetensors").read_bytes() == Path(path).read_bytes()
    Path(path).unlink()
    recognizer = load_recognizer(folder)
    assert "rescored by a neural language model" in recognizer.decode.description
    assert transcribe([str(folder), str(fluent / "test.jsonl"), "--nbest", "2", "--format", "jsonl"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 60
    decode["language_model"] = "/etc/passwd"
    config = json.loads((folder / "config.json").read_text()) | {"decode": decode}
    (folder / "config.json").write_text(json.dumps(config))
    own = "decode.language_model; got '/etc/passwd'"
    with refused(InputError, own):
        read_bundle(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "neural language model ... asr.train_lm"),
        (b"what is this", "neural language model ... header"),
        ("no metadata", "asr.train_lm ... metadata describe"),
        ("other weights", "weights ... fit the settings"),
    ],
)
def test_a_file_that_is_not_a_language_model_is_refused_in_one_line(content: Any, message: str, tmp_path: Path) -> None:
    config, model = recognizer_with(tmp_path)
    path = Path(config["decode"]["language_model"])
    if content is None:
        path.unlink()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "other weights":
        stored(path, token_model("transformer_xl"), list(model.tokenizer.pieces))
    else:
        from safetensors.torch import save_file

        save_file({"x": torch.zeros(1)}, path)
    with refused(InputError, message):
        build_decoder(config, model)
