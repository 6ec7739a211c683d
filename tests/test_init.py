"""Training that starts from a trained model: loaded, replaced and frozen parts, logged tensors, and the gain."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from asr import load_recognizer
from asr.apps.report.training import read_record, training_page
from asr.base.settings.conf import default_settings
from asr.compare import main as compare_main
from asr.core.build import build_features, build_model, build_tokenizer
from asr.core.data.manifest import read_manifest
from asr.core.evaluation.result import evaluate
from asr.core.run.initialization import start_of, with_parts
from asr.core.run.settings import RunSettings
from asr.core.run.validation_samples import read_samples
from asr.core.training.frozen import Frozen
from asr.core.training.task import TrainingTask
from asr.errors import InputError
from asr.evaluate import main as evaluate_main
from asr.train import train
from tests.conftest import TINY, resolved, settings_with, tone_corpus
from tests.processes import bundle, metrics
from tests.refusals import mentions, refused
from tests.test_average import save
from tests.test_train import losses


def start_config(model: Path, *overrides: str) -> RunSettings:
    """Return the settings of a training run that starts from `model`, with these overrides."""
    given = [f"init.from={model}", *overrides]
    return with_parts(settings_with(*given), given)


def fresh(config: dict[str, Any], texts: list[str]) -> Any:
    tokenizer = build_tokenizer(config)
    tokenizer.fit(texts)
    return build_model(config, tokenizer, build_features(config))


def test_components_come_from_the_start_model_except_those_replaced_by_name(fluent: Path) -> None:
    own = start_config(fluent / "run")
    assert own.components["encoder"]["dim"] == 32, "the model's dim, not the 144 of conf/"
    assert own.components["optimizer"] == resolved()["optimizer"]
    other = start_config(fluent / "run", "head=ctc", "encoder.block.dropout=0.25", "encoder/block/norm=layer_norm")
    assert other.components["head"] == {"name": "ctc"}
    assert other.components["encoder"]["dim"] == 32
    assert other.components["encoder"]["block"]["dropout"] == 0.25
    assert other.components["encoder"]["block"]["norm"]["name"] == "layer_norm"


@pytest.mark.parametrize("debug", [[], ["debug=fast"]])
def test_debug_fast_logs_that_the_network_has_the_size_of_the_model(
    debug: list[str], fluent: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "asr")
    settings = start_config(fluent / "run", *debug)
    assert settings.components["encoder"] == start_config(fluent / "run").components["encoder"]
    assert ("debug=fast: the network has the size of the model in init.from" in caplog.messages) == bool(debug)


def test_a_run_loads_every_tensor_of_the_start_model(fluent: Path, tones: Path, tmp_path: Path) -> None:
    weights = load_file(fluent / "run" / "bundle" / "weights.safetensors")
    settings = [*(line for line in TINY if line.startswith(("trainer", "data", "schedule", "augment"))), "seed=7"]
    common = [*settings, *tone_corpus(tones), "trainer.max_steps=3", "optimizer.lr=0.0"]
    given = [*common, f"init.from={fluent / 'run'}", f"run_dir={tmp_path / 'run'}"]
    train(with_parts(settings_with(*given), given))
    after = load_file(tmp_path / "run" / "bundle" / "weights.safetensors")
    assert after.keys() == weights.keys()
    still = [name for name in weights if "running" not in name]
    assert all(torch.equal(after[name], weights[name]) for name in still), "a learning rate of 0 changes no weight"
    assert losses(tmp_path / "run")[0] < 0.5, "it recognises the tones from the first step on"


def test_a_streaming_encoder_loads_every_tensor_of_a_conformer(fluent: Path, caplog: pytest.LogCaptureFixture) -> None:
    named = ["encoder=conformer_streaming_xs", *(line for line in TINY if line.startswith("encoder"))]
    config = start_config(fluent / "run", *named, "features/normalize=global_cmvn")
    assert config.components["features"]["normalize"]["name"] == "global_cmvn"
    start = start_of(config.init)
    assert start is not None
    model = fresh(config.components, [line.text for line in read_manifest(fluent / "train.jsonl")])
    with caplog.at_level(logging.INFO, "asr"):
        start.load(model)
    assert mentions(caplog.text, f"{len(start.bundle.weights)} tensors loaded, 0 fresh, 0 unused")


def test_a_new_tokenizer_keeps_the_rows_of_the_pieces_that_both_tokenizers_have(
    fluent: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = start_config(fluent / "run", "tokenizer=char")
    start = start_of(config.init)
    assert start is not None
    bundle = start.bundle.weights
    model = fresh(config.components, ["zyx abc"])
    old = build_tokenizer(start.bundle.config)
    old.load(start.bundle.files)
    with caplog.at_level(logging.INFO, "asr"):
        start.load(model)
    weight, rows = model.head.ctc.linear.weight, bundle["head.ctc.linear.weight"]
    both = 0
    for token, piece in enumerate(model.tokenizer.pieces):
        if piece in old.pieces:
            both += 1
            assert torch.equal(weight[token], rows[list(old.pieces).index(piece)])
        else:
            torch.testing.assert_close(weight[token], rows.mean(dim=0))
    assert 1 < both < model.tokenizer.vocab_size
    assert mentions(caplog.text, f"{model.tokenizer.vocab_size} ... {both}")


@pytest.mark.parametrize(
    ("head", "settings", "layer", "fresh_ones"),
    [
        ("ctc", [], "head.linear", ""),
        (
            "ctc_self_conditioned",
            ["head.num_intermediate=1"],
            "head.intermediate.ctc.linear",
            " (head.condition.bias, head.condition.weight)",
        ),
    ],
)
def test_a_different_head_keeps_the_ctc_output_layer_and_its_new_tensors_are_named(
    fluent: Path, caplog: pytest.LogCaptureFixture, head: str, settings: list[str], layer: str, fresh_ones: str
) -> None:
    config = start_config(fluent / "run", f"head={head}", *settings)
    start = start_of(config.init)
    assert start is not None
    model = fresh(config.components, [line.text for line in read_manifest(fluent / "train.jsonl")])
    with caplog.at_level(logging.INFO, "asr"):
        start.load(model)
    weights, state = start.bundle.weights, model.state_dict()
    assert mentions(caplog.text, f"{len(weights)} ... {len(state) - len(weights)}")
    for name in ("weight", "bias"):
        assert torch.equal(state[f"{layer}.{name}"], weights[f"head.ctc.linear.{name}"])


@pytest.mark.parametrize("head", ["tdt", "transducer"])
@pytest.mark.parametrize("ctc_weight", [0.0, 0.3])
@torch.no_grad()
def test_a_new_joiner_starts_with_the_logits_of_the_models_ctc_layer(
    head: str, ctc_weight: float, fluent: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # The CTC layer occupies two of the joiner's 70 hidden units for each of the encoder's 32 dimensions; six remain.
    sizes = ["head.joint_activation=relu", "head.joint_dim=70", f"head.ctc_weight={ctc_weight}"]
    config = start_config(fluent / "run", f"head={head}", *sizes)
    start = start_of(config.init)
    assert start is not None
    model = fresh(config.components, [line.text for line in read_manifest(fluent / "train.jsonl")]).eval()
    with caplog.at_level(logging.INFO, "asr"):
        start.load(model)
    assert mentions(caplog.text, f"CTC ... {fluent / 'run'}")
    joiner = model.head.joiner
    weights, frames = start.bundle.weights, torch.randn(9, 32)
    expected = frames @ weights["head.ctc.linear.weight"].T + weights["head.ctc.linear.bias"]
    tokens = torch.zeros(9, 70)
    tokens[:, :64] = joiner.of_tokens(torch.randn(9, model.head.predictor.output_dim))[:, :64]
    logits = joiner(joiner.of_frames(frames).index_fill(1, torch.arange(64, 70), 0.0), tokens)
    vocab_size = expected.shape[1]
    torch.testing.assert_close(logits[:, :vocab_size], expected, rtol=0, atol=1e-5)
    if head == "tdt":
        assert logits[:, vocab_size:].argmax(dim=1).tolist() == [1] * 9, "one frame, like a frame of CTC"


@pytest.mark.parametrize(
    ("head", "own", "overrides", "decode"),
    [
        ("tdt", "transducer_greedy", [], {"name": "transducer_greedy", "max_symbols": 3}),
        ("transducer", "transducer_greedy", [], {"name": "transducer_greedy", "max_symbols": 3}),
        # The model's own search may be slow.
        ("tdt", "transducer_beam", [], default_settings("decode", "transducer_greedy")),
        ("tdt", "transducer_greedy", ["decode=greedy"], {"name": "greedy"}),
        ("tdt", "transducer_greedy", ["head=transducer"], default_settings("decode", "transducer_greedy")),
        ("ctc", "beam", [], {"name": "greedy"}),
        ("ctc", "greedy", ["decode=beam", "decode.beam_size=3"], default_settings("decode", "beam") | {"beam_size": 3}),
    ],
)
def test_the_decoder_is_the_greedy_decoder_of_the_start_models_head(
    head: str, own: str, overrides: list[str], decode: dict[str, Any], tmp_path: Path
) -> None:
    settings = [f"head={head}", f"decode={own}", *(["decode.max_symbols=3"] if head != "ctc" else [])]
    model = save(tmp_path / "old.ckpt", *settings, texts=["abc"], weights=1)
    assert start_config(model, *overrides).components["decode"] == decode


def test_if_the_joiner_cannot_start_from_the_ctc_layer_the_log_names_settings_that_permit_it(
    fluent: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = start_config(fluent / "run", "head=transducer")
    start = start_of(config.init)
    assert start is not None
    with caplog.at_level(logging.INFO, "asr"):
        start.load(fresh(config.components, [line.text for line in read_manifest(fluent / "train.jsonl")]))
    settings = "head.joint_activation=relu head.joint_dim=64"
    assert mentions(caplog.text, f"CTC ... {settings}")


def test_without_the_weights_of_the_head_a_new_joiner_does_not_start_from_the_ctc_layer(
    fluent: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = ["head.joint_activation=relu", "head.joint_dim=64"]
    config = start_config(fluent / "run", "head=tdt", *sizes, "init.parts=[encoder]")
    start = start_of(config.init)
    assert start is not None
    with caplog.at_level(logging.INFO, "asr"):
        start.load(fresh(config.components, [line.text for line in read_manifest(fluent / "train.jsonl")]))
    assert "the joiner starts" not in caplog.text


@torch.no_grad()
def test_a_joiner_in_the_start_model_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    head = ["head=tdt", "head.joint_activation=relu", "head.joint_dim=64"]
    config = start_config(save(tmp_path / "old.ckpt", *head, texts=["abc"], weights=1))
    start = start_of(config.init)
    assert start is not None
    model = fresh(config.components, ["abc"])
    with caplog.at_level(logging.INFO, "asr"):
        start.load(model)
    assert "the joiner starts" not in caplog.text
    name = "head.joiner.output.weight"
    assert torch.equal(model.state_dict()[name], start.bundle.weights[name])


@pytest.mark.parametrize("durations", ["[]", "[0,1,2,3,4]", "[0,1]"])
@pytest.mark.parametrize("texts", [["abc"], ["abcd"]], ids=["same tokens", "another token"])
@torch.no_grad()
def test_the_rows_of_a_joiner_are_loaded_by_token_and_duration_rows_only_if_the_durations_are_equal(
    durations: str, texts: list[str], tmp_path: Path
) -> None:
    sizes = ["head.sigma=0", "head.omega=0"]
    changed = ["head=tdt", f"head.durations={durations}", *sizes, *(["tokenizer=char"] if texts != ["abc"] else [])]
    config = start_config(save(tmp_path / "old.ckpt", "head=tdt", *sizes, texts=["abc"], weights=1), *changed)
    start = start_of(config.init)
    assert start is not None
    model = fresh(config.components, texts)
    random = model.head.joiner.output.weight.clone()
    start.load(model)
    expected, loaded = start.bundle.weights["head.joiner.output.weight"], model.head.joiner.output.weight
    num_old, num_new = len(expected) - 5, len(model.tokenizer.pieces)
    assert num_new == num_old + (texts != ["abc"])
    assert torch.equal(loaded[:num_old], expected[:num_old])
    assert torch.equal(loaded[num_new:], expected[num_old:] if durations == "[0,1,2,3,4]" else random[num_new:])


def test_tensors_that_the_new_head_does_not_have_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    head = ["head=ctc_self_conditioned", "head.num_intermediate=1"]
    config = start_config(save(tmp_path / "old.ckpt", *head, texts=["abc"], weights=1), "head=ctc")
    start = start_of(config.init)
    assert start is not None
    with caplog.at_level(logging.INFO, "asr"):
        start.load(fresh(config.components, ["abc"]))
    assert "0 fresh, 2 unused (head.condition.bias, head.condition.weight)" in caplog.text


def test_a_different_network_size_is_an_error(fluent: Path) -> None:
    wider = start_config(fluent / "run", "encoder.dim=64")
    start = start_of(wider.init)
    assert start is not None
    with refused(InputError, "tensor sizes ... init.from"):
        start.load(fresh(wider.components, ["abc"]))


def finetune(fluent: Path, corpus: Path, run_dir: Path, *overrides: str) -> Path:
    """Train, starting from the model in `fluent`, and return the run folder."""
    settings = [line for line in TINY if line.startswith(("trainer", "data", "schedule", "augment"))]
    start = ["optimizer=adamw", f"init.from={fluent / 'run'}"]
    given = [*settings, *tone_corpus(corpus), *start, f"run_dir={run_dir}", *overrides]
    train(with_parts(settings_with(*given), given))
    return run_dir


HEAD = {"head.ctc.linear.weight", "head.ctc.linear.bias"}


def test_frozen_weights_and_their_running_statistics_do_not_change(fluent: Path, tones: Path, tmp_path: Path) -> None:
    run_dir = finetune(fluent, tones, tmp_path / "run", "trainer.max_steps=3", "init.frozen=[encoder.*]")
    before = load_file(fluent / "run" / "bundle" / "weights.safetensors")
    assert any("running_var" in name for name in before)
    after = load_file(run_dir / "bundle" / "weights.safetensors")
    assert {name for name in before if not torch.equal(before[name], after[name])} == HEAD


def test_weights_frozen_for_some_steps_are_trained_afterwards(
    fluent: Path, tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once weights are unfrozen, running statistics change too, and the optimizer's state of the weights is new."""
    weights = {0: load_file(fluent / "run" / "bundle" / "weights.safetensors")}

    def keep(task: Any, *_: Any) -> None:
        now = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}
        # Keep the weights after the first batch with this number of steps; the next batch already changes statistics.
        weights.setdefault(task.global_step, now)

    monkeypatch.setattr(TrainingTask, "on_train_batch_end", keep)
    frozen = ["init.frozen=[encoder.*]", "init.frozen_steps=2"]
    accumulated = ["data.batch_seconds=5", "trainer.accumulate_grad_batches=2", "trainer.check_val_every_n_epoch=1"]
    finetune(fluent, tones, tmp_path / "run", "trainer.max_steps=4", *frozen, *accumulated)

    def changed(step: int) -> set[str]:
        return {name for name in weights[0] if not torch.equal(weights[step - 1][name], weights[step][name])}

    assert [changed(1), changed(2)] == [HEAD, HEAD]
    assert any("running_mean" in name for name in changed(3))
    assert any("weight" in name for name in changed(3) - HEAD)
    checkpoint = torch.load(next((tmp_path / "run" / "checkpoints").glob("step=4*.ckpt")), weights_only=True)
    states = checkpoint["optimizer_states"][0]["state"].values()
    assert {float(state["step"]) for state in states} == {2.0, 4.0}


