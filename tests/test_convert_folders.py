"""Folders of other toolkits: weights in several files, and refusals that name what a folder is."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import yaml

from asr.apps.convert.kinds import CLASSES, FILES, MODEL_TYPES, UnreadModel, kind_of
from asr.convert import main
from asr.core.checkpoint.bundle import read_bundle
from asr.core.hub.download import _chosen
from asr.errors import InputError
from tests.conftest import SHARED
from tests.nemo import nemo_files
from tests.refusals import refused
from tests.test_convert import assert_equal
from tests.test_wav2vec2_bert import save

PUBLISHED = SHARED.parent / "models"
NAMES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def in_two_files(folder: Path) -> Path:
    """Store the weights of a folder in two files with an index, as transformers stores large models."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    placed = {name: NAMES[number % 2] for number, name in enumerate(tensors)}
    for shard in NAMES:
        own = {name: tensor for name, tensor in tensors.items() if placed[name] == shard}
        safetensors.torch.save_file(own, folder / shard, {"format": "pt"})
    index = {"metadata": {"total_size": 1}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def in_torchs_format(folder: Path) -> Path:
    torch.save(safetensors.torch.load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize("change", [in_two_files, in_torchs_format])
def test_weights_in_other_files_give_the_same_bundle(change: Any, tmp_path: Path) -> None:
    bundles = []
    one = save(tmp_path / "one")
    for folder in (one, change(shutil.copytree(one, tmp_path / "other"))):
        assert main([str(folder), "-o", str(tmp_path / f"{folder.name} ours")]) == 0
        bundles.append(read_bundle(tmp_path / f"{folder.name} ours"))
    assert bundles[0].config == bundles[1].config
    assert_equal(bundles[0].weights, bundles[1].weights)


def test_the_file_that_transformers_reads_is_read(tmp_path: Path) -> None:
    folder = save(tmp_path / "one")
    (folder / "pytorch_model.bin").write_bytes(b"not the weights")
    in_two_files(shutil.copytree(folder, tmp_path / "two"))
    (tmp_path / "two" / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    for name in NAMES:
        (tmp_path / "two" / name).write_bytes(b"not the weights")
    for each in (folder, tmp_path / "two"):
        assert main([str(each), "-o", str(tmp_path / f"{each.name} ours")]) == 0


def test_the_files_of_an_index_are_downloaded() -> None:
    configs, index = ["config.json", "preprocessor_config.json"], "model.safetensors.index.json"
    others = ["pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json", "training_args.bin"]
    assert sorted(_chosen([*configs, *NAMES, index, *others])) == sorted([*configs, *NAMES, index])
    assert sorted(_chosen([*configs, *others])) == sorted([*configs, *others[:2]])


@pytest.mark.parametrize("fault", ["missing", "twice", "another", "outside", "list"])
def test_an_index_that_does_not_fit_its_files_is_refused(fault: str, tmp_path: Path) -> None:
    folder = in_two_files(save(tmp_path / "theirs"))
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    placed = index["weight_map"]
    first = next(iter(placed))
    named = path.name
    if fault == "missing":
        (folder / NAMES[1]).unlink()
        named += f" ... {NAMES[1]}"
    elif fault == "twice":
        shutil.copy(folder / NAMES[0], folder / NAMES[1])
    elif fault == "another":
        placed["encoder.unknown"] = NAMES[0]
        named += " ... encoder.unknown"
    elif fault == "outside":
        placed[first] = "../model.safetensors"
    else:
        index["weight_map"] = [*placed]
    path.write_text(json.dumps(index))
    with refused(InputError, named):
        main([str(folder), "-o", str(tmp_path / "ours")])


def test_a_file_in_torchs_format_that_could_run_code_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "theirs")
    (folder / "model.safetensors").unlink()
    torch.save({"weight": torch.zeros(2), "code": print}, folder / "pytorch_model.bin")
    with refused(InputError, "pytorch_model.bin"):
        main([str(folder), "-o", str(tmp_path / "ours")])


@pytest.mark.parametrize(("kind", "patterns"), [(kind, each) for kind, choices in FILES.items() for each in choices])
def test_the_refusal_of_another_toolkits_folder_names_the_toolkit(
    kind: UnreadModel, patterns: tuple[str, ...], tmp_path: Path
) -> None:
    for pattern in patterns:
        path = tmp_path / "theirs" / pattern.replace("*", "1")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with refused(InputError, f"MODEL ... {kind.name.split()[-1]}"):
        main([str(tmp_path / "theirs"), "-o", str(tmp_path / "ours")])


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    **{name: ({"model_type": name}, name) for name in MODEL_TYPES},
    "mlx": ({"target": "nemo.collections.asr.models.rnnt_bpe_models.EncDecRNNTBPEModel"}, "MLX"),
    "mlx whisper": ({"n_mels": 80, "n_audio_ctx": 1500}, "Whisper ... MLX"),
    "canary": ({"model_type": "fastconformer", "nemo_model_type": "canary"}, "Canary"),
    "gigaam": ({"encoder": {"_target_": "gigaam.encoder.ConformerEncoder"}}, "GigaAM"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_refusal_of_a_config_names_the_model(name: str, tmp_path: Path) -> None:
    config, named = CONFIGS[name]
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    with refused(InputError, f"MODEL ... {named}"):
        main([str(folder), "-o", str(tmp_path / "ours")])


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_of_nemo_that_asr_does_not_read_is_named(name: str, tmp_path: Path) -> None:
    files = dict(nemo_files())
    config = yaml.safe_load(files["model_config.yaml"])
    files["model_config.yaml"] = yaml.safe_dump(config | {"target": f"nemo.collections.asr.models.x.{name}"}).encode()
    folder = tmp_path / "theirs"
    folder.mkdir()
    for file, content in files.items():
        (folder / file).write_bytes(content)
    with refused(InputError, f"target; got {name!r}"):
        main([str(folder), "-o", str(tmp_path / "ours")])


def test_a_folder_of_no_known_kind_has_none(tmp_path: Path) -> None:
    assert kind_of(tmp_path) is None
    assert kind_of(tmp_path / "absent") is None
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "wav2vec2-bert", "encoder": [1]}))
    assert kind_of(tmp_path) is None


