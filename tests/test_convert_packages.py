"""A package outside of asr reads and writes the models of another toolkit, by READERS and WRITERS of its `convert`."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from asr.apps.convert.huggingface.convert import from_huggingface
from asr.apps.convert.packages import readers, writers
from asr.apps.convert.section import check_parts
from asr.base.settings import plugins
from asr.convert import main
from asr.core.checkpoint.load import load_recognizer
from asr.errors import InputError
from asr.export import main as export
from asr.transcribe import main as transcribe
from tests.conftest import ROOT
from tests.refusals import refused
from tests.test_readme import files_of_guide

LAB = "toolkit_lab"
PLUGIN = ["--plugin", LAB]
LETTERS, SIZE, NUM_MEL_BINS = ["t", "o", " ", "y"], 12, 80
SETTINGS = {"size": SIZE, "letters": LETTERS, "activation": "relu"}
CONVERT = files_of_guide()["mylab/speech/convert.py"]
SHAPES = {"front": (SIZE, NUM_MEL_BINS), "back": (SIZE, SIZE), "output": (len(LETTERS) + 1, SIZE)}
# A folder for transformers with the same network, and with an architecture that transformers would have.
TRANSFORMERS = """

def read_folder_of_transformers(folder, choices):
    from asr.apps.convert.huggingface.files import pop_weights

    config = folder.config
    check(config, "config", {"model_type", "architectures", "size", "letters"}, {})
    tokenizer = Char()
    tokenizer.load({FILE: to_json(config["letters"])})
    tensors, sha256 = pop_weights(folder.files)
    return ModelParts(
        vocabulary=Vocabulary({"name": "char"}, tokenizer.files(), tokenizer.pieces[1:], hidden=[], notes=[]),
        features=default_settings("features", "fbank"),
        encoder={"name": "pooled", "dim": whole(config, "config.size")},
        weights=Weights(tensors, sha256, Counterparts(row)),
        head=CTC_HEAD,
    )


def write_folder_of_transformers(bundle, path):
    own = write(bundle, path)
    config = {"model_type": "toy_ctc", "architectures": ["ToyForCTC"], **parse_json(own[SETTINGS], SETTINGS)}
    del config["activation"]
    files = {"config.json": to_json(config), "model.safetensors": own[WEIGHTS], "preprocessor_config.json": b"{}"}
    return files | {"toy.txt": b"A file that no other architecture has."}


from asr.apps.convert.huggingface.files import of_transformers

READERS.append(of_transformers("toy_ctc", read_folder_of_transformers))
WRITERS.append(Writer("toy_ctc", fits, write_folder_of_transformers))
"""


def write_package(folder: Path, convert: str) -> None:
    guide = files_of_guide()
    files = {
        "__init__.py": "",
        "encoder/pooled.py": guide["asr/components/encoder/pooled.py"],
        "conf/encoder/pooled.yaml": guide["conf/encoder/pooled.yaml"],
        "convert.py": convert,
    }
    for name, content in files.items():
        (folder / LAB / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / LAB / name).write_text(content)


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder outside of the checkout with the package of docs/guide/extend.md; no command has named it."""
    assert not tmp_path.is_relative_to(ROOT)
    write_package(tmp_path, CONVERT)
    monkeypatch.setattr(plugins, "_named", {})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == LAB]:
        del sys.modules[name]


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A model as the toolkit stores it."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "tinyspeech.json").write_text(json.dumps(SETTINGS))
    save_file(weights(), folder / "weights.safetensors")
    return folder


def weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    tensors = {f"{name}.weight": torch.randn(shape) for name, shape in SHAPES.items()}
    return tensors | {f"{name}.bias": torch.randn(shape[0]) for name, shape in SHAPES.items()}


def log_probs_of(tensors: dict[str, Tensor], features: Tensor) -> Tensor:
    """Compute the toolkit's log_probs (T', V), whose last token is the blank, of features (T, F), T a multiple of 4."""

    def layer(name: str, x: Tensor) -> Tensor:
        return x @ tensors[f"{name}.weight"].double().T + tensors[f"{name}.bias"].double()

    x = features.unflatten(0, (-1, 4)).mean(dim=1)
    return layer("output", layer("back", layer("front", x).relu())).log_softmax(-1)


