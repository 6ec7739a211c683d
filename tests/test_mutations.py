"""A wrong value of any setting, or in any file of a bundle, is refused in one line or works."""

import contextlib
import itertools
import json
import math
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from omegaconf import OmegaConf

from asr.base.settings.conf import default_settings
from asr.base.settings.plugins import ZOO, homes
from asr.core import build
from asr.core.checkpoint.load import write_bundle
from asr.core.run.settings import read_run_settings
from asr.errors import InputError
from asr.train import train
from tests.conftest import ROOT, TINY, resolved, settings_with, tone_corpus
from tests.fusion import search_config
from tests.mutations import WRONG, changed, leaves, mutations
from tests.refusals import mentions, refused

# Selections of files in conf/. Together they cover all files, except those that only change a size.
CHOICES = [
    ["augment=[speed_perturb,spec_augment]"],
    ["augment=[edges,noise,reverberation,simulated_room,gain,codec]"],
    ["encoder=transformer", "optimizer=adamw"],
    ["encoder=fast_conformer_s", "tokenizer=huggingface"],
    ["encoder/block/attention=local_attention", "encoder/block/norm=layer_norm", "optimizer=muon"],
    ["features/normalize=per_utterance", "optimizer=scaled_adam"],
    ["features/normalize=global_cmvn", "tokenizer=sentencepiece"],
    ["decode=beam", "schedule=noam", "head=ctc", "encoder/block/activation=gelu"],
    ["features=slaney_fbank", "head=ctc_self_conditioned", "head.num_intermediate=1"],
    ["encoder=transformer_xl", "head=ctc_consistency"],
    ["encoder=conformer_streaming_xs"],
    ["encoder=fast_conformer_streaming_s"],
    [
        "encoder/block/attention=rotary_attention",
        "encoder/block/convolution=plain_convolution",
        "encoder/block/norm=switchable_norm",
    ],
    [
        "encoder/block/convolution=dilated_convolution",
        "encoder/block/norm=group_norm",
        "encoder/block/activation=learnt_swish",
    ],
    ["head=ctc_attention", "decode=joint_beam"],
    ["head=ctc_attention", "head/residual=post_norm", "decode=attention_rescoring"],
    ["head=transducer", "decode=transducer_beam"],
    ["head=transducer", "head/predictor=lstm"],
    ["head=transducer", "head/predictor=gru"],
    ["head=transducer", "head/predictor=stateless_conv", "decode=monotonic_beam"],
    ["head=tdt", "head/predictor=lstm"],
    ["head=tdt", "decode=transducer_beam"],
    ["features=mirrored_fbank"],
]
if ZOO in homes():
    CHOICES += [
        ["features/normalize=unit_variance", "encoder/block/attention=shaw_attention"],
        ["encoder=medasr_l"],
        ["encoder=wav2vec2_l"],
        ["encoder=turboctc_l", "encoder/subsampling=strided_conv", "encoder.subsampling.num_channels=4"],
    ]
SMALL = [
    *("encoder.dim=16", "encoder.num_layers=2", "encoder.block.num_heads=2", "encoder.block.feed_forward_factor=1"),
    *("encoder.subsampling.num_channels=4", "trainer.max_epochs=1", "trainer.max_steps=1", "trainer.accelerator=cpu"),
    *("schedule.warmup_steps=1", "data.batch_seconds=30"),
]
UNTOUCHED = ("experiment", "hydra")


def base(choices: list[str]) -> dict[str, Any]:
    """Resolve the config of a small net with these files of conf/."""
    return resolved(*choices, *SMALL, *(["tokenizer.vocab_size=20"] if "tokenizer=" in " ".join(choices) else []))


def changes(config: dict[str, Any]) -> list[tuple[tuple[Any, ...], Any]]:
    """List all changes of one setting to a wrong value, as position and value."""
    return [(path, value) for path, value, _ in mutations(config) if path[0] not in UNTOUCHED]


