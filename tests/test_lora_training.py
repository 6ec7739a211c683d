"""Runs that train an adapter: trained and stored weights, resumption, and the base of the bundle."""

import json
import re
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

import asr
from asr.average import main as average_main
from asr.base.settings.read import as_mapping
from asr.convert import main as convert_main
from asr.core.build import MODEL_KEYS
from asr.core.checkpoint.load import load_recognizer
from asr.core.checkpoint.saved import MERGED
from asr.core.data.manifest import read_manifest
from asr.core.run.initialization import with_parts
from asr.errors import InputError
from asr.evaluate import main as evaluate_main
from asr.export import main as export_main
from asr.merge import main as merge_main
from asr.train import train
from asr.transcribe import main as transcribe_main
from asr.tune import main as tune_main
from tests.conftest import TINY, settings_with, tone_corpus
from tests.processes import bundle, examples, finish, metrics, resumptions, start
from tests.refusals import mentions, refused
from tests.serving import serving
from tests.test_resume import die_after_the_first_checkpoint

LORA = ["adapter=lora", "adapter.rank=2", "adapter.alpha=4"]
SHORT = [line for line in TINY if line.startswith(("trainer", "data", "schedule", "augment", "checkpoint"))]
TWO = ["trainer.strategy=ddp", "trainer.devices=2"]


def settings(corpus: Path, model: Path, run_dir: Path, *overrides: str) -> Any:
    given = [*SHORT, *tone_corpus(corpus), f"init.from={model}", f"run_dir={run_dir}", *LORA, *overrides]
    return with_parts(settings_with(*given), given)


def adapt(corpus: Path, model: Path, run_dir: Path, *overrides: str) -> Path:
    """Train an adapter, and return the run folder."""
    train(settings(corpus, model, run_dir, *overrides))
    return run_dir