def test_weights_may_be_frozen_for_all_steps_of_a_run(fluent: Path, tones: Path, tmp_path: Path) -> None:
    common = ["trainer.max_steps=3", "init.frozen=[encoder.subsampling.*,encoder.blocks.0.*]"]
    runs = [
        finetune(fluent, tones, tmp_path / str(steps), *common, f"init.frozen_steps={steps}") for steps in ("null", 3)
    ]
    assert bundle(runs[0]) == bundle(runs[1])
    assert metrics(runs[0]) == metrics(runs[1])


def test_the_start_model_is_validated_once_before_the_first_step(
    fluent: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "asr")
    short = ["trainer.max_epochs=1", "data.max_train_utterances=16", "corpus.test=[]"]
    for _ in range(2):  # the second run is already complete
        run_dir = finetune(fluent, fluent, tmp_path / "run", *short, "ema.decay=0.9", "early_stopping.patience=3")
    rows = [row for row in metrics(run_dir) if row["step"] == "0"]
    evaluation = evaluate(load_recognizer(fluent / "run"), "valid", read_manifest(fluent / "valid.jsonl"))
    assert [float(row["valid/wer"]) for row in rows] == [pytest.approx(evaluation.counts.rate)]
    assert rows[0]["epoch"] == "0.0"
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    last = int(metrics(run_dir)[-1]["step"])
    assert [event["step"] for event in events if event["event"] == "validation"] == [0, last]
    assert sum("before the first step: valid loss" in message for message in caplog.messages) == 1
    assert {sample.step for sample in read_samples(run_dir / "examples.jsonl")} == {0, last}
    assert not list((run_dir / "checkpoints").glob("step=0*")), "no checkpoint is written before the first step"
    page = training_page(read_record(run_dir))
    assert "Validation WER before" in page
    assert "before the first step, " in page