def settings() -> list[tuple[str, Any, dict[str, Any]]]:
    """List each setting with each wrong value, as name, value and resolved config, without repetitions."""
    cases: dict[tuple[str, str], tuple[str, Any, dict[str, Any]]] = {}
    for config in map(base, CHOICES):
        for path, value in changes(config):
            name = ".".join(map(str, path))
            mutated = changed(config, path, value)
            cases.setdefault((name, f"{value!r} {path[0]} {config[path[0]]}"), (name, value, mutated))
    return list(cases.values())


class Pair(NamedTuple):
    """A config with two settings changed, and the configs with each change alone."""

    both: dict[str, Any]
    alone: tuple[dict[str, Any], dict[str, Any]]


def pairs(number: int, seed: int, change_is_wanted: Callable[[dict[str, Any]], bool]) -> list[Pair]:
    """Draw about `number` pairs of changes; `change_is_wanted` must be true of the config with each change alone."""
    dice = random.Random(seed)
    drawn = []
    for config in map(base, CHOICES):
        possible = [change for change in changes(config) if change_is_wanted(changed(config, *change))]
        for _ in range(math.ceil(number / len(CHOICES))):
            first, second = dice.sample(possible, 2)
            shorter = min(len(first[0]), len(second[0]))
            if first[0][:shorter] != second[0][:shorter]:  # neither setting contains the other
                alone = (changed(config, *first), changed(config, *second))
                drawn.append(Pair(changed(alone[0], *second), alone))
    return drawn


def problem(config: dict[str, Any]) -> str:
    """Return the reason why a config is refused before the run; "" if it is accepted."""
    try:
        build.check_components(read_run_settings(config).components)
    except InputError as error:
        return str(error)
    return ""


def test_every_wrong_setting_is_reported_in_one_line_or_accepted() -> None:
    """Other exceptions, like a TypeError, fail this test with their traceback."""
    problems = [problem(config) for _, _, config in random.Random(0).sample(settings(), 150)]
    assert not [text for text in problems if "\n" in text or len(text) > 2000]
    assert problems.count("") < 50, "most of the values must be refused"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["encoder.num_layers=0"], "encoder.num_layers; got 0"),
        (["encoder.num_layers=1.5"], "encoder.num_layers; got 1.5"),
        (["encoder.num_layers=two"], "encoder.num_layers; got 'two'"),
        (["encoder.block.num_heads=0"], "encoder.block.num_heads; got 0"),
        (["encoder.dim=0"], "encoder.dim; got 0"),
        (
            ["encoder.block.convolution.kernel_size=-1"],
            "encoder.block.convolution.kernel_size; got -1",
        ),
        (["encoder.num_layers=1000", "encoder.dim=65536"], "model ... with its gradients"),
        (["encoder.block.norm.momentum=2"], "encoder.block.norm.momentum; got 2"),
        (
            ["trainer.max_epochs=0"],
            "trainer.max_epochs; got 0",
        ),
        (["trainer.max_steps=0"], "trainer.max_steps; got 0"),
        (
            ["trainer.max_steps=null"],
            "trainer.max_steps; got None",
        ),
        (
            ["trainer.max_epochs=-1"],
            "trainer.max_epochs ... trainer.max_steps; got -1",
        ),
        (
            ["trainer.gradient_clip_val=-1"],
            "trainer.gradient_clip_val ... be a number",
        ),
        (["optimizer.lr=-1"], "optimizer.lr; got -1"),
        (["optimizer.lr=abc"], "optimizer.lr; got 'abc'"),
        (["optimizer.lr=inf"], "optimizer.lr; got inf"),
        (["optimizer.weight_decay=-1"], "optimizer.weight_decay; got -1"),
        (
            ["optimizer.betas=[1,1]"],
            "optimizer.betas; got [1, 1]",
        ),
        (["features.sample_rate=0"], "features.sample_rate; got 0"),
        (
            ["features.frame_length_seconds=0"],
            "features.frame_length_seconds; got 0",
        ),
        (["seed=99999999999999999999"], "seed; got 99999999999999999999"),
        (
            ["tokenizer=sentencepiece", "tokenizer.vocab_size=ten"],
            "tokenizer.vocab_size ... whole number",
        ),
        (
            ["augment.speed_perturb.factors=[0]"],
            "augment.speed_perturb.factors ... of speeds",
        ),
        (
            ["augment.speed_perturb.factors=[]"],
            "augment.speed_perturb.factors ... of speeds",
        ),
        (["augment.speed_perturb.factors=[-1]"], "augment.speed_perturb.factors ... of speeds"),
        (
            ["augment.speed_perturb.factors=[0.99999]"],
            "augment.speed_perturb.factors ... small numbers",
        ),
        (["schedule.warmup_steps=-5"], "schedule.warmup_steps; got -5"),
        (
            [f"run_dir=runs/{'x' * 300}"],
            "run_dir ... of a folder",
        ),
        (["num_threads=100000"], "num_threads; got 100000"),
        (["corpus.train=[]"], "corpus.train ... [train.jsonl]"),
        (
            ["decode=beam", "decode.beam_size=1000000000"],
            "decode.beam_size ... whole number",
        ),
    ],
)
def test_an_invalid_setting_is_refused_with_its_rule(overrides: list[str], message: str) -> None:
    assert mentions(problem(resolved(*overrides)), message)


