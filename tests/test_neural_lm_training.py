"""Training of neural language models: texts, batches, sums over ranks, resumption and reports."""

import gzip
import json
import math
import random
import re
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from asr import ngram, training_report
from asr import perplexity as asr_perplexity
from asr.apps.language_models.objective.language_model import TextData
from asr.apps.language_models.perplexity_table import perplexity
from asr.apps.language_models.text_perplexity import measure, text_perplexity
from asr.apps.language_models.text_set import Sentences, TextSet, TextSettings, read_sentences
from asr.base.language_model.kenlm import NgramModel
from asr.base.text.normalize import get_normalizer
from asr.core import build
from asr.core.build import build_tokenizer, load_token_model
from asr.core.checkpoint.bundle import read_bundle
from asr.core.checkpoint.saved import checkpoint_name, kept_checkpoints
from asr.core.data.manifest import Utterance, write_manifest
from asr.core.data.position import Position, Share, start_of_epoch
from asr.core.data.training_set import RunBounds
from asr.core.run.events import read_history
from asr.core.run.names import EVENTS
from asr.core.training.hydra_command import read_experiment
from asr.errors import InputError
from asr.interfaces import BOUNDARY_ID
from tests.conftest import ROOT, resolved
from tests.processes import bundle, finish, kill, metrics, resumptions, start, steps_logged, wait_for
from tests.refusals import mentions, refused
from tests.tones import sentences

