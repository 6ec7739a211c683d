"""Pre-training without texts: codes, masks and losses against plain references; runs; trainings from the encoder."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from asr.apps.pretrain.objective.best_rq import MaskedPrediction, PretrainedEncoder, RandomQuantizer
from asr.average import main as average
from asr.core import build
from asr.core.checkpoint.load import load_recognizer
from asr.core.data.batch import Batch, Example, collate
from asr.core.data.manifest import Utterance
from asr.core.run.events import read_history
from asr.core.run.names import EVENTS
from asr.core.run.settings import without_unused
from asr.core.training.hydra_command import compose_settings, read_experiment
from asr.errors import InputError
from asr.training_report import main as write_report
from recipes.librispeech.prepare import main as prepare
from tests.conftest import SHARED, TINY, needs_shared, resolved, tone_corpus
from tests.forked import run_module
from tests.processes import bundle, finish, kill, metrics, resumptions, start, steps_logged, wait_for
from tests.refusals import mentions, refused

SIZES = ["objective.codebook_size=16", "objective.codebook_dim=4", "objective.mask_probability=0.05"]
PRETRAINING = [*TINY, "objective=best_rq", *SIZES, "checkpoint.select=last", "trainer.log_every_n_steps=1"]
TWO = ["trainer.strategy=ddp", "trainer.devices=2"]


def trainable(*overrides: str, span: int = 3, probability: float = 0.05) -> MaskedPrediction:
    """A small model in float64."""
    components = resolved(*TINY, *overrides)
    features = build.build_features(components)
    torch.manual_seed(1)
    encoder = build.component("encoder", components["encoder"])(features.dim)
    quantizer = RandomQuantizer(encoder.stride * features.dim, codebook_size=16, codebook_dim=4, seed=0)
    model = PretrainedEncoder(features, encoder, quantizer, codebook_size=16).double()
    return MaskedPrediction(model, mask_probability=probability, span=span, noise=0.1, seed=0)


def batch_of(lengths: Sequence[int], dim: int = 80) -> Batch:
    noise, no_tokens = torch.Generator().manual_seed(2), torch.zeros(0, dtype=torch.int64)
    features = [torch.randn(length, dim, generator=noise, dtype=torch.float64) for length in lengths]
    utterances = [Utterance(f"{number}.wav", 1.0, "", str(number)) for number in range(len(lengths))]
    return collate([Example(*each, no_tokens) for each in zip(utterances, features, strict=True)])


def codes_by_loops(model: PretrainedEncoder, features: Tensor, num_frames: int) -> list[int]:
    """Return the code of each encoder frame of one utterance (T, F)."""
    projection, codebook = model.quantizer.projection.numpy(), model.quantizer.codebook.numpy()
    stride, codes = model.encoder.stride, []
    for frame in range(num_frames):
        vector = np.zeros(stride * features.shape[1])
        part = features[frame * stride : (frame + 1) * stride].flatten().numpy()
        vector[: len(part)] = part
        projected = vector @ projection
        projected /= np.linalg.norm(projected)
        codes.append(min(range(len(codebook)), key=lambda code: float(((codebook[code] - projected) ** 2).sum())))
    return codes


def test_the_codes_of_a_padded_batch_are_those_of_each_utterance_alone() -> None:
    """The nearest code by Euclidean distance between vectors of unit norm; padding, NaN included, changes nothing."""
    task, batch = trainable(), batch_of([61, 40, 17])
    model = task.model
    for row, length in enumerate(batch.num_frames):
        batch.features[row, length:] = math.nan
    codes = model.codes(batch.features, batch.feature_lengths)
    norms = model.quantizer.codebook.norm(dim=1)
    torch.testing.assert_close(norms, torch.ones_like(norms))
    for row, length in enumerate(batch.num_frames):
        frames = int(model.encoder.output_lengths(length))
        assert codes[row, :frames].tolist() == codes_by_loops(model, batch.features[row, :length], frames)


def test_masks_are_unions_of_spans_and_have_the_expected_share() -> None:
    task = trainable(span=5, probability=0.01)
    frames = torch.full((64,), 400)
    frames[0] = 7
    mask = task.mask(frames, 400)
    assert not mask[0, 7:].any()
    begins = 1 - 0.99**task.model.encoder.stride
    share = mask[1:].double().mean()
    assert share == pytest.approx(1 - (1 - begins) ** 5, abs=0.02)
    for row in mask[1:]:
        lengths = [len(run) for run in "".join("x" if each else " " for each in row).split()]
        assert all(length >= 5 for length in lengths[:-1]), "only the end of the utterance cuts a span"


def test_losses_and_gradients_equal_a_plain_reference() -> None:
    """The reference masks, encodes and scores each utterance alone; the noise is the same."""
    task, batch = trainable(probability=0.2), batch_of([61, 40, 33])
    model = task.model.eval()  # in training, the statistics of batch norm are those of the batch
    drawn: list[tuple[Tensor, Tensor]] = []
    log_probs_of = model.log_probs

    def keep(features: Tensor, lengths: Tensor, num_frames: int) -> Tensor:
        drawn.append((features.detach().clone(), lengths))
        return log_probs_of(features, lengths, num_frames)

    model.log_probs = keep  # type: ignore[method-assign]
    torch.manual_seed(3)
    losses = task.losses(batch)
    (losses.loss.sum() / losses.units.sum()).backward()
    gradient = model.output.weight.grad.clone()  # type: ignore[union-attr]
    model.zero_grad()
    [(masked, _)] = drawn
    torch.manual_seed(3)
    frames = model.encoder.output_lengths(batch.feature_lengths)
    mask = task.mask(frames, int(model.encoder.output_lengths(61)))
    total, units = torch.zeros((), dtype=torch.float64), 0
    for row, length in enumerate(batch.num_frames):
        is_masked = [index for index in range(int(frames[row])) if mask[row, index]]
        changed = (masked[row, :length] != batch.features[row, :length]).all(dim=1)
        stride = model.encoder.stride
        assert [index for index in range(length) if changed[index]] == [
            index for index in range(length) if index // stride in is_masked
        ]
        codes = codes_by_loops(model, batch.features[row, :length], int(frames[row]))
        out = model.encoder(masked[row : row + 1, :length], batch.feature_lengths[row : row + 1]).out[0]
        log_probs = torch.log_softmax(model.output(out), dim=-1)
        loss = -sum((log_probs[index, codes[index]] for index in is_masked), torch.zeros(()))
        correct = sum(int(log_probs[index].argmax()) == codes[index] for index in is_masked)
        torch.testing.assert_close(losses.loss[row], loss, rtol=1e-10, atol=1e-10)
        assert (int(losses.units[row]), int(losses.by_name["accuracy"][row])) == (len(is_masked), correct)
        total, units = total + loss, units + len(is_masked)
    (total / units).backward()
    torch.testing.assert_close(model.output.weight.grad, gradient, rtol=1e-9, atol=1e-10)


def test_the_loss_of_an_empty_batch_uses_every_trained_weight() -> None:
    task = trainable()
    task.model.float()
    task.idle().sum().backward()
    gradients = [weight.grad for weight in task.model.parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


def test_a_validation_has_the_same_masks_each_time_and_knows_the_frequencies_of_the_codes() -> None:
    task, alone = (
        trainable(probability=0.2),
        SimpleNamespace(
            is_first=True, device=torch.device("cpu"), add_up=lambda values: values, gather=lambda own: own
        ),
    )
    task.model.eval()
    batches = [batch_of([61, 40]), batch_of([33])]

    def validate() -> dict[str, float]:
        validation: Any = task.validation(0, 0)
        for batch in batches:
            validation.add(batch)
        return dict(validation.metrics(alone))

    first = validate()
    torch.manual_seed(99)
    assert validate() == first
    counts = np.zeros(16)
    for batch in batches:
        for row, length in enumerate(batch.num_frames):
            frames = int(task.model.encoder.output_lengths(length))
            for code in codes_by_loops(task.model, batch.features[row, :length], frames):
                counts[code] += 1
    shares = counts[counts > 0] / counts.sum()
    assert first["code_entropy"] == pytest.approx(-(shares * np.log(shares)).sum())
    assert first["codes_used"] == np.count_nonzero(counts) / 16
    assert first["masked_perplexity"] == pytest.approx(math.exp(first["loss"]))


@pytest.fixture(scope="module")
def untranscribed(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus of tones without texts."""
    folder = tmp_path_factory.mktemp("untranscribed")
    for split in ("train", "valid", "test"):
        lines = [json.loads(line) for line in (tones / f"{split}.jsonl").read_text().splitlines()]
        for line in lines:
            del line["text"]
            line["audio_filepath"] = str(tones / line["audio_filepath"])
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def config(run_dir: Path, corpus: Path, *overrides: str) -> dict[str, Any]:
    return resolved(*PRETRAINING, *tone_corpus(corpus), f"run_dir={run_dir}", *overrides)