def refusal(config: dict[str, Any], tones: Path, folder: Path) -> str:
    """Train on the corpus of tones in another working folder; return the reason if the config is refused, otherwise "".

    An absent corpus is never generated, because the default recipe takes minutes.
    """
    default, corpus, augment = resolved(), config["corpus"], config["augment"]
    if corpus["dir"] == default["corpus"]["dir"]:
        corpus = corpus | {"dir": str(tones)}
    if corpus["prepare"] == default["corpus"]["prepare"]:
        corpus = corpus | {"prepare": None}
    for name in {"noise", "reverberation"} & set(augment or {}):
        if augment[name]["recordings"] == default_settings("augment", name)["recordings"]:
            augment = augment | {name: augment[name] | {"recordings": str(tones)}}
    folder.mkdir(parents=True)
    try:
        with contextlib.chdir(folder):
            train(read_run_settings(config | {"corpus": corpus, "augment": augment}))
    except InputError as error:
        return str(error)
    finally:
        shutil.rmtree(folder)
    return ""


REFUSED_BY_THE_RUN = (  # these reasons depend not only on settings, but also on files, the machine, or the result
    "must exist; it does not",
    "all manifests must exist",
    "a batch must have room for the seconds that augment.edges adds",
    "a model must be a run folder, a bundle or a .ckpt",
    "a model folder must have",
    "must exist; it is made by",
    "init.frozen_steps must come with init.frozen",
    "at least one training utterance must remain",
    "training utterances must be memorised",
    "trainer must suit Lightning and this machine",
    "must be a folder of audio, or a manifest",
    "must be a readable language model",
    "a lexicon must be a text file",
    "hotwords must be a text file",
    "a neural language model must be a run folder of asr.train_lm",
)


REFUSED_ONLY_TOGETHER = (
    "must exist; it is made by",  # corpus.prepare is used only if corpus.dir has no manifests
)


def refusals_of(configs: Sequence[dict[str, Any]], tones: Path, folder: Path) -> list[str]:
    """Train with each config; list the reasons for refusals, and "" for configs that train.

    Each reason must be one of those in REFUSED_BY_THE_RUN.
    """
    refusals = [refusal(config, tones, folder / str(number)) for number, config in enumerate(configs)]
    unexpected = [
        text
        for text in filter(None, refusals)
        if "\n" in text or len(text) > 2000 or not any(reason in text for reason in REFUSED_BY_THE_RUN)
    ]
    assert not unexpected, "\n".join(unexpected)
    return refusals


def assert_they_train(configs: Sequence[dict[str, Any]], tones: Path, folder: Path, share: float) -> None:
    """Train with each config; at least `share` of them must train."""
    refusals = refusals_of(configs, tones, folder)
    trained = refusals.count("")
    assert trained >= share * len(configs) > 0, f"only {trained} of {len(configs)} train: {refusals}"


def is_accepted(config: dict[str, Any]) -> bool:
    return not problem(config)


def accepted() -> Iterator[dict[str, Any]]:
    """Yield the configs with one wrong value that are not refused, in random order."""
    mutated = [config for _, _, config in settings()]
    return filter(is_accepted, random.Random(1).sample(mutated, len(mutated)))