RECOGNIZER = ROOT / "tests" / "bundles" / "format-11"  # its tokens are a to f and the space
SMALL = {
    "lstm": ["token_model=lstm", "token_model.embedding_dim=12", "token_model.dim=16"],
    "transformer_xl": ["token_model=transformer_xl", "token_model.dim=16", "token_model.num_layers=2"],
}
TWO = ["trainer.strategy=ddp", "trainer.devices=2"]
# Half of RUN's batch size: two processes take as many steps as one does with RUN, and a kill can occur in an epoch.
AS_MANY_STEPS = ["text.batch_tokens=45"]
BF16 = ["trainer.precision=bf16-mixed"]
EVERY_STEPS = 3
RUN = [
    f"recognizer={RECOGNIZER}",
    *("text.batch_tokens=90", "trainer.max_epochs=4", "trainer.accelerator=cpu", "trainer.log_every_n_steps=1"),
    *("trainer.accumulate_grad_batches=2", "schedule.warmup_steps=4", "ema.decay=0.9", "early_stopping.patience=8"),
    *(f"checkpoint.every_steps={EVERY_STEPS}", "checkpoint.select=average_last"),
]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides that name texts for training, validation and testing."""
    folder = tmp_path_factory.mktemp("texts")
    for name, count, seed in (("train", 160, 1), ("valid", 20, 2), ("test", 20, 3)):
        (folder / f"{name}.txt").write_text("\n".join(sentences(count, seed)) + "\n")
    return [f"text.{name}=[{folder / name}.txt]" for name in ("train", "valid", "test")]


def config(run_dir: Path, *overrides: str) -> dict[str, Any]:
    return resolved(*RUN, f"run_dir={run_dir}", *overrides, root="train_lm")


def tokenizer() -> Any:
    recognizer = read_bundle(RECOGNIZER)
    made = build_tokenizer(recognizer.config)
    made.load(recognizer.files)
    return made


def read(*paths: Path) -> Sentences:
    return read_sentences(paths, get_normalizer("as_written"), tokenizer(), "text.train")


def settings(**changes: Any) -> TextSettings:
    return TextSettings(["a"], ["a"], [], **({"batch_tokens": 40, "max_sentences": 8, "jitter": 2.0} | changes))


# Reading texts


def test_texts_are_lines_of_plain_or_compressed_files_or_of_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("abc de\n\nfa\n")
    with gzip.open(tmp_path / "small.gz", "wt") as file:
        file.write("bad\n")
    write_manifest(tmp_path / "manifest.jsonl", [Utterance(str(tmp_path / "x.wav"), 1.0, "cafe bed", "x")])
    actual = read(tmp_path / "plain.txt", tmp_path / "small.gz", tmp_path / "manifest.jsonl")
    spelled = [tokenizer().decode(actual.batch([index]).tokens[0].tolist()) for index in range(len(actual))]
    assert spelled == ["abc de", "fa", "bad", "cafe bed"]
    assert actual.num_words.tolist() == [2, 1, 1, 2]
    assert actual.lengths.tolist() == [7, 3, 4, 9], "the end is a token"
    assert actual.empty == 1


def test_a_line_that_cannot_be_spelled_is_dropped_counted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "text.txt").write_text("abc\nxyz\nfed\n")
    assert len(read(tmp_path / "text.txt")) == 2
    reason = "1 of 3 lines are left out, because the tokenizer cannot encode them"
    assert caplog.messages == [f"text.train: {reason} ({tmp_path / 'text.txt'}:2)"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"xyz\n", "text.train; got 0 empty lines"),
        (b"abc\n\xff\xfe\n", "text.txt:2; got byte 0xff"),
        (None, "text.txt ... readable file"),
    ],
)
def test_an_invalid_text_file_is_reported_in_one_line(content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "text.txt").write_bytes(content)
    with refused(InputError, message):
        read(tmp_path / "text.txt")


# Planning batches


@pytest.fixture
def text_set(tmp_path: Path) -> TextSet:
    (tmp_path / "text.txt").write_text("\n".join(sentences(101, 5, (1, 9))))
    return TextSet(read(tmp_path / "text.txt"), settings(), seed=3)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_an_epoch_contains_each_sentence_once_in_batches_within_the_limits(text_set: TextSet, world_size: int) -> None:
    lengths, seen = text_set.sentences.lengths, []
    for epoch in (0, 1):
        plan = text_set.epoch(start_of_epoch(epoch, world_size))
        batches = [
            [item.row for item in plan.items(step, rank)] for step in range(len(plan)) for rank in range(world_size)
        ]
        assert sorted(index for batch in batches for index in batch) == list(range(len(text_set)))
        assert all(batch and len(batch) <= 8 for batch in batches)
        assert all(len(batch) * int(lengths[batch].max()) <= 40 for batch in batches)
        again = text_set.epoch(start_of_epoch(epoch, world_size))
        assert torch.equal(plan.plan.order, again.plan.order)
        seen.append(plan.plan.order.tolist())
    assert seen[0] != seen[1]


def test_the_rest_of_an_epoch_is_planned_for_another_number_of_processes(text_set: TextSet) -> None:
    first = text_set.epoch(start_of_epoch(2, 2))
    done = {item.row for step in range(3) for rank in (0, 1) for item in first.items(step, rank)}
    rest = text_set.epoch(Position(2, (Share(2, 3), Share(3, 0))))
    assert sorted([*done, *rest.plan.order.tolist()]) == list(range(len(text_set)))
    data = TextData(text_set, text_set.sentences, settings().bounds, Position(2, (Share(2, 3), Share(3, 0))))
    assert data.total_steps(10, RunBounds(3, -1, 1)) == 10 + len(rest)


def test_a_sentence_that_fits_no_batch_is_dropped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abc def abc\nab\ncd\n")
    dropped = TextSet(read(tmp_path / "text.txt"), settings(batch_tokens=11), seed=0)
    assert (len(dropped), dropped.num_dropped) == (2, 1)
    with refused(InputError, "text.batch_tokens", got=2):
        TextSet(read(tmp_path / "text.txt"), settings(batch_tokens=2), seed=0)


# Perplexity


def test_perplexity_is_per_word_and_sentence_end_and_lies_within_its_interval() -> None:
    log_probs, words = [-3.0, -8.5, -2.0, -6.0, -7.5, -1.0], [2, 4, 1, 3, 5, 1]
    result = text_perplexity(log_probs, words, 40)
    assert result.per_word == pytest.approx(math.exp(28 / (16 + 6)))
    assert result.interval is not None
    assert result.interval[0] < result.per_word < result.interval[1]
    draws = random.Random(0)
    resampled = []
    for _ in range(4000):
        drawn = draws.choices(list(zip(log_probs, words, strict=True)), k=6)
        resampled.append(math.exp(-sum(p for p, _ in drawn) / sum(n + 1 for _, n in drawn)))
    resampled.sort()
    assert result.interval == pytest.approx((resampled[100], resampled[3900]), rel=0.02)
    assert text_perplexity(log_probs[:4], words[:4], 40).interval is None, "four sentences are too few for an interval"


def test_the_perplexity_of_long_texts_without_spaces_is_bounded_and_written_with_an_exponent() -> None:
    for loss, expected in ((690.0, "at least 5.5e+34"), (1e4, "at least 5.5e+34"), (70.0, "2.5e+30"), (2.0, "7.4")):
        result = text_perplexity([-2 * loss] * 6, [1] * 6, 1800)  # a sentence has its word and its end
        assert f"perplexity per word {expected} (95 % interval {expected} to {expected})" in result.summary()
        assert math.isfinite(float(np.float32(result.per_word))), "Lightning stores metrics as float32"
        log_10 = np.full(9, -loss / math.log(10))
        assert perplexity(log_10, np.arange(9)).value == pytest.approx(result.per_word, rel=1e-6)
    worse, better = (text_perplexity([-loss], [0], 1).per_word for loss in (690.5, 690.0))
    assert worse > better, "the better checkpoint can be selected"


def test_a_checkpoint_with_a_huge_perplexity_has_a_short_name_that_is_read_again(tmp_path: Path) -> None:
    (tmp_path / checkpoint_name(7, 5.54e34, "perplexity")).touch()
    [checkpoint] = kept_checkpoints(tmp_path)
    assert checkpoint.score == 5.54e34
    assert len(checkpoint.path.name) < 40


def test_perplexity_does_not_depend_on_the_batches(text_set: TextSet) -> None:
    model: Any = build.build_token_model(resolved(*SMALL["transformer_xl"], root="train_lm")["token_model"], 8)
    model.eval()
    device = torch.device("cpu")
    alone, together = (
        measure(model, text_set.sentences, settings(batch_tokens=size, max_sentences=99).bounds, device)
        for size in (1, 2000)
    )
    assert alone.per_word == pytest.approx(together.per_word, rel=1e-6)
    by_hand = 0.0
    for index in range(len(text_set)):
        tokens = text_set.sentences.batch([index]).tokens
        begun = nn.functional.pad(tokens, (1, 0), value=BOUNDARY_ID)
        with torch.no_grad():
            log_probs, _ = model(begun, model.initial_state(1))
        targets = [*tokens[0].tolist(), BOUNDARY_ID]
        by_hand += sum(float(log_probs[0, place, token]) for place, token in enumerate(targets))
    assert alone.log_prob == pytest.approx(by_hand, rel=1e-5)


# Training


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "overrides", "world_size"),
    [
        ("lstm", [], 1),
        pytest.param("transformer_xl", [], 1, marks=pytest.mark.slow),
        pytest.param("lstm", [*TWO, *AS_MANY_STEPS], 2, marks=pytest.mark.slow),
        pytest.param("transformer_xl", [*TWO, *AS_MANY_STEPS], 2, marks=pytest.mark.slow),
        pytest.param("lstm", BF16, 1, marks=pytest.mark.slow),
        pytest.param("transformer_xl", [*TWO, *AS_MANY_STEPS, *BF16], 2, marks=pytest.mark.slow),
    ],
    ids=["lstm", "transformer_xl", "lstm-two", "transformer_xl-two", "lstm-bf16", "transformer_xl-two-bf16"],
)
def test_a_run_killed_at_random_moments_ends_bit_identical_to_an_undisturbed_one(
    name: str, overrides: list[str], world_size: int, texts: list[str], tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"

    def begin(run_dir: Path) -> list[BaseProcess]:
        log = run_dir.with_suffix(".log")
        return start(config(run_dir, *SMALL[name], *texts, *overrides), log, world_size=world_size)

    assert finish(begin(whole)) == 0, (tmp_path / "whole.log").read_text()
    moments = random.Random(name)
    for _ in range(3):
        done = steps_logged(parts) + moments.randint(2, 6)
        running = begin(parts)
        assert wait_for(lambda done=done: steps_logged(parts) > done, running), (tmp_path / "parts.log").read_text()
        time.sleep(moments.uniform(0, 0.05))
        kill(running)
    assert finish(begin(parts)) == 0, (tmp_path / "parts.log").read_text()
    assert bundle(parts) == bundle(whole)
    assert metrics(parts) == metrics(whole)
    assert (parts / "results.json").read_text() == (whole / "results.json").read_text()
    assert any(batch > 1 for _, batch in resumptions(parts)), "one restart must be within an epoch"
    history = read_history(parts / EVENTS)
    assert history.first is not None
    assert history.latest is not None
    assert (history.starts, history.first.step) == (4, 0), "each start logs one line for all its processes"
    assert [step for step, _ in resumptions(parts)][-1] == history.latest.step
    assert (history.latest.train["sentences"], history.latest.valid["sentences"]) == (160, 20)


@pytest.mark.parametrize(
    "name", [name if name == "lstm" else pytest.param(name, marks=pytest.mark.slow) for name in SMALL]
)
def test_losses_in_bf16_are_close_to_those_in_float32_and_the_bundle_is_used_in_float32(
    name: str, texts: list[str], tmp_path: Path
) -> None:
    for run_dir, precision in ((tmp_path / "float32", []), (tmp_path / "bf16", BF16)):
        log = tmp_path / "log"
        assert finish(start(config(run_dir, *SMALL[name], *texts, *precision), log)) == 0, log.read_text()
    losses = [
        [float(row["valid/loss"]) for row in metrics(tmp_path / run) if row["valid/loss"]]
        for run in ("float32", "bf16")
    ]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)  # bf16 has three digits
    assert losses[1] != losses[0], "the second run must not have computed in float32"
    model: Any = load_token_model(str(tmp_path / "bf16"), tokenizer(), "lm")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    results = json.loads((tmp_path / "bf16" / "results.json").read_text())
    valid = Path(texts[1].partition("[")[2].rstrip("]"))
    again = measure(model, read(valid), settings().bounds, torch.device("cpu"))
    assert again.per_word == pytest.approx(results["valid"]["per_word"], rel=1e-6)


@pytest.fixture(scope="module")
def trained(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on two processes."""
    folder = tmp_path_factory.mktemp("trained")
    log = folder / "log"
    assert (
        finish(start(config(folder / "run", *SMALL["lstm"], *texts, *TWO, "ema.decay=null"), log, world_size=2)) == 0
    ), log.read_text()
    return folder / "run"