def test_the_reported_gain_and_forgetting_equal_those_of_evaluate_and_compare(
    fluent: Path, tones: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first test manifest resembles the training set; the run's tokenizer cannot spell the texts of the second."""
    with (tmp_path / "other.jsonl").open("w") as file:
        for line in (tones / "test.jsonl").read_text().splitlines():
            entry = json.loads(line)
            moved = {"audio_filepath": str(tones / entry["audio_filepath"]), "text": f"{entry['text']} ö"}
            print(json.dumps(entry | moved), file=file)
    with caplog.at_level(logging.INFO, "asr"):
        run_dir = finetune(
            fluent,
            fluent,
            tmp_path / "run",
            "trainer.max_steps=3",
            "optimizer.lr=0.05",
            "schedule.warmup_steps=0",
            f"corpus.also_test=[{tmp_path / 'other.jsonl'}]",
        )
    comparison = json.loads((run_dir / "comparison.json").read_text())
    manifests = [str(fluent / "test.jsonl"), str(tmp_path / "other.jsonl")]
    for model in (fluent / "run", run_dir):
        assert evaluate_main([str(model), *manifests, "--output-dir", str(tmp_path / model.parent.name)]) == 0
    card = (run_dir / "bundle" / "README.md").read_text()
    assert f"| started from | {fluent / 'run'} |" in card
    assert "> | weights | best of the run: " in card, "the card quotes the card of the start model"
    page = training_page(read_record(run_dir))
    for name in ("test", "other"):
        a, b = (tmp_path / folder.name / f"{name}.utterances.jsonl" for folder in (fluent, tmp_path))
        assert compare_main([str(a), str(b), "--json", str(tmp_path / "figures.json")]) == 0
        expected = json.loads((tmp_path / "figures.json").read_text())
        assert comparison[name] == expected
        change = f"{100 * expected['difference']['rate']:+.2f}"
        assert any(line.startswith(f"{name}: WER") and f"{change} points" in line for line in caplog.messages)
        assert f'<span data-figure="gain">{change}</span>' in page
    assert comparison["test"]["difference"]["rate"] > 0.1, (
        "three steps with this learning rate must make the model worse"
    )
    assert set(json.loads((run_dir / "results.json").read_text())) == {"test", "other"}
    assert page.count("not trained on: corpus.also_test") == 1


def test_a_start_model_with_another_kind_of_head_recognises_with_its_own_decoder(fluent: Path) -> None:
    start = start_of(start_config(fluent / "run").init)
    assert start is not None
    beam, transducer = (default_settings("decode", name) for name in ("beam", "transducer_greedy"))
    assert type(start.recognizer(beam, torch.device("cpu")).decode).__name__ == "Beam"
    assert type(start.recognizer(transducer, torch.device("cpu")).decode).__name__ == "Greedy"


def test_only_the_config_of_a_bundle_is_read_to_get_its_components(
    fluent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asr.core.checkpoint.bundle.load_file", lambda path: pytest.fail("weights are read"))
    assert start_config(fluent / "run").components["encoder"]["dim"] == 32


def test_a_pattern_that_matches_nothing_or_everything_is_reported_in_one_line(fluent: Path) -> None:
    model = fresh(start_config(fluent / "run").components, ["abc"])
    with refused(InputError, "init.frozen", got="decoder.*"):
        Frozen(model, ["decoder.*"], None)
    with refused(InputError, "init.frozen; got *"):
        Frozen(model, ["*"], None)
    with refused(InputError, "init.frozen_steps", got=9):
        Frozen(model, [], 9)


def test_a_component_cannot_be_removed(fluent: Path) -> None:
    with refused(InputError, "not removed; got ~encoder.block.norm"):
        with_parts(settings_with(f"init.from={fluent / 'run'}"), ["~encoder.block.norm"])


def test_an_absent_model_is_reported_in_one_line(tmp_path: Path) -> None:
    with refused(InputError, "model ... .ckpt"):
        start_config(tmp_path / "nothing")