@pytest.mark.slow
def test_training_succeeds_with_most_of_five_random_changes_that_were_accepted(tones: Path, tmp_path: Path) -> None:
    assert_they_train(list(itertools.islice(accepted(), 5)), tones, tmp_path, share=0.5)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_training_succeeds_with_most_accepted_changes_of_one_setting(tones: Path, tmp_path: Path) -> None:
    assert_they_train(list(accepted()), tones, tmp_path, share=0.85)


@pytest.mark.slow
def test_two_wrong_settings_at_once_are_reported_in_one_line_or_accepted() -> None:
    problems = [problem(pair.both) for pair in pairs(100, seed=2, change_is_wanted=lambda config: True)]
    assert not [text for text in problems if "\n" in text or len(text) > 2000]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_training_succeeds_with_two_changes_if_it_succeeds_with_each_alone(tones: Path, tmp_path: Path) -> None:
    drawn = [pair for pair in pairs(300, seed=3, change_is_wanted=is_accepted) if is_accepted(pair.both)]
    refusals = refusals_of([pair.both for pair in drawn], tones, tmp_path / "both")
    refused = [(pair, text) for pair, text in zip(drawn, refusals, strict=True) if text]
    # With one change, 85 % of the configs train, so with two about 0.85 squared, or 72 %, should.
    assert len(drawn) - len(refused) >= 0.7 * len(drawn)
    alone = refusals_of([config for pair, _ in refused for config in pair.alone], tones, tmp_path / "alone")
    by_both = [text for (_, text), *each in zip(refused, alone[::2], alone[1::2], strict=True) if not any(each)]
    unexpected = [text for text in by_both if not any(reason in text for reason in REFUSED_ONLY_TOGETHER)]
    assert not unexpected, "\n".join(unexpected)


def test_the_choices_include_every_component_file_that_does_more_than_change_a_size() -> None:
    used = {str(value) for choices in CHOICES for _, value in leaves(resolved(*choices))}
    for group in ("features", "tokenizer", "head", "decode", "schedule", "optimizer"):
        for path in (path for home in homes() for path in (home.conf / group).rglob("*.yaml")):
            if path.stem != "aggregate":  # which no training can fit
                assert {path.stem, OmegaConf.load(path).get("name")} & used, path


# ---- bundles

TRY = """
import json, resource, sys
from pathlib import Path
import torch
from asr.core.checkpoint.load import load_recognizer
from asr.errors import InputError
from asr.core.run.settings import read_run_settings
torch.set_num_threads(1)
folder = Path(sys.argv[1])
sound = torch.randn(16000, generator=torch.Generator().manual_seed(0)) * 0.1
load_recognizer(folder).transcribe([sound], sample_rate=16_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for line in sys.stdin:
    name, content = json.loads(line)
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    try:
        load_recognizer(folder).transcribe([sound], sample_rate=16_000)
    except InputError as error:
        assert "\\n" not in str(error) and len(str(error)) < 3000, str(error)[:3000]
    except BaseException:
        print(name, content[:3000], file=sys.stderr)
        raise
    (folder / name).write_bytes(whole)
load_recognizer(folder).transcribe([sound], sample_rate=16_000)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.fixture(scope="module", params=["char", pytest.param("sentencepiece", marks=pytest.mark.slow)])
def bundle(request: pytest.FixtureRequest, tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a language model, a lexicon and hotwords; the two variants cover every kind of fitted component."""
    folder = tmp_path_factory.mktemp("bundle")
    other = ["tokenizer.vocab_size=16"] if request.param == "sentencepiece" else ["features/normalize=global_cmvn"]
    overrides = [f"tokenizer={request.param}", *other, "trainer.max_steps=1", f"run_dir={folder / 'run'}"]
    train(settings_with(*TINY, *tone_corpus(tones), *overrides))
    [checkpoint] = (folder / "run" / "checkpoints").glob("*.ckpt")
    words = {
        word for line in (tones / "train.jsonl").read_text().splitlines() for word in json.loads(line)["text"].split()
    }
    entries = [f"-1.0\t{word}\t-0.5" for word in ["<unk>", "<s>", "</s>", *sorted(words)]]
    arpa = f"\\data\\\nngram 1={len(entries)}\nngram 2=1\n\n\\1-grams:\n" + "\n".join(entries)
    (folder / "lm.arpa").write_text(f"{arpa}\n\n\\2-grams:\n-0.3\t<s> {min(words)}\n\n\\end\\\n")
    (folder / "words.txt").write_text("\n".join(sorted(words)))
    (folder / "names.txt").write_text(sorted(words)[0])
    attached = {"lm": "lm.arpa", "lexicon": "words.txt", "hotwords": "names.txt"}
    decode = search_config("beam", **{key: str(folder / name) for key, name in attached.items()})
    write_bundle(folder / "bundle", [checkpoint], "card", decode)
    (folder / "bundle" / "confidence.json").write_text('{"slope": 1.0, "intercept": 0.0}\n')
    return folder / "bundle"