def test_two_processes_average_the_first_loss_over_the_tokens_of_all_batches(trained: Path, texts: list[str]) -> None:
    """The expected loss is the sum over ranks and accumulated batches, divided by the number of tokens."""
    settings = read_experiment(yaml.safe_load((trained / "config.yaml").read_text()), [])
    train = read_sentences(map(Path, settings.text.train), get_normalizer("as_written"), tokenizer(), "text.train")
    plan = TextSet(train, settings.text, settings.seed).epoch(start_of_epoch(0, 2))
    torch.manual_seed(settings.seed)
    model: Any = build.build_token_model(settings.components["token_model"], 8)
    model.eval()  # without dropout, so that the losses of the first step can be compared
    losses, tokens = 0.0, 0
    for step in (0, 1):
        for rank in (0, 1):
            batch = train.batch([item.row for item in plan.items(step, rank)])
            begun = nn.functional.pad(batch.tokens, (1, 0), value=BOUNDARY_ID)
            with torch.no_grad():
                log_probs, _ = model(begun, model.initial_state(len(batch)))
            for row, length in enumerate(batch.token_lengths.tolist()):
                targets = [*batch.tokens[row, :length].tolist(), BOUNDARY_ID]
                losses -= sum(float(log_probs[row, place, token]) for place, token in enumerate(targets))
                tokens += length + 1
    logged = float(metrics(trained)[0]["train/loss"])
    assert logged == pytest.approx(losses / tokens, rel=0.1), "losses differ only by dropout"