WITHOUT_WEIGHTS = {  # published folders without their weights
    "published/nemotron-3.5-asr-streaming-0.6b": "nemotron3_5_asr",
    "published/parakeet-tdt-0.6b-v2": "EncDecRNNTBPEModel",
    "published/parakeet-tdt-0.6b-v3": "parakeet_tdt",
    "published/parakeet-tdt_ctc-110m": "EncDecHybridRNNTCTCBPEModel",
    "published/parakeet-unified-en-0.6b": "NeMo",
    "published_2/granite-speech-5.0-470m-turboctc": "granite_speech5_ctc",
    "published_2/medasr": "lasr_ctc",
    "published_2/w2v-bert-2.0": "wav2vec2-bert",
    "published_2/wav2vec2-arabic": "wav2vec2",
}
UNREAD = {
    "published/canary-1b-flash": "Canary",
    "published_2/gigaam-v3_ctc": "GigaAM",
    "published_2/gigaam-v3_rnnt": "GigaAM",
    "published_2/nemo": "fc_hybrid_agg",
}


@pytest.mark.parametrize("folder", [*WITHOUT_WEIGHTS, *UNREAD])
def test_the_refusal_of_each_published_folder_names_its_kind_and_the_next_step(folder: str, tmp_path: Path) -> None:
    if not (PUBLISHED / folder).is_dir():
        pytest.skip("needs ../shared/models")
    kind = WITHOUT_WEIGHTS.get(folder)
    with refused(
        InputError,
        f"must exist ... {kind}" if kind else f"MODEL ... {UNREAD[folder]}",
        cure="add the file" if kind else "docs/guide/convert.md",
    ):
        main([str(PUBLISHED / folder), "-o", str(tmp_path / "ours")])


def test_the_published_folders_are_all_known_to_these_tests() -> None:
    folders = [folder for group in ("published", "published_2") for folder in (PUBLISHED / group).glob("*/")]
    assert {f"{folder.parent.name}/{folder.name}" for folder in folders} <= {*WITHOUT_WEIGHTS, *UNREAD}


@pytest.mark.parametrize("language", [None, "hi"])
@pytest.mark.parametrize("key", ["type", "multisoftmax"])
def test_a_model_with_an_output_layer_for_each_language_is_refused_by_name(
    key: str, language: str | None, tmp_path: Path
) -> None:
    files = dict(nemo_files())
    config = yaml.safe_load(files["model_config.yaml"])
    config["tokenizer"] = {"type": "multilingual" if key == "type" else "agg", "langs": {"as": {}, "hi": {}}}
    config["decoder"] |= {"multisoftmax": True} if key == "multisoftmax" else {}
    files["model_config.yaml"] = yaml.safe_dump(config).encode()
    folder = tmp_path / "theirs"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    options = [] if language is None else ["--language", language]
    with refused(InputError, "tokenizer.type ... IndicConformer ... as, hi", cure="--plugin"):
        main([str(folder), *options, "-o", str(tmp_path / "ours")])


def test_a_file_that_is_no_archive_is_refused_with_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text("encoder: 1")
    with refused(InputError, "archive ... another kind", cure="folder"):
        main([str(tmp_path / "model.yaml"), "-o", str(tmp_path / "ours")])
