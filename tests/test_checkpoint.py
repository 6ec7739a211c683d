"""Bundles and checkpoints: their contents, refusal of damaged files, and no execution of code in them."""

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import asr
from asr.core.build import MODEL_KEYS, component
from asr.core.checkpoint.load import load_recognizer
from asr.core.checkpoint.saved import kept_checkpoints
from asr.core.data.manifest import read_manifest
from asr.errors import InputError
from tests.conftest import resolved
from tests.refusals import refused
from tests.test_train import trained  # noqa: F401


def texts(model: Path, manifest: Path) -> dict[str, str]:
    recognizer = load_recognizer(model)
    results = recognizer.recognize(read_manifest(manifest))
    return {utterance.id: transcript.text for utterance, transcript in results}  # type: ignore[misc]


@pytest.fixture
def bundle(trained: Path, tmp_path: Path) -> Path:  # noqa: F811
    return Path(shutil.copytree(trained / "bundle", tmp_path / "bundle"))


def test_a_run_folder_its_bundle_and_its_checkpoint_give_equal_texts(trained: Path, tones: Path) -> None:  # noqa: F811
    whole = texts(trained, tones / "test.jsonl")
    assert texts(trained / "bundle", tones / "test.jsonl") == whole
    card = (trained / "bundle" / "README.md").read_text()
    chosen = next(path for path in (trained / "checkpoints").iterdir() if path.stem in card)
    assert texts(chosen, tones / "test.jsonl") == whole


def test_the_model_card_has_step_and_wer(trained: Path) -> None:  # noqa: F811
    card = (trained / "bundle" / "README.md").read_text()
    assert "step=" in card
    assert "best validation WER" in card


def newest(run_dir: Path) -> Path:
    return kept_checkpoints(run_dir / "checkpoints")[-1].path


def test_a_checkpoint_is_enough_to_transcribe(trained: Path) -> None:  # noqa: F811
    content = torch.load(newest(trained), weights_only=True)
    assert set(content["asr"]["config"]) == {"format", *MODEL_KEYS}
    assert set(content["asr"]["files"]) == {"characters.json"}


@pytest.mark.parametrize(
    "name", ["torch.utils.collect_env", "../../../tmp/evil", "__init__", "os", "", None, 3, "a" * 300, "a" * 100_000]
)
def test_a_config_can_name_only_components_of_asr(name: Any) -> None:
    with refused(InputError, "encoder.name ... asr/components/encoder") as raised:
        component("encoder", {"name": name})
    assert len(str(raised.value)) < 1000


def test_values_of_any_length_are_shown_in_part() -> None:
    long = "a" * 100_000
    for config in ({long: long}, {"name": "greedy", long: 1}, [long]):
        with pytest.raises(InputError) as raised:
            component("decode", config)  # type: ignore[arg-type]
        assert len(str(raised.value)) < 5000
        assert str(raised.value).endswith(".")


@pytest.mark.parametrize("target", ["torch.utils.collect_env.run", "torch.load", "os.system"])
def test_a_bundle_whose_config_names_code_outside_asr_executes_nothing(
    bundle: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ran(*_: Any, **__: Any) -> None:
        pytest.fail(f"{target} was called")

    import torch.utils.collect_env

    monkeypatch.setattr(torch.utils.collect_env, "run", ran)
    monkeypatch.setattr(torch, "load", ran)
    monkeypatch.setattr(os, "system", ran)
    config = json.loads((bundle / "config.json").read_text())
    planted: list[dict[str, Any]] = [
        config | {"encoder": {"_target_": target, "command": "touch /tmp/owned"}},
        config | {"encoder": config["encoder"] | {"name": target}},
        config | {"encoder": config["encoder"] | {"block": config["encoder"]["block"] | {"norm": {"name": target}}}},
        config | {"encoder": config["encoder"] | {"_target_": target}},
        config | {"features": config["features"] | {"normalize": {"_target_": target, "name": "per_utterance"}}},
        config | {"tokenizer": target},
    ]
    for evil in planted:
        (bundle / "config.json").write_text(json.dumps(evil))
        with pytest.raises(InputError):
            load_recognizer(bundle)


class _Evil:
    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> Any:
        return (Path.touch, (self.witness,))


def test_a_checkpoint_with_a_malicious_pickle_is_refused(tmp_path: Path) -> None:
    witness = tmp_path / "owned"
    torch.save({"asr": _Evil(witness)}, tmp_path / "evil.ckpt")
    with refused(InputError, "running code"):
        load_recognizer(tmp_path / "evil.ckpt")
    assert not witness.exists()
    pickle.loads(pickle.dumps(_Evil(witness)))
    assert witness.exists(), "an ordinary load executes the pickle"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda bundle: truncate(bundle / "weights.safetensors"), "bundle is damaged"),
        (lambda bundle: truncate(bundle / "config.json"), "bundle is damaged"),
        (lambda bundle: (bundle / "weights.safetensors").unlink(), "bundle is damaged"),
        (lambda bundle: (bundle / "characters.json").unlink(), "model ... characters.json"),
        (lambda bundle: (bundle / "config.json").write_text("[]"), "have the keys"),
        (lambda bundle: (bundle / "config.json").unlink(), "model folder ... config.json"),
        (
            lambda bundle: (bundle / "config.json").rename(bundle / "model_config.yaml"),
            "model ... asr.convert",
        ),
        (lambda bundle: shutil.rmtree(bundle), "does not exist"),
        (
            lambda bundle: (bundle / "config.json").write_text(
                (bundle / "config.json").read_text().replace('"dim": 32', '"dim": 64')
            ),
            "weights ... fit the config",
        ),
    ],
)
def test_a_damaged_bundle_is_reported_in_one_line(bundle: Path, damage: Any, message: str) -> None:
    damage(bundle)
    with refused(InputError, message, cure="-o FOLDER" if message.endswith("asr.convert") else ""):
        load_recognizer(bundle)


def test_a_truncated_checkpoint_is_reported_in_one_line(trained: Path, tmp_path: Path) -> None:  # noqa: F811
    shutil.copy(newest(trained), tmp_path / "half.ckpt")
    truncate(tmp_path / "half.ckpt")
    with refused(InputError, "running code"):
        load_recognizer(tmp_path / "half.ckpt")


def test_the_error_of_a_run_without_a_bundle_names_its_checkpoints(trained: Path, tmp_path: Path) -> None:  # noqa: F811
    shutil.copytree(trained / "checkpoints", tmp_path / "run" / "checkpoints")
    checkpoint = max((tmp_path / "run" / "checkpoints").glob("step=*.ckpt"), key=lambda path: path.stat().st_mtime)
    with refused(InputError, "no bundle", cure=checkpoint.name):
        load_recognizer(tmp_path / "run")


def test_one_call_transcribes_files_and_waveforms(bundle: Path, tones: Path) -> None:
    recognizer = asr.load_recognizer(bundle)
    utterances = read_manifest(tones / "test.jsonl")
    paths = [utterance.audio_filepath for utterance in utterances]
    from asr.base.audio.load import load_waveform

    waveforms = [load_waveform(path, 16000) for path in paths]
    mixed = recognizer.transcribe([paths[0], waveforms[1], paths[2]], sample_rate=16_000)
    expected = texts(bundle, tones / "test.jsonl")
    assert [transcript.text for transcript in mixed] == [expected[utterance.id] for utterance in utterances[:3]]


def test_a_bundle_does_not_name_the_program_that_prepares_the_corpus() -> None:
    assert "corpus" not in MODEL_KEYS
    assert resolved()["corpus"]["prepare"] == "recipes.mini.prepare"