def test_a_model_of_a_package_is_converted_computes_the_same_and_is_converted_back(theirs: Path) -> None:
    assert main([str(theirs), "-o", "ours", *PLUGIN]) == 0
    assert json.loads(Path("ours/config.json").read_text())["plugins"] == [LAB]
    model = load_recognizer("ours").model.double().eval()
    features = torch.randn(1, 40, NUM_MEL_BINS, dtype=torch.float64)
    with torch.no_grad():
        encoded = model(features, torch.tensor([40]))
        ours = model.head.frame_head.log_probs(encoded.out)[0]
    torch.testing.assert_close(ours.roll(-1, dims=1), log_probs_of(weights(), features[0]), rtol=0, atol=1e-10)
    assert model.tokenizer.decode([1, 2, 4]) == "toy"
    for _ in range(2):  # the second folder replaces the first
        assert main(["ours", "--to", "tinyspeech", "-o", "back", *PLUGIN]) == 0
    assert json.loads(Path("back/tinyspeech.json").read_text()) == SETTINGS
    back = load_file("back/weights.safetensors")
    assert back.keys() == weights().keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in weights().items())


def test_the_bundle_of_a_model_of_a_package_transcribes_where_the_command_names_the_package(
    theirs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([str(theirs), "-o", "ours", *PLUGIN]) == 0
    soundfile.write("a.wav", torch.randn(16_000).numpy() / 10, 16_000)
    assert transcribe(["ours", "a.wav", *PLUGIN]) == 0
    monkeypatch.setattr(plugins, "_named", {})
    with refused(InputError, f"ours ... plugin ... {LAB}", cure=f"--plugin {LAB}"):
        transcribe(["ours", "a.wav"])


def test_a_package_is_not_imported_because_it_lies_there_or_because_a_file_names_it(theirs: Path, lab: Path) -> None:
    (lab / LAB / "convert.py").write_text("raise SystemExit('imported')")
    (theirs / "weights.safetensors").rename(theirs / "model.safetensors")
    (theirs / "config.json").write_text(json.dumps({"model_type": LAB, "plugins": [LAB], "auto_map": f"{LAB}.convert"}))
    with refused(InputError, f"theirs ... model_type; got '{LAB}'"):
        main([str(theirs), "-o", "ours"])
    (theirs / "config.json").unlink()
    with refused(InputError, "theirs ... model_config.yaml"):  # as a folder of NeMo's files
        main([str(theirs), "-o", "ours"])
    assert not any(name.partition(".")[0] == LAB for name in sys.modules)


@pytest.mark.parametrize(
    ("new", "named"),
    [
        ({"activation": "gelu"}, "tinyspeech.json.activation; got gelu"),
        ({"depth": 3}, "tinyspeech.json.depth"),
        ({"size": "large"}, "tinyspeech.json.size; got 'large'"),
        ({"size": SIZE + 1}, "front.weight"),
        ({"letters": ["t", "t"]}, "characters.json"),
    ],
)
def test_a_setting_that_a_package_does_not_support_is_refused(theirs: Path, new: dict[str, object], named: str) -> None:
    (theirs / "tinyspeech.json").write_text(json.dumps(SETTINGS | new))
    with refused(InputError, f"theirs ... {named}"):
        main([str(theirs), "-o", "ours", *PLUGIN])
    assert not Path("ours").exists()


def test_a_model_of_a_package_may_have_the_names_of_the_files_of_a_bundle(theirs: Path, lab: Path) -> None:
    (theirs / "tinyspeech.json").rename(theirs / "config.json")
    with refused(InputError, "theirs ... already a bundle", cure="--to"):
        main([str(theirs), "-o", "ours"])
    write_package(lab, CONVERT.replace("tinyspeech.json", "config.json"))
    assert main([str(theirs), "-o", "ours", *PLUGIN]) == 0


def test_each_tensor_of_a_model_of_a_package_must_have_a_use(theirs: Path) -> None:
    save_file(weights() | {"gate.weight": torch.zeros(2)}, theirs / "weights.safetensors")
    with refused(InputError, "theirs ... gate.weight"):
        main([str(theirs), "-o", "ours", *PLUGIN])


def test_a_package_may_read_and_write_folders_of_transformers(theirs: Path, lab: Path) -> None:
    write_package(lab, CONVERT + TRANSFORMERS)
    assert main([str(theirs), "-o", "ours", *PLUGIN]) == 0
    for _ in range(2):
        assert main(["ours", "--to", "huggingface", "-o", "folder", *PLUGIN]) == 0
    assert (Path("folder") / "toy.txt").is_file()
    assert main(["folder", "-o", "again", *PLUGIN]) == 0
    ours, again = (load_recognizer(name).model.state_dict() for name in ("ours", "again"))
    assert all(torch.equal(ours[name], tensor) for name, tensor in again.items())
    assert export(["ours", "--to", "huggingface", "-o", "published", *PLUGIN]) == 0
    assert "ToyForCTC" in Path("published/README.md").read_text()


def test_a_folder_of_transformers_that_no_reader_fits_is_refused_with_the_names_of_all_readers(
    theirs: Path, lab: Path
) -> None:
    write_package(lab, CONVERT + TRANSFORMERS)
    (theirs / "weights.safetensors").unlink()
    (theirs / "tinyspeech.json").rename(theirs / "config.json")
    for command in ([], PLUGIN):
        with refused(InputError, "theirs ... model_type") as raised:
            main([str(theirs), "-o", "ours", *command])
        assert ("toy_ctc" in str(raised.value)) == bool(command)
        assert all(name in str(raised.value) for name in ("parakeet_ctc", "lasr_ctc"))


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("READER, WRITER = READERS, WRITERS\ndel READERS, WRITERS", f"{LAB}.convert ... READERS ... WRITERS"),
        ("READERS = [read]", f"{LAB}.convert.READERS ... Reader; got <function read"),
        ("READERS = {'tinyspeech': read}", f"{LAB}.convert.READERS ... Reader; got {{'tinyspeech'"),
        ("READERS = READERS[0]", f"{LAB}.convert.READERS ... Reader; got 'tinyspeech'"),
        ("READERS = None", f"{LAB}.convert.READERS ... Reader; got None"),
        ("import a_toolkit_that_is_absent", f"{LAB}.convert ... a_toolkit_that_is_absent"),
        ("READERS = 2 * READERS", "tinyspeech, tinyspeech"),
        ("READERS = [Reader('parakeet_ctc', lambda path: True, read)]", "parakeet_ctc, parakeet_ctc"),
    ],
)
def test_a_list_of_a_package_that_cannot_be_used_is_refused(lab: Path, lines: str, named: str) -> None:
    write_package(lab, f"{files_of_guide()['mylab/speech/convert.py']}\n{lines}\n")
    folder = lab / "folder"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "parakeet_ctc"}))
    (folder / "tinyspeech.json").write_text("{}")
    with refused(InputError, named):
        main([str(folder), "-o", "ours", *PLUGIN])