def damaged(bundle: Path) -> list[tuple[str, str]]:
    """List names and damaged contents of a bundle's files: JSON values are replaced, files cut, doubled or changed."""
    cases = []
    for path in sorted(bundle.iterdir()):
        whole = path.read_bytes().decode("utf-8", "surrogateescape")
        if path.suffix == ".json":
            contents = [json.dumps(mutated) for _, _, mutated in mutations(json.loads(whole), WRONG)]
            contents += [
                "[" * 200_000,
                '{"a":' * 200_000,
                "1" * 5000,
                "NaN",
                "null",
                "[]",
                "{}",
                '"' + "x" * 2_000_000 + '"',
            ]
            cases += [(path.name, content) for content in contents]
        cases += [
            (path.name, content) for content in ("", whole[: len(whole) // 2], whole[1:], whole + whole, "\0" * 64)
        ]
        dice = random.Random(path.name)
        for _ in range(20):
            place = dice.randrange(len(whole))
            cases.append((path.name, whole[:place] + chr(dice.randrange(128)) + whole[place + 1 :]))
    return cases


def tried(bundle: Path, damages: list[tuple[str, str]]) -> int:
    """Load each damaged bundle in another process, which must survive; return the MB needed beyond an intact bundle."""
    process = subprocess.run(
        [sys.executable, "-c", TRY, str(bundle)],
        input="".join(json.dumps(damage) + "\n" for damage in damages),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=3600,
        env=os.environ | {"MALLOC_ARENA_MAX": "2"},
    )
    assert process.returncode == 0, process.stderr[-6000:]
    return int(process.stdout.split()[-1])


def test_a_damaged_bundle_is_refused_in_one_line_or_works(bundle: Path) -> None:
    assert tried(bundle, random.Random(2).sample(damaged(bundle), 250)) < 500


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_damaged_bundle_is_refused_in_one_line_or_works(bundle: Path) -> None:
    assert tried(bundle, damaged(bundle)) < 500


def test_a_large_net_in_a_config_takes_no_memory(bundle: Path) -> None:
    config = json.loads((bundle / "config.json").read_text())
    large = []
    block = config["encoder"]["block"] | {"feed_forward_factor": 64}
    for key, value in (("num_layers", 1_000_000), ("num_layers", 1_000), ("dim", 65_536), ("block", block)):
        large.append(("config.json", json.dumps(config | {"encoder": config["encoder"] | {key: value}})))
    large.append(("config.json", json.dumps(config | {"features": config["features"] | {"num_mel_bins": 10**9}})))
    assert tried(bundle, large) < 300


def test_a_pipe_in_a_bundle_does_not_block_loading(bundle: Path, tmp_path: Path) -> None:
    from asr.core.checkpoint.load import load_recognizer

    copy = tmp_path / "copy"
    copy.mkdir()
    for path in bundle.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "weights.safetensors").unlink()
    os.mkfifo(copy / "weights.safetensors")
    with refused(InputError, "bundle ... weights.safetensors"):
        load_recognizer(copy)


def test_tokenizer_pieces_of_a_megabyte_are_refused(bundle: Path) -> None:
    path = bundle / "characters.json"
    if not path.exists():
        pytest.skip("this bundle has no characters")
    characters = json.loads(path.read_text())
    assert tried(bundle, [("characters.json", json.dumps([character * 1_000_000 for character in characters]))]) < 300