@pytest.fixture(scope="module")
def adapted(fluent: Path, tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that trained an adapter of the model in `fluent` for six steps.

    The learning rate is high enough to change the transcripts.
    """
    run_dir = tmp_path_factory.mktemp("lora") / "run"
    hot = ["optimizer.lr=0.3", "schedule.warmup_steps=0", "trainer.max_steps=6", "trainer.check_val_every_n_epoch=1"]
    return adapt(tones, fluent / "run", run_dir, *hot, "checkpoint.select=last")


def texts(recognizer: Any, corpus: Path) -> list[str]:
    return [transcript.text for _, transcript in recognizer.recognize(read_manifest(corpus / "test.jsonl"))]


def test_a_bundle_contains_only_adapters_and_names_its_base(adapted: Path, fluent: Path) -> None:
    weights, base = (load_file(folder / "bundle" / "weights.safetensors") for folder in (adapted, fluent / "run"))
    assert all(re.fullmatch(r"encoder\.blocks\..*\.lora_[ab]", name) for name in weights)
    assert sum(map(torch.numel, weights.values())) < 0.2 * sum(map(torch.numel, base.values()))
    assert all(weights[name].any() for name in weights if name.endswith("_b")), "all adapters have changed"
    config = json.loads((adapted / "bundle" / "config.json").read_text())
    assert config.keys() == {"format", *MODEL_KEYS, "adapter", "base"}
    assert config["base"]["source"] == str(fluent / "run")
    assert config["base"]["sha256"] in (adapted / "bundle" / "README.md").read_text()


def test_checkpoints_contain_only_adapters_and_their_optimizer_state(adapted: Path) -> None:
    checkpoint = torch.load(next((adapted / "checkpoints").glob("step=6*.ckpt")), weights_only=True)
    assert all(name.endswith((".lora_a", ".lora_b")) for name in checkpoint["state_dict"])
    [optimizer] = checkpoint["optimizer_states"]
    assert len(optimizer["state"]) == len(checkpoint["state_dict"])


def test_a_bundle_with_its_base_gives_the_results_of_the_run(
    adapted: Path, fluent: Path, tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(tones / "test.jsonl"), "--output-dir", str(tmp_path / "out")]
    assert evaluate_main([str(adapted), "--base", str(fluent / "run"), *given]) == 0
    counts = json.loads((tmp_path / "out" / "test.wer.json").read_text())
    results = json.loads((adapted / "results.json").read_text())["test"]
    assert counts["wer"] == results["wer"]
    before = load_recognizer(fluent / "run")
    assert texts(before, tones) != texts(asr.load_recognizer(adapted, base=fluent / "run"), tones), (
        "the adapter must change transcripts"
    )
    capsys.readouterr()
    audio = read_manifest(tones / "test.jsonl")[0].audio_filepath
    for source in (adapted, adapted / "bundle", next((adapted / "checkpoints").glob("step=6*.ckpt"))):
        assert transcribe_main([str(source), str(audio), "--base", str(fluent / "run" / "bundle")]) == 0
    assert len(set(capsys.readouterr().out.splitlines())) == 1

    bulk = ["--parts", "--output-dir", str(tmp_path / "parts"), "--base", str(fluent / "run")]
    assert transcribe_main([str(adapted), str(tones / "test.jsonl"), *bulk]) == 0
    [part] = (tmp_path / "parts").glob("part-*.jsonl")
    in_bulk = [json.loads(line)["text"] for line in part.read_text().splitlines()]
    assert sorted(in_bulk) == sorted(texts(asr.load_recognizer(adapted, base=fluent / "run"), tones))


@pytest.mark.parametrize("replaced", ["base", "adapter"])
def test_merging_does_not_replace_its_base_or_its_adapter(
    replaced: str, adapted: Path, fluent: Path, tmp_path: Path
) -> None:
    folders = {"base": fluent / "run" / "bundle", "adapter": adapted / "bundle"}
    for name, folder in folders.items():
        shutil.copytree(folder, tmp_path / name / "bundle")
    output = tmp_path / replaced / "bundle"
    before = {path: path.read_bytes() for path in output.iterdir()}
    with refused(InputError, "--output"):
        merge_main([str(tmp_path / "adapter"), "--base", str(tmp_path / "base"), "-o", str(output)])
    assert {path: path.read_bytes() for path in output.iterdir()} == before


def test_a_merged_bundle_is_a_whole_model_with_equal_outputs(
    adapted: Path, fluent: Path, tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    merged = tmp_path / "merged"
    given = [str(adapted), "--base", str(fluent / "run"), "-o", str(merged)]
    for _ in range(2):  # the second bundle replaces the first
        assert merge_main(given) == 0
        assert capsys.readouterr().out == f"{merged}: {adapted} merged into {fluent / 'run'}\n"
    assert json.loads((merged / "config.json").read_text()).keys() == {"format", *MODEL_KEYS}
    with_base = load_recognizer(adapted, base=fluent / "run")
    assert texts(load_recognizer(merged), tones) == texts(with_base, tones)
    base, whole = (
        load_file(fluent / "run" / "bundle" / "weights.safetensors"),
        load_file(merged / "weights.safetensors"),
    )
    assert whole.keys() == base.keys()
    own = load_file(adapted / "bundle" / "weights.safetensors")
    for name, weight in base.items():
        layer = name.removesuffix(".weight")
        update = own[f"{layer}.lora_b"] @ own[f"{layer}.lora_a"] * 2 if f"{layer}.lora_a" in own else 0.0
        torch.testing.assert_close(whole[name], weight + update, rtol=0, atol=1e-6)
    assert "> | weights | last of the run" in (merged / "README.md").read_text()
    finetuned = adapt(tones, merged, tmp_path / "again", "trainer.max_steps=2", "corpus.test=[]")
    assert (finetuned / "bundle").is_dir(), "a merged bundle can be adapted again"


def test_a_share_of_the_base_is_mixed_into_the_merged_weights(
    adapted: Path, fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(adapted), "--base", str(fluent / "run")]
    assert merge_main([*given, "-o", str(tmp_path / "whole")]) == 0
    assert merge_main([*given, "-o", str(tmp_path / "mixed"), "--share", "0.3"]) == 0
    assert capsys.readouterr().out.endswith(
        f"merged into {fluent / 'run'}, with a share of 0.3 of the base in each weight\n"
    )
    base, whole, mixed = (
        load_file(folder / "weights.safetensors")
        for folder in (fluent / "run" / "bundle", tmp_path / "whole", tmp_path / "mixed")
    )
    for name, weight in mixed.items():
        expected = (0.7 * whole[name].double() + 0.3 * base[name].double()).to(weight.dtype)
        torch.testing.assert_close(weight, expected, rtol=0, atol=1e-7)
    assert any(not torch.equal(mixed[name], whole[name]) for name in mixed)
    assert "`python -m asr.merge`, with a share of 0.3 of the base" in (tmp_path / "mixed" / "README.md").read_text()
    for share in ("1", "-0.1", "nan"):
        with pytest.raises(SystemExit):
            merge_main([*given, "-o", str(tmp_path / "refused"), "--share", share])
        assert mentions(capsys.readouterr().err, f"--share; got {share}")
    assert not (tmp_path / "refused").exists()


def test_the_server_loads_a_bundle_with_its_base(adapted: Path, fluent: Path, tones: Path) -> None:
    utterance = read_manifest(tones / "test.jsonl")[0]
    expected = load_recognizer(adapted, base=fluent / "run").transcribe(utterance.audio_filepath).text
    with serving(adapted, "--base", fluent / "run") as server:
        answer = httpx.post(f"{server.address}/transcribe", files={"file": Path(utterance.audio_filepath).read_bytes()})
    assert answer.json()["text"] == expected


@pytest.mark.slow
def test_an_adapter_bundle_is_exported_together_with_its_base(
    adapted: Path, fluent: Path, tones: Path, tmp_path: Path
) -> None:
    assert export_main([str(adapted), "--base", str(fluent / "run"), "-o", str(tmp_path / "exported")]) == 0
    with_base = load_recognizer(adapted, base=fluent / "run")
    assert texts(load_recognizer(tmp_path / "exported"), tones) == texts(with_base, tones)


def error_of(call: Any, *arguments: str) -> str:
    with pytest.raises(InputError) as error:
        call([*arguments])
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: {}, "adapter ... tensors ... none"),
        (lambda weights: {name: weight.long() for name, weight in weights.items()}, "lora_a ... torch.int64"),
        (lambda weights: {name: weight * torch.nan for name, weight in weights.items()}, "lora_a ... NaN"),
    ],
)
def test_an_adapter_without_usable_tensors_is_refused(
    change: Any, message: str, adapted: Path, fluent: Path, tmp_path: Path
) -> None:
    shutil.copytree(adapted / "bundle", tmp_path / "bundle")
    weights = load_file(tmp_path / "bundle" / "weights.safetensors")
    save_file(change(weights), tmp_path / "bundle" / "weights.safetensors")
    with refused(InputError, message):
        load_recognizer(tmp_path / "bundle", base=fluent / "run")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda own, base: {name: torch.full_like(weight, 1e30) for name, weight in own.items()}, "NaN"),
        (lambda own, base: own | {"head.ctc.linear.bias": base["head.ctc.linear.bias"] + 1}, "head.ctc.linear.bias"),
        (lambda own, base: own | {"encoder.new": torch.ones(2)}, "encoder.new"),
        (lambda own, base: {name: own[name] for name in own if not name.startswith(min(own)[:-6])}, "lora_a"),
    ],
    ids=["a product that overflows", "a weight of the base", "a weight of no model", "a layer is missing"],
)
def test_an_adapter_is_refused_unless_it_has_the_tensors_that_training_gives_it_and_finite_products(
    change: Any, message: str, adapted: Path, fluent: Path, tones: Path, tmp_path: Path
) -> None:
    folder, base = shutil.copytree(adapted / "bundle", tmp_path / "bundle"), fluent / "run"
    weights = load_file(folder / "weights.safetensors"), load_file(base / "bundle" / "weights.safetensors")
    save_file(change(*weights), folder / "weights.safetensors")
    for command, *more in (merge_main, "-o", tmp_path / "new"), (export_main, "-o", tmp_path / "new"):
        assert mentions(error_of(command, str(folder), "--base", str(base), *map(str, more)), message)
    assert mentions(error_of(evaluate_main, str(folder), str(tones / "test.jsonl"), "--base", str(base)), message)
    assert not (tmp_path / "new").exists()


def test_an_absent_or_different_base_is_refused_in_one_line(
    adapted: Path, fluent: Path, tones: Path, tmp_path: Path
) -> None:
    manifest, run = str(tones / "test.jsonl"), str(adapted)
    checkpoint = str(next((fluent / "run" / "checkpoints").iterdir()))
    for command, *given in (
        (evaluate_main, run, manifest),
        (tune_main, run, manifest),
        (convert_main, run, "--to", "nemo", "-o", str(tmp_path / "x.nemo")),
        (average_main, checkpoint, "--start", run, "--output-dir", str(tmp_path / "x")),
    ):
        message = error_of(command, *given)
        assert f"{adapted}" in message
        assert mentions(message, "needs its base")
        assert f"python -m asr.merge {adapted}" in message
    with refused(InputError, "needs its base", cure="--base MODEL -o FOLDER"):
        train(settings(tones, adapted, tmp_path / "run"))
    other = shutil.copytree(fluent / "run" / "bundle", tmp_path / "other")
    weights = load_file(other / "weights.safetensors")
    name = min(weights)
    save_file(weights | {name: weights[name] + 1e-6}, other / "weights.safetensors")
    message = error_of(evaluate_main, run, manifest, "--base", str(other))
    assert mentions(message, "other ... base ... SHA-256")
    assert mentions(error_of(evaluate_main, run, manifest, "--base", run), "needs its base")
    whole = str(fluent / "run")
    assert mentions(error_of(evaluate_main, whole, manifest, "--base", whole), "whole model ... --base")


def test_an_adapter_in_a_run_with_its_merged_model_is_refused_with_the_path_of_that_model(
    adapted: Path, tmp_path: Path
) -> None:
    shutil.copytree(adapted / "bundle", tmp_path / "bundle")
    (tmp_path / MERGED).mkdir()
    with refused(InputError, "needs its base", cure=str(tmp_path / MERGED)):
        load_recognizer(tmp_path)


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ({"sha256": "0" * 64, "source": "../../secret"}, "in training ... '../../secret'"),
        ({"sha256": "0" * 64, "source": "hf://stranger/model"}, "in training ... 'hf://stranger/model'"),
        ({"sha256": "0" * 64, "source": "\x1b[2J" + "a" * 500}, "in training ... \\x1b[2Jaaa"),
        ({"sha256": "../" * 20, "source": "x"}, "keys adapter"),
        ({"sha256": "0" * 64}, "keys adapter"),
        ({"sha256": "0" * 64, "source": "x", "path": "y"}, "keys adapter"),
        (None, "keys adapter"),
        (["x"], "keys adapter"),
    ],
)
def test_the_base_named_by_an_untrusted_bundle_is_neither_opened_nor_fetched(
    base: Any, message: str, adapted: Path, fluent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(adapted / "bundle", tmp_path / "bundle")
    config = json.loads((folder / "config.json").read_text()) | {"base": base}
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("asr.core.hub.download.download", lambda text: pytest.fail("it is fetched"))
    with pytest.raises(InputError) as error:
        asr.load_recognizer(folder)
    assert mentions(str(error.value), message)
    assert str(error.value).isprintable()
    with refused(InputError, "base"):
        asr.load_recognizer(folder, base=fluent / "run")


@pytest.mark.parametrize("adapter", [{"name": "os"}, {"name": "lora"}, "lora", None, 3])
def test_an_untrusted_adapter_can_name_only_components_of_asr(
    adapter: Any, adapted: Path, fluent: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(adapted / "bundle", tmp_path / "bundle")
    config = json.loads((folder / "config.json").read_text()) | {"adapter": adapter}
    (folder / "config.json").write_text(json.dumps(config))
    with refused(InputError, "adapter"):
        asr.load_recognizer(folder, base=fluent / "run")


def test_a_damaged_adapter_is_reported_in_one_line(adapted: Path, fluent: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(adapted / "bundle", tmp_path / "bundle")
    weights = load_file(folder / "weights.safetensors")
    layer = min(weights).removesuffix(".lora_a")
    save_file(
        {name: weight for name, weight in weights.items() if name != f"{layer}.lora_b"}, folder / "weights.safetensors"
    )
    with refused(InputError, f"2 ... {layer}"):
        asr.load_recognizer(folder, base=fluent / "run")
    (folder / "weights.safetensors").write_bytes((folder / "weights.safetensors").read_bytes()[:-9])
    with refused(InputError, "bundle is damaged"):
        asr.load_recognizer(folder, base=fluent / "run")


def test_the_mean_of_checkpoints_is_an_adapter_with_the_mean_weights(fluent: Path, tones: Path, tmp_path: Path) -> None:
    longer = ["trainer.max_epochs=3", "trainer.check_val_every_n_epoch=1", "checkpoint.keep=3", "corpus.test=[]"]
    run_dir = adapt(tones, fluent / "run", tmp_path / "run", *longer)
    assert average_main([str(run_dir), "--last", "2", "--output-dir", str(tmp_path / "mean")]) == 0
    checkpoints = sorted(
        (run_dir / "checkpoints").glob("*wer*.ckpt"), key=lambda path: int(path.stem.split("=")[1].split("-")[0])
    )
    states = [torch.load(path, weights_only=True)["state_dict"] for path in checkpoints[-2:]]
    mean = load_file(tmp_path / "mean" / "weights.safetensors")
    for name, weight in mean.items():
        torch.testing.assert_close(weight, (states[0][f"model.{name}"] + states[1][f"model.{name}"]) / 2)
    load_recognizer(tmp_path / "mean", base=fluent / "run")
    message = error_of(average_main, str(run_dir), "--start", str(fluent / "run"), "--output-dir", str(tmp_path / "x"))
    assert mentions(message, "is an adapter ... --start ... asr.merge --share")


def test_weights_trained_beside_an_adapter_are_stored_with_the_statistics_of_their_norms(
    fluent: Path, tones: Path, tmp_path: Path
) -> None:
    listed = ["adapter.trained=['head.*','*.convolution.norm.weight']", "trainer.max_steps=3"]
    run_dir = adapt(tones, fluent / "run", tmp_path / "run", *listed)
    weights, base = (load_file(folder / "bundle" / "weights.safetensors") for folder in (run_dir, fluent / "run"))
    others = {name for name in weights if "lora" not in name}
    norms = {name for name in base if re.search(r"convolution\.norm\.(weight|running|num)", name)}
    assert others == norms | {name for name in base if name.startswith("head.")}
    assert all(not torch.equal(weights[name], base[name]) for name in others)
    results = json.loads((run_dir / "results.json").read_text())["test"]
    merge_main([str(run_dir), "--base", str(fluent / "run"), "-o", str(tmp_path / "merged")])
    evaluate_main([str(tmp_path / "merged"), str(tones / "test.jsonl"), "--output-dir", str(tmp_path / "out")])
    assert json.loads((tmp_path / "out" / "test.wer.json").read_text())["wer"] == results["wer"]


def test_frozen_adapters_remain_zero(fluent: Path, tones: Path, tmp_path: Path) -> None:
    short = ["trainer.max_steps=2", "corpus.test=[]"]
    run_dir = adapt(tones, fluent / "run", tmp_path / "run", "init.frozen=[encoder.blocks.0.*]", *short)
    weights = load_file(run_dir / "bundle" / "weights.safetensors")
    for name, weight in weights.items():
        if name.endswith("_b"):
            assert bool(weight.any()) == name.startswith("encoder.blocks.1."), name


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["init.from=null"], "adapter=lora ... init.from=MODEL"),
        (
            ["init.frozen=[encoder.blocks.0.*]", "init.frozen_steps=3"],
            "init.frozen_steps ... adapter=lora",
        ),
        (["init.frozen=[*]"], "init.frozen ... leave weights"),
        (["head=ctc"], "adapter.trained ... head.linear.weight"),
        (
            ["head=ctc", "adapter.trained=['head.*']"],
            "model ... head.ctc.linear.bias",
        ),
        (["adapter.modules=[encoder.blocks.*.depthwise]"], "adapter.modules ... linear layers"),
        (["adapter.rank=0"], "adapter.rank ... whole number"),
    ],
)
def test_settings_that_are_incompatible_with_an_adapter_are_reported_in_one_line(
    overrides: list[str], message: str, fluent: Path, tones: Path, tmp_path: Path
) -> None:
    with refused(InputError, message):
        adapt(tones, fluent / "run", tmp_path / "run", *overrides)


RESUMED = ["trainer.max_steps=7", "checkpoint.every_steps=3", "adapter.dropout=0.1", "optimizer.layer_decay=0.8"]


@pytest.mark.parametrize(
    ("how", "world_size"),
    [
        ([], 1),
        pytest.param(["ema.decay=0.9"], 1, marks=pytest.mark.slow),
        pytest.param(["trainer.precision=bf16-mixed", "gradient_checkpointing=true"], 1, marks=pytest.mark.slow),
        pytest.param(["ema.decay=0.9", *TWO], 2, marks=pytest.mark.slow),
    ],
    ids=["plain", "moving average", "bf16 and recomputed", "two processes"],
)
def test_a_killed_and_resumed_run_is_bit_identical_to_an_undisturbed_one(
    how: list[str], world_size: int, fluent: Path, tones: Path, tmp_path: Path
) -> None:
    def begin(folder: str, **before: Any) -> int:
        given = as_mapping(settings(tones, fluent / "run", tmp_path / folder, *RESUMED, "num_threads=1", *how))
        return finish(start(given, tmp_path / "log", world_size=world_size, **before))

    assert begin("whole") == 0, (tmp_path / "log").read_text()
    assert begin("parts", before=die_after_the_first_checkpoint) == -signal.SIGKILL, (tmp_path / "log").read_text()
    assert begin("parts") == 0, (tmp_path / "log").read_text()
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert [step for step, _ in resumptions(parts)] == [3]
    assert bundle(parts) == bundle(whole)
    assert metrics(parts) == metrics(whole)
    assert examples(parts) == examples(whole)
    assert load_file(whole / "bundle" / "weights.safetensors")["encoder.blocks.0.attention.qkv.lora_b"].any()


def test_a_run_resumes_only_from_its_own_base(fluent: Path, tones: Path, tmp_path: Path) -> None:
    model = shutil.copytree(fluent / "run" / "bundle", tmp_path / "model")
    config = partial(settings, tones, model, tmp_path / "run", *RESUMED)
    killed = start(as_mapping(config()), tmp_path / "first.log", before=die_after_the_first_checkpoint)
    assert finish(killed) == -signal.SIGKILL
    weights = load_file(model / "weights.safetensors")
    save_file(weights | {min(weights): weights[min(weights)] + 1e-6}, model / "weights.safetensors")
    assert finish(start(as_mapping(config()), tmp_path / "other.log")) == 1
    assert re.search(r"Changed: fitted\.init\.from: '\w+' -> '\w+'\.", (tmp_path / "other.log").read_text())
    assert finish(start(as_mapping(config("adapter.rank=3")), tmp_path / "rank.log")) == 1
    assert "adapter.rank: 2 -> 3" in (tmp_path / "rank.log").read_text()


def test_an_adapter_trains_in_bfloat16(fluent: Path, tones: Path, tmp_path: Path) -> None:
    short = ["trainer.max_steps=4", "trainer.precision=bf16-mixed", "optimizer.lr=0.01"]
    run_dir = adapt(tones, fluent / "run", tmp_path / "run", *short)
    weights = load_file(run_dir / "bundle" / "weights.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert all(weight.isfinite().all() for weight in weights.values())
    assert json.loads((run_dir / "results.json").read_text())["test"]["wer"] < 0.5
