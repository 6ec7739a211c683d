"""Training on bad input ends with one error line, or drops, counts and names utterances; it prints no traceback."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose
from hydra.errors import CompactHydraException

from asr.core.build import check_components
from asr.core.training.hydra_command import composition_error, initialized_hydra
from asr.errors import InputError
from asr.train import train
from tests.conftest import TINY, settings_with, tone_corpus
from tests.forked import run_module
from tests.refusals import mentions, refused
from tests.tones import sentences, write_corpus

Entry = dict[str, Any]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    texts = {"train": sentences(12, seed=1), "valid": sentences(3, seed=2), "test": sentences(3, seed=3)}
    write_corpus(tmp_path / "corpus", texts)
    return tmp_path / "corpus"


def change(manifest: Path, entry: Callable[[Entry], Entry | str], line: int = 0) -> None:
    lines = manifest.read_text().splitlines()
    changed = entry(json.loads(lines[line]))
    lines[line] = changed if isinstance(changed, str) else json.dumps(changed)
    manifest.write_text("\n".join(lines) + "\n")


def run(corpus: Path, *overrides: str) -> None:
    run_dir = corpus.parent / "run"
    settings = settings_with(*TINY, *tone_corpus(corpus), f"run_dir={run_dir}", "trainer.max_epochs=1", *overrides)
    check_components(settings.components)
    train(settings)


@pytest.mark.parametrize(
    ("split", "entry", "message"),
    [
        ("train", lambda entry: "not json", "train.jsonl:1 ... line ... JSON"),
        (
            "valid",
            lambda entry: {"text": "a"},
            "valid.jsonl:1 ... audio_filepath",
        ),
        ("test", lambda entry: entry | {"duration": -1}, "test.jsonl:1 ... duration; got -1"),
        ("train", lambda entry: entry | {"audio_filepath": "gone.flac"}, "gone.flac ... audio file"),
        ("test", lambda entry: entry | {"text": "abc xyz"}, "test ... 1 of 3 utterances ... 'x', 'y', 'z'"),
    ],
)
def test_a_bad_manifest_stops_training_before_the_first_step(
    corpus: Path, split: str, entry: Callable[[Entry], Entry | str], message: str
) -> None:
    change(corpus / f"{split}.jsonl", entry)
    with refused(InputError, message):
        run(corpus)


@pytest.mark.parametrize("tokenizer", [[], ["tokenizer=sentencepiece", "tokenizer.vocab_size=20"]])
def test_characters_missing_in_the_training_set_are_reported_together_with_their_utterances(
    corpus: Path, tokenizer: list[str]
) -> None:
    for line, text in ((0, "abc xyz"), (2, "bä x")):
        change(corpus / "valid.jsonl", lambda entry, text=text: entry | {"text": text}, line)  # type: ignore[misc]
    named = "tokenizer ... 2 of 3 utterances ... 'x', 'y', 'z', 'ä' (valid-0, valid-2)"
    with refused(InputError, named, cure="corpus.train"):
        run(corpus, *tokenizer)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (lambda entry: entry | {"text": " ?! "}, "text is empty once normalised"),
        (lambda entry: entry | {"text": "abcdef" * 40}, "text is too long for its audio"),
        (lambda entry: entry | {"duration": 31.0}, "longer than 10 s"),
        (lambda entry: entry | {"duration": 0.01}, r"shorter than data\.min_seconds=0\.1"),
    ],
)
def test_utterances_that_cannot_be_trained_on_are_dropped_counted_and_named(
    corpus: Path, entry: Callable[[Entry], Entry], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    change(corpus / "train.jsonl", entry)
    with caplog.at_level(logging.WARNING):
        run(corpus)
    dropped = [record.message for record in caplog.records if "dropped" in record.message]
    assert len(dropped) == 1
    assert dropped[0].startswith("dropped 1 of 12 training utterances")
    assert re.search(message, dropped[0])
    assert "train-0" in dropped[0]


def test_a_model_with_too_few_frames_for_most_texts_is_refused(corpus: Path) -> None:
    """This encoder subsamples by 8, and this tokenizer has one token per character."""
    for number in (0, 1):
        change(corpus / "train.jsonl", lambda entry: entry | {"text": "abcdef" * 40}, number)
    message = "data.max_dropped_fraction=0.1 ... CTC ... 2 of 12 ... tokenizer=sentencepiece"
    with refused(InputError, message):
        run(corpus)
    run(corpus, "data.max_dropped_fraction=0.17")


def test_a_file_damaged_after_the_check_is_skipped_and_named(corpus: Path, caplog: pytest.LogCaptureFixture) -> None:
    (corpus / "audio" / "train-3.flac").write_bytes(b"fLaC and then nothing")
    run(corpus, "data.max_bad_fraction=0.1")
    skipped = [record.message for record in caplog.records if "skipped" in record.message]
    assert len(skipped) == 1
    assert "train-3.flac" in skipped[0]
    assert json.loads((corpus.parent / "run" / "results.json").read_text())["test"]["utterances"] == 3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["corpus.train=[]"], "corpus.train; got []"),
        (["corpus.train=train.jsonl"], "corpus.train ... be a list"),
        (["corpus.test=[test.jsonl,./test.jsonl]"], "different file; got test.jsonl"),
        (["corpus.also_test=[test.jsonl]"], "corpus.test ... corpus.also_test"),
        (["corpus.also_test=[none.jsonl]"], "manifests ... none.jsonl"),
        (["corpus.dir=nowhere"], "corpus tones ... nowhere/train.jsonl"),
        (["corpus.dir=nowhere", "corpus.prepare=os"], "nowhere/train.jsonl ... it is made"),
        (["encoder.block.convolution.kernel_size=8"], "encoder.block.convolution.kernel_size"),
        (["encoder.block.num_heads=3"], "encoder.dim ... encoder.block.num_heads"),
        (
            ["normalizer=fancy"],
            "normalizer; got 'fancy'",
        ),
        (["tokenizer=sentencepiece", "tokenizer.vocab_size=5000"], "tokenizer.vocab_size ... training text"),
        (["data.batch_seconds=0"], "data.batch_seconds ... number greater"),
        (["data.batch_seconds=0.1"], "training utterance"),
        (["trainer.max_epochs=-1"], "trainer.max_epochs ... trainer.max_steps"),
        (
            ["checkpoint.select=worst"],
            "checkpoint.select; got 'worst'",
        ),
        (["experiment=finetune"], "init.from ... init.from="),
        (["init.from=nvidia/parakeet"], "not exist ... hf://nvidia/parakeet"),
        (["decode.name=prefixes"], "decode.name ... asr/components/decode/prefixes.py"),
        (["+encoder.extra=1"], "must set exactly ... extra"),
        (["encoder.block.norm=layer_norm"], "encoder.block.norm; got 'layer_norm'"),
        (["trainer.accelerator=gpu"], "trainer.accelerator=gpu ... GPU"),
        (["trainer.strategy=fsdp_of_no_one"], "trainer ... Lightning reports"),
        (["init.frozen=[foo.*]"], "init.frozen; got foo"),
        (["optimizer.name=sgd"], "optimizer.name; got 'sgd'"),
    ],
)
def test_invalid_settings_are_reported_in_one_line(corpus: Path, overrides: list[str], message: str) -> None:
    with refused(InputError, message):
        run(corpus, *overrides)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("encoder=confomer_s", "encoder ... conformer_l"),
        ("seed", "override; got 'seed'"),
        ("corpus.dir=nowhere", "corpus mini"),
    ],
)
def test_the_command_exits_with_status_1_and_without_a_traceback(tmp_path: Path, override: str, message: str) -> None:
    ended = run_module("asr.train", override, "corpus.prepare=null", f"run_dir={tmp_path / 'run'}")
    assert ended.returncode == 1
    assert mentions(ended.stderr, message)
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("encoder=confomer_s", "encoder ... 'confomer_s' ... conformer_s?"),
        ("augment=[nois]", "augment; got 'nois'"),
        ("corpus=absent", "corpus; got 'absent'"),
        ("encoder.num_layer=3", "encoder.num_layer ... num_layers?"),
        ("encoder.num_heads=3", "encoder.num_heads ... encoder.block.num_heads?"),
        ("encoder.norm.eps=1", "encoder.norm ... encoder.block.norm?"),
        ("encoder/attention=rotary_attention", "encoder/attention ... encoder/block/attention?"),
        ("data.batch=3", "data.batch ... batch_seconds ... batch_seconds?"),
        ("lr=3", "lr ... optimizer.lr?"),
        ("optimiser.lr=3", "optimiser ... mean optimizer"),
        ("trainer.gpus=3", "trainer.gpus ... trainer.devices?"),
        ("head=rnnt", "head; got 'rnnt'"),
        ("a=[é", "KEY=VALUE; got 'a=[é' ... 'a=\"[é\"'"),
        ("foo=3", "foo ... config has augment"),
        (
            "trainer.max_epoch=3",
            "trainer ... max_epochs?",
        ),
        (
            "head/predictor=lstm",
            "head/predictor ... head=tdt",
        ),
        ("1 2", "override; got '1 2'"),
    ],
)
def test_an_override_that_cannot_be_composed_is_reported_in_one_line(override: str, message: str) -> None:
    with initialized_hydra(), pytest.raises(CompactHydraException) as raised:
        compose("train", [override])
    line = composition_error(raised.value)
    assert "\n" not in line
    assert mentions(line, message)
