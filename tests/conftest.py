"""Common parts of the tests: paths, tiny configurations, and a corpus of tones."""

import gc
import json
import logging
import os
import re
from collections.abc import Callable, Generator, Iterator
from functools import cache, reduce
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # on shared cores, spinning threads make tests up to 10x slower

import pytest
import torch
from filelock import FileLock
from hydra import compose
from omegaconf import OmegaConf

from asr.base.settings.conf import default_settings, files, names, own_settings
from asr.base.settings.conf import overridden as overridden
from asr.base.storage import session
from asr.core.run.settings import RunSettings, read_run_settings
from asr.core.training.hydra_command import initialized_hydra
from benchmarks import null_gpu as gpu
from tests.imports import floors
from tests.storing import S3, FaultyProxy, faulty, moto, storage
from tests.tones import sentences, write_corpus

pytest_plugins = ["tests.cpu_seconds"]

ROOT = Path(__file__).resolve().parent.parent
CONF = ROOT / "conf"
SHARED = ROOT.parent / "shared" / "data"
SLOWDOWN = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # by the other work on the machine as the tests begin
PATIENCE = 120 * SLOWDOWN  # seconds, for operations that should take a few

# Overrides of asr.train for a network that trains on the tones in seconds.
TINY = [
    "encoder.dim=32",
    "encoder.num_layers=2",
    "encoder.block.num_heads=2",
    "encoder.block.feed_forward_factor=2",
    "encoder.block.convolution.kernel_size=7",
    "encoder.block.dropout=0.0",
    "encoder.subsampling.num_channels=8",
    "encoder.subsampling.dropout=0.0",
    "augment=[]",
    "data.num_workers=0",
    "data.sorted_epochs=0",
    "optimizer=adamw",
    "optimizer.lr=2e-3",
    "checkpoint.select=best",
    "data.batch_seconds=10",
    "schedule.warmup_steps=10",
    "trainer.accelerator=cpu",
    "trainer.log_every_n_steps=1",
]

STACKS = {  # sizes of a small encoder of several stacks
    "dims": [16, 16, 16],
    "layers": [1, 2, 1],
    "strides": [1, 4, 2],
    "heads": [2, 2, 2],
    "feed_forward_dims": [32, 32, 32],
    "kernel_sizes": [3, 3, 3],
}

# Without the folder asr/apps, `make test-core` still runs.
has_apps = (ROOT / "asr" / "apps").is_dir()
collect_ignore = [] if has_apps else [str(path) for path in ROOT.glob("tests/test_*.py") if "apps" in floors(path)]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each test with the floors of asr that its file needs, so that `-m "not apps"` selects the tests of core."""
    for floor in sorted(floors(item.path)):
        item.add_marker(floor)


needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="needs real recorded speech in ../shared/data")


def block_dims(dim: int, number: int = 4) -> dict[str, int]:
    """Return the dimensions of the blocks of an encoder, for its head."""
    return {f"blocks.{index}": dim for index in range(number)}


def resolved(*overrides: str, root: str = "train") -> dict[str, Any]:
    """Compose conf/train.yaml, or another root config, with overrides; return a plain dict.

    Hydra needs 0.15 s of CPU time, so that a config is composed once for all folders.
    """
    folders: dict[str, str] = {}  # by placeholder

    def without_folder(override: str) -> str:
        if is_folder := re.fullmatch(r"(run_dir|corpus\.dir)=(/[\w./-]+)", override):
            folders[f"/{is_folder[1]}/placeholder"] = is_folder[2]
            return f"{is_folder[1]}=/{is_folder[1]}/placeholder"
        return override

    def copied(value: Any) -> Any:
        match value:
            case dict():
                return {key: copied(entry) for key, entry in value.items()}
            case list():
                return [copied(entry) for entry in value]
            case str():
                return reduce(lambda text, placeholder: text.replace(placeholder, folders[placeholder]), folders, value)
        return value

    return copied(_composed(tuple(map(without_folder, overrides)), root))  # type: ignore[no-any-return]


@cache
def _composed(overrides: tuple[str, ...], root: str) -> Any:
    with initialized_hydra():
        config = compose(root, overrides=list(overrides))
    return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)


def settings_with(*overrides: str) -> RunSettings:
    """Compose conf/train.yaml with overrides, and read the settings as asr.train does."""
    return read_run_settings(resolved(*overrides))


class OtherPart(NamedTuple):
    """A part that differs from the encoder's default, such as another norm: conf/encoder/<group>/<name>.yaml."""

    encoder: str
    group: str
    name: str

    @property
    def overrides(self) -> list[str]:
        return [f"encoder={self.encoder}", f"encoder/{self.group}={self.name}"]


ENCODERS: dict[str, Any] = {path.stem: OmegaConf.load(path) for path in files("encoder")}
KINDS = {  # class of an encoder, and of its blocks
    name: (file.name, default_settings("encoder", name).get("block", {}).get("name")) for name, file in ENCODERS.items()
}
SMALLEST_ENCODERS = sorted(  # one encoder of each kind
    {
        KINDS[name]: name for name in sorted(ENCODERS, key=lambda name: (-ENCODERS[name].get("num_layers", 0), name))
    }.values()
)
NOT_CHUNK_BY_CHUNK = (  # parts that a streaming encoder does not accept
    *("rotary_attention", "shaw_attention", "dilated_convolution", "plain_convolution", "same_convolution"),
    *("block_attention", "expanded_convolution", "unpadded_conv", "sample_conv"),
    *("group_norm", "instance_norm", "switchable_norm"),
)
LIKE_CONFORMER = (("conformer_adapter", "conformer_block"), ("conformer", "weighted_block"))