def test_a_run_writes_a_bundle_and_the_perplexity_of_each_text_with_its_interval(trained: Path) -> None:
    names = ["README.md", "characters.json", "config.json", "weights.safetensors"]
    assert sorted(path.name for path in (trained / "bundle").iterdir()) == names
    stored = json.loads((trained / "bundle" / "config.json").read_text())
    assert stored.keys() == {"format", "normalizer", "tokenizer", "token_model"}
    results = json.loads((trained / "results.json").read_text())
    assert results.keys() == {"valid", "test"}
    for result in results.values():
        assert result["interval"][0] < result["per_word"] < result["interval"][1]
    rows = [row for row in metrics(trained) if row["valid/perplexity"]]
    assert len(rows) == 4, "there is one line per epoch, over both ranks"
    assert float(rows[0]["valid/perplexity"]) > float(rows[-1]["valid/perplexity"]), "the perplexity falls"
    model = load_token_model(str(trained), tokenizer(), "lm")
    valid = Path(yaml.safe_load((trained / "config.yaml").read_text())["text"]["valid"][0])
    again = measure(model, read(valid), settings().bounds, torch.device("cpu"))
    assert again.per_word == pytest.approx(results["valid"]["per_word"], rel=1e-6)


def test_the_page_of_a_run_shows_perplexity_and_no_audio(trained: Path, tmp_path: Path) -> None:
    results = json.loads((trained / "results.json").read_text())
    html = (trained / "report.html").read_text()
    for name, result in results.items():
        assert f"Perplexity per word, {name}" in html
        assert f"{result['per_word']:.1f}".removesuffix(".0") in html
    assert "Perplexity: " in html
    assert "Tokens per second: " in html
    assert "LSTMTokenModel, " in html
    assert "160 sentences, " in html
    assert "does not record how this run started" not in html
    assert "What was recognised" not in html
    shown = re.sub(r"<pre>.*?</pre>", "", html.partition("<main>")[2], flags=re.DOTALL)
    assert not re.search(r"\bWER\b", shown)  # the path of the checkout may contain these letters
    assert training_report.main([str(trained), "--output", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text() == html


def test_a_run_with_another_text_or_other_settings_is_not_resumed(
    trained: Path, texts: list[str], tmp_path: Path
) -> None:
    text = tmp_path / "other.txt"
    text.write_text("abc\n" * 20)
    overrides = [*TWO, "ema.decay=null", "resume.allow=[world_size]"]
    for override, difference in (
        (f"text.train=[{text}]", "manifests.train: '160 sentences, sha256"),
        ("seed=4", "seed: 0 -> 4"),
        ("token_model.dropout=0.1", "token_model.dropout: 0.3 -> 0.1"),
    ):
        log = tmp_path / "log"
        assert finish(start(config(trained, *SMALL["lstm"], *texts, *overrides, override), log)) == 1
        assert f"Changed: {difference}" in log.read_text()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("text.train=[]", "text.train; got []"),
        ("text.batch_tokens=0", "text.batch_tokens; got 0"),
        ("token_model.dim=0", "token_model.dim; got 0"),
        ("recognizer=MUST_BE_GIVEN", "recognizer ... no default"),
        ("+encoder.dim=3", "config ... objective=language_model ... encoder"),
    ],
)
def test_an_invalid_setting_is_named(override: str, message: str) -> None:
    given = ["text.train=[a]", "text.valid=[a]", f"recognizer={RECOGNIZER}", override]
    with refused(InputError, message):
        read_experiment(resolved(*given, root="train_lm"), [])


