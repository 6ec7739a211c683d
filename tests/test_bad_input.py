"""Training on bad input ends with one error line, or drops, counts and names utterances; it prints no traceback."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import CompactHydraException

from asr.build import check_components
from asr.errors import InputError
from asr.settings.conf import CONF
from asr.train import train
from asr.training.hydra_command import composition_error
from tests.conftest import TINY, settings_with, tone_corpus
from tests.forked import run_module
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
        ("train", lambda entry: "not json", r"train\.jsonl:1: each line must be one JSON object"),
        (
            "valid",
            lambda entry: {"text": "a"},
            r"valid\.jsonl:1: must have the keys .* missing audio_filepath, duration",
        ),
        ("test", lambda entry: entry | {"duration": -1}, r"test\.jsonl:1: duration must be positive; got -1"),
        ("train", lambda entry: entry | {"audio_filepath": "gone.flac"}, r"gone\.flac: audio file not found"),
        ("test", lambda entry: entry | {"text": "abc xyz"}, r"test: .* 1 of 3 utterances .*: 'x', 'y', 'z' "),
    ],
)
def test_a_bad_manifest_stops_training_before_the_first_step(
    corpus: Path, split: str, entry: Callable[[Entry], Entry | str], message: str
) -> None:
    change(corpus / f"{split}.jsonl", entry)
    with pytest.raises(InputError, match=message):
        run(corpus)


@pytest.mark.parametrize("tokenizer", [[], ["tokenizer=sentencepiece", "tokenizer.vocab_size=20"]])
def test_characters_missing_in_the_training_set_are_reported_together_with_their_utterances(
    corpus: Path, tokenizer: list[str]
) -> None:
    for line, text in ((0, "abc xyz"), (2, "bä x")):
        change(corpus / "valid.jsonl", lambda entry, text=text: entry | {"text": text}, line)  # type: ignore[misc]
    message = "valid: the tokenizer must cover every character; 2 of 3 utterances have characters without a token: "
    message += "'x', 'y', 'z', 'ä' (valid-0, valid-2). Correct the texts, remove the utterances, or add text with "
    message += "these characters to corpus.train."
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
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
    message = (
        r"^at most data\.max_dropped_fraction=0\.1 of the training utterances may be dropped because the text is too "
        r"long for its audio: CTC needs .*; got 2 of 12\. Choose fewer tokens \(tokenizer=sentencepiece\) or more "
        r"frames \(an encoder with a smaller stride\), or raise data\.max_dropped_fraction\.$"
    )
    with pytest.raises(InputError, match=message):
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
        (["corpus.train=[]"], r"corpus.train must be a list of manifests, such as .train.jsonl. or .*; got \[\]\."),
        (["corpus.train=train.jsonl"], "corpus.train must be a list"),
        (["corpus.test=[test.jsonl,./test.jsonl]"], "must have different file names; got test.jsonl"),
        (["corpus.also_test=[test.jsonl]"], "manifests in corpus.test and corpus.also_test must have different"),
        (["corpus.also_test=[none.jsonl]"], r"all manifests must exist; .*none\.jsonl does not"),
        (["corpus.dir=nowhere"], r"corpus tones: nowhere/train\.jsonl must exist"),
        (["corpus.dir=nowhere", "corpus.prepare=os"], "nowhere/train.jsonl must exist; it is made by os"),
        (["encoder.convolution.kernel_size=8"], "encoder.convolution.kernel_size must be odd"),
        (["encoder.num_heads=3"], "encoder.dim must be even and a multiple of encoder.num_heads"),
        (
            ["normalizer=fancy"],
            "normalizer must be one of as_written, basic, .*; got 'fancy'",
        ),
        (["tokenizer=sentencepiece", "tokenizer.vocab_size=5000"], "tokenizer.vocab_size must suit the training text"),
        (["data.batch_seconds=0"], "data.batch_seconds must be a number greater than 0"),
        (["data.batch_seconds=0.1"], "at least one training utterance must remain"),
        (["trainer.max_epochs=-1"], "trainer.max_epochs or trainer.max_steps must be positive"),
        (
            ["checkpoint.select=worst"],
            "checkpoint.select must be one of best, last, average_best, average_last; got 'worst'",
        ),
        (["experiment=finetune"], r"init\.from must be given, because .* Add init\.from=\.\.\. to the command\."),
        (["init.from=nvidia/parakeet"], r"does not exist\. A model on a hub is named hf://nvidia/parakeet\."),
        (["decode.name=prefixes"], "decode.name must be a component; asr/decode/prefixes.py only defines parts"),
        (["+encoder.extra=1"], "encoder .conformer. must set exactly .*unknown: extra"),
        (["encoder.norm=layer_norm"], "encoder.norm must be a mapping with the key `name`; got 'layer_norm'"),
        (["trainer.accelerator=gpu"], "trainer.accelerator=gpu needs a GPU that torch can use; there is none"),
        (["trainer.strategy=fsdp_of_no_one"], "trainer must suit Lightning.* Lightning reports"),
        (["init.frozen=[foo.*]"], r"init.frozen must name weights, such as .*encoder.subsampling.*head.*; got 'foo"),
        (["optimizer.name=sgd"], "optimizer.name must be a file in asr/optimizer .adamw.; got 'sgd'"),
    ],
)
def test_invalid_settings_are_reported_in_one_line(corpus: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(corpus, *overrides)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("encoder=confomer_s", "error: encoder must be one of conformer_l, "),
        ("seed", "error: an override must be KEY=VALUE, in quotes if it has spaces; got 'seed'."),
        ("corpus.dir=nowhere", "error: corpus mini: "),
    ],
)
def test_the_command_exits_with_status_1_and_without_a_traceback(tmp_path: Path, override: str, message: str) -> None:
    ended = run_module("asr.train", override, "corpus.prepare=null", f"run_dir={tmp_path / 'run'}")
    assert ended.returncode == 1
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("encoder=confomer_s", "encoder must be one of conformer_l, .*; got 'confomer_s'. Did you mean conformer_s?"),
        ("augment=[nois]", "augment must be one of codec, .*; got 'nois'. Did you mean noise?"),
        ("corpus=absent", "corpus must be one of common_voice, .*; got 'absent'."),
        ("encoder.num_layer=3", "encoder.num_layer must be a setting; encoder has activation, .* mean num_layers?"),
        ("data.batch=3", "data.batch must be a setting; data has batch_seconds, .*. Did you mean batch_seconds?"),
        ("lr=3", "lr must be a setting; .* Did you mean optimizer.lr?"),
        ("optimiser.lr=3", "optimiser must be a setting; .* Did you mean optimizer?"),
        ("trainer.gpus=3", "trainer.gpus must be a setting; .* Did you mean trainer.devices?"),
        ("head=rnnt", "head must be one of ctc, .*; got 'rnnt'. Did you mean transducer?"),
        ("a=[é", """got 'a=[é'. Give 'a="[é"'."""),
        ("foo=3", "foo must be a setting; the config has augment, .*trainer."),
        (
            "trainer.max_epoch=3",
            "trainer has .* mean max_epochs? +trainer.max_epoch=VALUE passes max_epoch to Lightning's Trainer.",
        ),
        (
            "head/predictor=lstm",
            "head/predictor must be a part of the chosen head. Choose one that has it: head=tdt, head=transducer.",
        ),
        ("1 2", "an override must be KEY=VALUE, in quotes if it has spaces; got '1 2'."),
    ],
)
def test_an_override_that_cannot_be_composed_is_reported_in_one_line(override: str, message: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"), pytest.raises(CompactHydraException) as raised:
        compose("train", [override])
    line = composition_error(raised.value)
    assert "\n" not in line
    for part in message.split(".*"):
        assert part in line