def takes(encoder: str, group: str, part: str) -> bool:
    """Return whether an encoder accepts a part, with the settings of the part that the encoder's files set."""
    own: Any = own_settings("encoder", encoder)
    of_block: Any = own_settings("encoder/block", KINDS[encoder][1]) if "block/" in group else {}
    for key in group.split("/"):
        own, of_block = own.get(key, {}), of_block if key == "block" else of_block.get(key, {})
    settings = OmegaConf.create(own_settings(f"encoder/{group}", part))
    is_whole = OmegaConf.missing_keys(settings) <= {*own, *of_block} <= {*settings}
    return is_whole and ("streaming" not in encoder or part not in NOT_CHUNK_BY_CHUNK)


def parts_of(encoder: str) -> Iterator[tuple[str, str]]:
    """Yield the groups of the parts of an encoder and of its blocks, such as block/norm, and the chosen parts."""
    settings = default_settings("encoder", encoder)
    for prefix, section in (("", settings), ("block/", settings.get("block", {}))):
        yield from (
            (prefix + key, of["name"]) for key, of in section.items() if isinstance(of, dict) and key != "block"
        )


OTHER_PARTS = [
    OtherPart(encoder, group, part)
    for encoder in SMALLEST_ENCODERS
    if KINDS[encoder] not in LIKE_CONFORMER  # their parts are tested with the other encoders
    for group, default in parts_of(encoder)
    for part in names(f"encoder/{group}")
    if part != default and takes(encoder, group, part)
]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Import the test files without garbage collection: a quarter of their CPU time, for 3 % of the memory."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # the tests' collections do not visit the imported objects
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(float(config.getini("timeout")) * SLOWDOWN))


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Store indexes of manifests outside the user's cache; commands started by tests inherit this setting."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    """Begin with the log's level of a new process, and remove handlers, whose folder may be deleted after the test."""
    ours = logging.getLogger("asr")
    ours.setLevel(logging.NOTSET)
    before = list(ours.handlers)
    yield
    ours.handlers = before


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` has filled in one of the processes that run tests; the others wait for it."""
    of_all = factory.getbasetemp() if "PYTEST_XDIST_WORKER" not in os.environ else factory.getbasetemp().parent
    with FileLock(of_all / f"{name}.lock"):
        if not (of_all / f"{name}.made").is_file():
            (of_all / name).mkdir(exist_ok=True)
            make(of_all / name)
            (of_all / f"{name}.made").touch()
    return of_all / name


@pytest.fixture(scope="session")
def tones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of tones: train, valid and test manifests in a folder."""
    texts = {"train": sentences(48, seed=1), "valid": sentences(8, seed=2), "test": sentences(8, seed=3)}
    return made_once(tmp_path_factory, "tones", lambda folder: write_corpus(folder, texts))


def tone_corpus(folder: Path) -> list[str]:
    """Return overrides of asr.train for the manifests in `folder`."""
    return [f"corpus.dir={folder}", "corpus.name=tones", "corpus.prepare=null"]


@pytest.fixture(scope="session")
def fluent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of tones with a training run in its folder `run`; the run's WER on 60 test sentences is below 2 %."""
    return made_once(tmp_path_factory, "fluent", _make_fluent)


def _make_fluent(folder: Path) -> None:
    from asr.train import train

    texts = {"train": sentences(128, seed=1), "valid": sentences(8, seed=2), "test": sentences(60, seed=3)}
    write_corpus(folder, texts)
    enough = ["trainer.max_epochs=12", "trainer.check_val_every_n_epoch=12", "optimizer.lr=8e-3"]
    train(settings_with(*TINY, *tone_corpus(folder), f"run_dir={folder / 'run'}", *enough))
    assert json.loads((folder / "run" / "results.json").read_text())["test"]["wer"] < 0.02


@pytest.fixture(scope="session")
def s3_proxy() -> Iterator[FaultyProxy]:
    """A proxy in front of an S3 server with a bucket named `bucket`."""
    with moto() as server, faulty(server) as proxy:
        server.make_bucket("bucket")
        yield proxy
        session.close()


@pytest.fixture
def s3(s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """The proxy as the endpoint of s3:// URLs. It injects no faults unless a test requests them."""
    for name, value in S3(s3_proxy.port).environment.items():
        monkeypatch.setenv(name, value)
    session.configure(storage())
    yield s3_proxy
    session.configure(None)
    s3_proxy.reset()


@pytest.fixture(scope="session")
def null_gpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Build a null GPU; return the environment of a process that uses it."""
    if reason := gpu.missing():
        pytest.skip(f"no null GPU: {reason}")
    return {**os.environ, **gpu.build(tmp_path_factory.mktemp("null_gpu")), "PYTHONPATH": str(ROOT)}