def test_a_format_that_no_package_writes_is_refused(theirs: Path, lab: Path) -> None:
    assert main([str(theirs), "-o", "ours", *PLUGIN]) == 0
    with refused(InputError, "--to ... bundle ... nemo ... huggingface ... tinyspeech; got 'espnet'", cure="--plugin"):
        main(["ours", "--to", "espnet", "-o", "back", *PLUGIN])
    write_package(lab, CONVERT.replace('["name"] == "pooled"', '["name"] == "deep"'))
    for name in [name for name in sys.modules if name.startswith(f"{LAB}.convert")]:
        del sys.modules[name]
    with refused(InputError, "ours ... --to tinyspeech"):
        main(["ours", "--to", "tinyspeech", "-o", "back", *PLUGIN])
    assert not Path("back").exists()


def test_a_writer_for_transformers_must_name_the_architecture_for_a_card(theirs: Path, lab: Path) -> None:
    broken = TRANSFORMERS.replace('"architectures": ["ToyForCTC"], **', "**")
    write_package(lab, CONVERT + broken)
    assert main([str(theirs), "-o", "ours", *PLUGIN]) == 0
    with refused(InputError, "config.json ... architectures"):
        export(["ours", "--to", "huggingface", "-o", "published", *PLUGIN])


def test_the_zoo_is_a_package_that_needs_no_option() -> None:
    own = [reader.name for reader in readers() if reader.name != "hubert"]  # which is written as wav2vec2
    assert own == [writer.name for writer in writers()]
    assert {"wav2vec2", "hubert", "wav2vec2-bert", "granite_speech5_ctc", "lasr_ctc"} <= {
        reader.name for reader in readers()
    }
    with refused(InputError, "--plugin; got 'asr.apps.zoo'"):
        plugins.use(["asr.apps.zoo"], "--plugin")


def test_a_parakeet_needs_no_zoo(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "APPS", [])
    assert readers() == writers() == []
    (theirs / "config.json").write_text(json.dumps({"model_type": "lasr_ctc"}))
    with refused(InputError, "model_type ... parakeet_ctc; got lasr_ctc"):
        from_huggingface(theirs)


def test_a_part_that_another_toolkit_lacks_is_refused_by_its_name() -> None:
    check_parts({"head": {"name": "ctc"}}, "icefall", {"prompt": ()})
    with refused(InputError, "prompt ... icefall; got concatenated"):
        check_parts({"head": {"name": "ctc"}, "prompt": {"name": "concatenated"}}, "icefall", {"prompt": ()})