def test_perplexity_is_computed_in_the_same_way_for_neural_and_n_gram_models(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("kenlm", reason="the extra lm is not installed")
    text = tmp_path / "text.txt"
    text.write_text("\n".join(sentences(30, 9)) + "\n")
    assert ngram.main([str(text), "--tokens", str(RECOGNIZER), "--order", "2", "-o", str(tmp_path / "lm.arpa")]) == 0
    capsys.readouterr()
    for lm in (trained, tmp_path / "lm.arpa"):
        assert asr_perplexity.main([str(RECOGNIZER), str(lm), str(text)]) == 0
    neural, by_ngram = (row.split() for row in capsys.readouterr().out.splitlines()[1::2])
    model = load_token_model(str(trained), tokenizer(), "lm")
    expected = measure(model, read(text), settings().bounds, torch.device("cpu"))
    assert float(neural[4]) == pytest.approx(expected.per_word, abs=0.06)
    ngram_model, total = NgramModel(tmp_path / "lm.arpa"), 0.0
    for line in text.read_text().splitlines():
        state = ngram_model.start()
        for letter in line:
            log_prob, state = ngram_model.score(state, letter.replace(" ", "\N{LOWER ONE EIGHTH BLOCK}"))
            total += log_prob
        total += ngram_model.end(state)
    units = sum(len(line.split()) + 1 for line in text.read_text().splitlines())
    assert float(by_ngram[4]) == pytest.approx(math.exp(-total / units), abs=0.06)


def test_models_are_interpolated_token_by_token_with_weights_fitted_on_another_text(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("kenlm", reason="the extra lm is not installed")
    text, dev, arpa = tmp_path / "text.txt", tmp_path / "dev.txt", tmp_path / "lm.arpa"
    text.write_text("\n".join(sentences(25, 9)) + "\n")
    dev.write_text("\n".join(sentences(25, 10)) + "\n")
    assert ngram.main([str(dev), "--tokens", str(RECOGNIZER), "--order", "2", "-o", str(arpa)]) == 0
    capsys.readouterr()
    several = ["--interpolate", str(arpa), "--dev", str(dev)]
    assert asr_perplexity.main([str(RECOGNIZER), str(trained), str(text), *several]) == 0
    weights_line, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[1] for row in rows] == [str(trained), str(arpa), "interpolated"]
    model, ngram_model = load_token_model(str(trained), tokenizer(), "lm"), NgramModel(arpa)

    def probabilities(path: Path) -> list[tuple[float, float]]:
        """Return the net's and the n-gram model's probability of each letter and each sentence end."""
        pairs = []
        for line in path.read_text().splitlines():
            tokens, state = [*tokenizer().encode(line), BOUNDARY_ID], ngram_model.start()
            with torch.no_grad():
                log_probs, _ = model(torch.tensor([[BOUNDARY_ID, *tokens[:-1]]]), model.initial_state(1))
            for place, token in enumerate(tokens):
                if token == BOUNDARY_ID:
                    log_prob = ngram_model.end(state)
                else:
                    log_prob, state = ngram_model.score(
                        state, tokenizer().pieces[token].replace(" ", "\N{LOWER ONE EIGHTH BLOCK}")
                    )
                pairs.append((math.exp(float(log_probs[0, place, token])), math.exp(log_prob)))
        return pairs

    share, of_dev = 0.5, probabilities(dev)
    for _ in range(2000):
        share = sum(share * p / (share * p + (1 - share) * q) for p, q in of_dev) / len(of_dev)
    assert f"{trained} {share:.3f}, {arpa} {1 - share:.3f}" in weights_line
    total = sum(math.log(share * p + (1 - share) * q) for p, q in probabilities(text))
    units = sum(len(line.split()) + 1 for line in text.read_text().splitlines())
    assert float(rows[2].split()[4]) == pytest.approx(math.exp(-total / units), abs=0.06)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dev", "d.txt"], "--interpolate ... --dev; got --dev alone"),
        (["--interpolate", "b.arpa"], "--interpolate ... --dev; got --interpolate alone"),
        (["--interpolate", "b.arpa", "--dev", "t.txt"], "--dev; got t.txt"),
    ],
)
def test_interpolation_weights_need_a_separate_dev_text(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        asr_perplexity.main([str(RECOGNIZER), "a.arpa", "t.txt", *options])
    assert mentions(capsys.readouterr().err, message)


def test_a_language_model_over_other_tokens_is_refused(trained: Path) -> None:
    other = build_tokenizer({"tokenizer": {"name": "char"}})
    other.fit(["abc"])
    must = "lm ... other tokens"
    with refused(InputError, must):
        load_token_model(str(trained), other, "lm")