def run(run_dir: Path, settings: dict[str, Any], world_size: int = 1) -> None:
    log = run_dir.with_suffix(".log")
    assert finish(start(settings, log, world_size=world_size)) == 0, log.read_text()


@pytest.fixture(scope="module")
def pretrained(untranscribed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("pretrained") / "run"
    run(run_dir, config(run_dir, untranscribed, "trainer.max_epochs=3"))
    return run_dir


def test_a_pretraining_needs_no_texts_and_logs_what_shows_a_collapse(pretrained: Path) -> None:
    rows = metrics(pretrained)
    logged = {name for row in rows for name, value in row.items() if value}
    assert {"train/loss", "train/accuracy", "valid/masked_perplexity"} <= logged
    assert {"valid/code_entropy", "valid/codes_used", "valid/accuracy"} <= logged
    losses = [float(row["train/loss"]) for row in rows if row["train/loss"]]
    assert losses[-1] < losses[0]
    history = read_history(pretrained / EVENTS)
    assert history.first is not None
    assert history.first.train["utterances"] == 48
    assert history.is_bundled
    assert write_report([str(pretrained)]) in (0, None)
    assert "masked_perplexity" in next((pretrained / "checkpoints").glob("*=*.ckpt")).name


def test_a_bundle_has_features_and_encoder_and_no_recogniser(pretrained: Path) -> None:
    stored = json.loads((pretrained / "bundle" / "config.json").read_text())
    assert {"features", "encoder"} == stored.keys() - {"format"}
    with refused(InputError, str(pretrained), cure=f"init.from={pretrained}"):
        load_recognizer(pretrained)


@pytest.mark.parametrize(
    "command",
    [
        ["asr.convert", "--to", "nemo", "-o", "out.nemo"],
        ["asr.convert", "--to", "huggingface", "-o", "out"],
        ["asr.tune", "valid.jsonl"],
        ["asr.finetune", "valid.jsonl", "--output", "out"],
        ["asr.evaluate", "valid.jsonl"],
    ],
    ids=lambda command: " ".join(command[:3]),
)
def test_commands_that_need_a_recogniser_refuse_an_encoder(
    command: list[str], pretrained: Path, tones: Path, tmp_path: Path
) -> None:
    module, *arguments = [str(tones / word) if word.endswith(".jsonl") else word for word in command]
    ended = run_module(module, str(pretrained), *arguments, cwd=tmp_path)
    assert ended.returncode == 1
    assert re.fullmatch(r"error: .*init\.from=\S+\n", ended.stderr), ended.stderr


def test_the_mean_of_checkpoints_of_an_encoder_is_described_as_one(pretrained: Path, tmp_path: Path) -> None:
    assert average([str(pretrained), "--output-dir", str(tmp_path / "mean")]) == 0
    assert "init.from" in (tmp_path / "mean" / "README.md").read_text()
    assert json.loads((tmp_path / "mean" / "config.json").read_text()).keys() >= {"features", "encoder"}


def test_an_encoder_has_no_adapter(pretrained: Path, tones: Path, tmp_path: Path) -> None:
    given = [*TINY, *tone_corpus(tones), f"init.from={pretrained}", "adapter=lora", f"run_dir={tmp_path / 'run'}"]
    log = tmp_path / "log"
    assert finish(start(resolved(*given), log)) != 0
    assert mentions(log.read_text().splitlines()[-1], f"adapter ... {pretrained}")


def test_an_objective_is_refused_by_the_command_of_others() -> None:
    with refused(InputError, "objective ... asr.train; got language_model", cure="asr.train_lm"):
        compose_settings(["objective=language_model"])
    for name in ("recognition", "best_rq"):
        with refused(InputError, f"objective ... asr.train_lm; got {name}", cure="asr.train"):
            compose_settings([f"objective={name}", "recognizer=absent"], "train_lm")


def trained_in_encoder(weights: dict[str, Tensor]) -> list[str]:
    """Return the names of the encoder's tensors that are not statistics of a norm."""
    return [
        name for name in weights if name.startswith("encoder.") and not {"running", "num"} & {*re.split("[._]", name)}
    ]


def test_a_recogniser_starts_from_the_encoder(pretrained: Path, tones: Path, tmp_path: Path) -> None:
    given = [*TINY, *tone_corpus(tones), "optimizer.lr=0", "trainer.max_steps=1", f"init.from={pretrained}"]
    run(tmp_path / "run", resolved(*given, f"run_dir={tmp_path / 'run'}"))
    before, after = (load_file(each / "bundle" / "weights.safetensors") for each in (pretrained, tmp_path / "run"))
    names = trained_in_encoder(after)
    assert names
    assert all(torch.equal(before[name], after[name]) for name in names)
    assert load_recognizer(tmp_path / "run").model.tokenizer.vocab_size > 2


def test_a_pretraining_starts_from_any_encoder(fluent: Path, untranscribed: Path, tmp_path: Path) -> None:
    given = ["optimizer.lr=0", "trainer.max_steps=1", f"init.from={fluent / 'run'}"]
    run(tmp_path / "run", config(tmp_path / "run", untranscribed, *given))
    before, after = (load_file(each / "bundle" / "weights.safetensors") for each in (fluent / "run", tmp_path / "run"))
    names = trained_in_encoder(before)
    assert all(torch.equal(before[name], after[name]) for name in names)


def test_a_run_killed_at_random_moments_and_resumed_is_bit_identical(untranscribed: Path, tmp_path: Path) -> None:
    often = ["trainer.max_epochs=2", "checkpoint.every_steps=3", "ema.decay=0.9", "augment=[speed_perturb]"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole, config(whole, untranscribed, *often))
    log = tmp_path / "parts.log"
    running = start(config(parts, untranscribed, *often), log)
    assert wait_for(lambda: steps_logged(parts) > 4, running), log.read_text()
    kill(running)
    assert finish(start(config(parts, untranscribed, *often), log)) == 0, log.read_text()
    assert resumptions(parts)
    assert bundle(parts) == bundle(whole)
    assert metrics(parts) == metrics(whole)


def test_two_processes_train_on_the_masked_frames_of_both(untranscribed: Path, tmp_path: Path) -> None:
    """One process takes two batches per step, which are those of two processes; the masks differ, the sizes do not."""
    run(tmp_path / "two", config(tmp_path / "two", untranscribed, "trainer.max_epochs=1", *TWO), world_size=2)
    losses = [float(row["train/loss"]) for row in metrics(tmp_path / "two") if row["train/loss"]]
    assert losses
    assert all(math.isfinite(loss) for loss in losses)
    assert math.isfinite(float(metrics(tmp_path / "two")[-1]["valid/loss"]))


def test_losses_in_bf16_are_close_to_those_in_float32(untranscribed: Path, tmp_path: Path) -> None:
    losses = []
    for name, precision in (("float32", []), ("bf16", ["trainer.precision=bf16-mixed"])):
        run(tmp_path / name, config(tmp_path / name, untranscribed, "trainer.max_steps=8", *precision))
        losses.append([float(row["train/loss"]) for row in metrics(tmp_path / name) if row["train/loss"]])
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("features/normalize=none", "features ... features/normalize=none"),
        ("augment=[spec_augment]", "augment ... spec_augment"),
        ("objective.codebook_size=1", "objective.codebook_size"),
    ],
)
def test_settings_that_do_not_suit_are_refused(override: str, named: str, untranscribed: Path, tmp_path: Path) -> None:
    with refused(InputError, named):
        read_experiment(config(tmp_path, untranscribed, override), [override])


@pytest.mark.parametrize("override", ["head=ctc", "head.weight=0.5", "tokenizer=sentencepiece", "+decode.beam=3"])
def test_a_section_that_the_objective_does_not_use_is_refused_by_name(override: str) -> None:
    with refused(InputError, f"{re.split('[=.]', override.strip('+'))[0]} ... best_rq"):
        without_unused(resolved("objective=best_rq"), [override])


def test_a_training_without_an_override_leaves_such_sections_out() -> None:
    used = without_unused(resolved("objective=best_rq"), ["encoder=conformer_s"])
    assert not {"head", "decode", "tokenizer", "normalizer"} & used.keys()
    assert {"encoder", "features", "objective"} <= used.keys()


@pytest.mark.slow
@needs_shared
def test_eight_real_utterances_are_learnt_by_heart_under_fresh_masks(tmp_path: Path) -> None:
    """The entropy of the codes of these utterances is 4.5 nats; a fault in masks, codes or lengths stays near it."""
    prepare(
        ["--corpus-dir", str(SHARED), "--output-dir", str(tmp_path / "data"), "--subsets", "train-mini", "dev-mini"]
    )
    corpus = [f"corpus.dir={tmp_path / 'data'}", "corpus.prepare=null", "corpus.train=[train-mini.jsonl]"]
    given = [*corpus, "corpus.valid=[dev-mini.jsonl]", "corpus.test=[]", "objective=best_rq", "debug=overfit"]
    given += ["data.max_seconds=4", "optimizer.lr=2e-3", "trainer.max_steps=100", "num_threads=1"]
    run(tmp_path / "run", resolved(*given, f"run_dir={tmp_path / 'run'}"))
    losses = [float(row["valid/loss"]) for row in metrics(tmp_path / "run") if row["valid/loss"]]
    assert losses[-1] < 1.5
