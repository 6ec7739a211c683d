"""Prompts: the label of an utterance, such as its language, changes what the model recognises.

The corpus has two languages with the same sounds, tones, and different letters. Only the label tells them apart.
"""

import asyncio
import json
import logging
import math
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from torch import Tensor

from asr.align import main as align
from asr.base.audio.load import load_waveform
from asr.components.decode.greedy import Greedy
from asr.convert import main as convert
from asr.core.build import build_features, build_labels, build_model, build_tokenizer, check_components, component
from asr.core.checkpoint.bundle import Bundle, replace_bundle
from asr.core.checkpoint.load import fitted_files, load_recognizer, model_config
from asr.core.data.batch import Example, collate
from asr.core.data.dataset import Item, SpeechDataset
from asr.core.data.labels import Labels
from asr.core.data.manifest import Utterance, read_manifest, write_manifest
from asr.core.data.training_set import TrainingSet
from asr.core.data.utterances import Utterances
from asr.core.data.waveforms import WaveformFeatures, collate_waveforms
from asr.core.objective.recognition import TrainableRecognizer
from asr.core.recognition.cached_stream import CachedStream, encode_chunks
from asr.core.recognition.captions import StreamSettings
from asr.core.recognition.confidence import UNCALIBRATED
from asr.core.recognition.model import Model
from asr.core.recognition.recognizer import Recognizer
from asr.core.recognition.streaming import Stream
from asr.core.run.initialization import with_parts
from asr.errors import InputError
from asr.evaluate import main as evaluate
from asr.export import main as export
from asr.interfaces import Encoded
from asr.train import train
from asr.transcribe import main as transcribe
from tests.conftest import PATIENCE, TINY, made_once, resolved, settings_with, tone_corpus
from tests.live import events, live, pcm, say, text
from tests.processes import bundle, die_at_save, finish, metrics, resumptions, start
from tests.refusals import mentions, refused
from tests.serving import Server, serving
from tests.tones import sentences, speak, write_corpus

TO_B = str.maketrans("abcdef", "bcdefa")  # language b spells each sound with another letter
PROMPT = ["prompt=label", "corpus.labels=[language]", "prompt.hidden_dim=64"]
LANGUAGES = Utterances.of([Utterance("a.wav", 1.0, "a", name, labels={"language": name}) for name in "ab"])


def in_two_languages(folder: Path, sizes: dict[str, int]) -> None:
    """Write manifests whose utterances are in language a and b in turn."""
    texts = {split: sentences(size, seed=seed) for seed, (split, size) in enumerate(sizes.items(), start=1)}
    write_corpus(folder, texts)
    for split in sizes:
        utterances = read_manifest(folder / f"{split}.jsonl")
        both = [
            replace(each, labels={"language": "ab"[row % 2]}, text=each.text.translate(TO_B) if row % 2 else each.text)
            for row, each in enumerate(utterances)
        ]
        write_manifest(folder / f"{split}.jsonl", both)


@pytest.fixture(scope="session")
def bilingual(fluent: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus in two languages; its folder `run` has a run that started from the model of `fluent`, of language a."""

    def make(folder: Path) -> None:
        in_two_languages(folder, {"train": 128, "valid": 8, "test": 40})
        train_from(fluent / "run", folder, folder / "run", "trainer.max_epochs=12", "optimizer.lr=8e-3")

    return made_once(tmp_path_factory, "bilingual", make)


def train_from(model: Path, corpus: Path, run_dir: Path, *overrides: str) -> None:
    """Fine-tune a model, whose sizes the network has."""
    others = [override for override in TINY if not override.startswith("encoder.")]
    chosen = ["corpus.labels=[language]", "prompt=label", "prompt.hidden_dim=64"]
    chosen += [f"init.from={model}", "trainer.check_val_every_n_epoch=12", *others, *overrides]
    run = [*chosen, *tone_corpus(corpus), f"run_dir={run_dir}"]
    train(with_parts(settings_with(*run), run))


def fresh(*overrides: str) -> Model:
    """Return a model with random weights that knows the languages a and b."""
    torch.manual_seed(0)
    config = resolved(*TINY, *PROMPT, "head=ctc", *overrides)
    tokenizer, features, labels = build_tokenizer(config), build_features(config), build_labels(config)
    tokenizer.fit(["abcdef "])
    features.normalize.fit([torch.randn(50, features.dim)])
    labels.fit(LANGUAGES)
    return build_model(config, tokenizer, features, labels)


def batch_of(model: Model, lengths: Sequence[int], languages: Sequence[str | None]) -> Any:
    generator = torch.Generator().manual_seed(1)
    examples = [
        Example(
            Utterance("a.wav", 1.0, "ab", f"{row}", labels={} if language is None else {"language": language}),
            torch.randn(frames, model.features.dim, generator=generator),
            torch.tensor([1, 2]),
        )
        for row, (frames, language) in enumerate(zip(lengths, languages, strict=True))
    ]
    return collate(examples, labels=model.labels)


def share_of_wrong_texts(recognizer: Recognizer, utterances: Sequence[Utterance]) -> float:
    results = list(recognizer.recognize(utterances))
    return sum(utterance.text != transcript.text for utterance, transcript in results) / len(results)  # type: ignore


def test_the_label_decides_between_languages_that_sound_alike(bilingual: Path) -> None:
    recognizer = load_recognizer(bilingual / "run")
    assert json.loads((bilingual / "run" / "bundle" / "labels.json").read_text()) == {"language": {"a": 1, "b": 2}}
    utterances = read_manifest(bilingual / "test.jsonl", ["language"])
    assert share_of_wrong_texts(recognizer, utterances) < 0.2
    assert share_of_wrong_texts(recognizer, read_manifest(bilingual / "test.jsonl")) > 0.4, "without labels"
    for language, given in (("a", utterances[0]), ("b", utterances[1])):
        other = "b" if language == "a" else "a"
        text = recognizer.transcribe(given.audio_filepath, language=language).text
        assert text == given.text
        wrong = recognizer.transcribe(given.audio_filepath, language=other).text
        assert wrong.translate(TO_B) == text if other == "a" else wrong == text.translate(TO_B)


def test_results_of_the_run_use_the_labels_of_its_test_manifest(bilingual: Path) -> None:
    assert json.loads((bilingual / "run" / "results.json").read_text())["test"]["wer"] < 0.1


def test_evaluate_takes_the_labels_of_the_manifest_and_the_option_replaces_them(
    bilingual: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def wer_of(folder: str, *options: str) -> float:
        model, manifest = str(bilingual / "run"), str(bilingual / "test.jsonl")
        assert evaluate([model, manifest, "--output-dir", str(tmp_path / folder), *options]) == 0
        return float(json.loads((tmp_path / folder / "test.wer.json").read_text())["wer"])

    assert wer_of("labels") < 0.1
    assert "language" not in capsys.readouterr().err
    assert 0.4 < wer_of("option", "--language", "a") < 0.6, "half of the utterances are in language b"
    plain = tmp_path / "test.jsonl"
    write_manifest(plain, read_manifest(bilingual / "test.jsonl"))
    evaluate([str(bilingual / "run"), str(plain)])
    assert "40 of 40 utterances have no language that the model knows" in capsys.readouterr().err


def test_transcribe_takes_the_language_from_the_manifest_or_the_option(
    bilingual: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = read_manifest(bilingual / "test.jsonl")[:2]
    run = str(bilingual / "run")
    transcribe([run, str(bilingual / "test.jsonl")])
    lines = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert lines[first.id] == first.text
    assert lines[second.id] == second.text
    transcribe([run, second.audio_filepath, "--language", "a"])
    assert capsys.readouterr().out.split("\t")[1].strip().translate(TO_B) == second.text
    with refused(InputError, "--language ... a, b; got xx"):
        transcribe([run, second.audio_filepath, "--language", "xx"])


def test_a_bulk_job_takes_the_language_from_the_manifest_or_the_option(bilingual: Path, tmp_path: Path) -> None:
    def texts(folder: str, *options: str) -> list[str]:
        output = tmp_path / folder
        transcribe(
            [str(bilingual / "run"), str(bilingual / "test.jsonl"), "--parts", "--output-dir", str(output), *options]
        )
        lines = [line for file in sorted(output.glob("part-*.jsonl")) for line in file.read_text().splitlines()]
        return [json.loads(line)["text"] for line in lines]

    first, second = read_manifest(bilingual / "test.jsonl")[:2]
    assert texts("labels")[:2] == [first.text, second.text]
    assert texts("a", "--language", "a")[1].translate(TO_B) == second.text
    with refused(InputError, "language: a -> b", cure="--output-dir"):
        texts("a", "--language", "b")


def test_chunks_of_a_long_recording_have_its_label(bilingual: Path) -> None:
    recognizer = load_recognizer(bilingual / "run")
    text = " ".join(sentences(30, seed=9))
    waveform = torch.from_numpy(speak(text))
    assert len(waveform) > 31 * 16_000
    as_b = recognizer.transcribe(waveform, sample_rate=16_000, language="b").text
    as_a = recognizer.transcribe(waveform, sample_rate=16_000, language="a").text
    # A chunk without its label would be in the other language: nearly all of its letters would differ. Where a word
    # ends may depend on the language, because the model has learnt from few utterances.
    assert SequenceMatcher(None, as_a.translate(TO_B), as_b, autojunk=False).ratio() > 0.95
    assert SequenceMatcher(None, as_a, as_b, autojunk=False).ratio() < 0.7


def test_align_scores_the_text_in_the_language_of_the_manifest(
    bilingual: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "two.jsonl"
    write_manifest(manifest, read_manifest(bilingual / "test.jsonl", ["language"])[:2])

    def scores(*options: str) -> list[float]:
        align([str(bilingual / "run"), str(manifest), "--worst", "0", *options])
        return [json.loads(line)["alternatives"][0]["score"] for line in capsys.readouterr().out.splitlines()]

    assert min(scores()) > -0.5
    wrong = scores("--language", "a")
    assert wrong[0] > -0.5 > wrong[1]


def test_a_stream_of_a_model_that_needs_the_whole_utterance_has_its_language(bilingual: Path) -> None:
    recognizer = load_recognizer(bilingual / "run")
    waveform = torch.from_numpy(speak("abc def fed"))
    streams = [Stream(recognizer, language=language) for language in ("b", "a", "b")]
    for stream in streams:
        stream.ears.hear(waveform, at_end=True)
    captions = streams[0].advance([stream.ears for stream in streams])
    texts = [" ".join(word.text for word in each.final) for each in captions]
    assert texts == [
        recognizer.transcribe(waveform, sample_rate=16_000, language=each).text for each in ("b", "a", "b")
    ]
    assert texts[0] != texts[1]


@torch.no_grad()
def test_streams_of_several_languages_share_a_batch_and_equal_the_whole_utterance() -> None:
    model = fresh("encoder=conformer_streaming_xs", "features/normalize=global_cmvn").eval()
    recognizer = Recognizer(model, Greedy(model.head, model.tokenizer, model.normalize), UNCALIBRATED)
    waveform = torch.from_numpy(speak("abc def fed"))
    steps: dict[str | None, list[Tensor]] = {language: [] for language in ("b", "a", None)}
    streams = {language: CachedStream(recognizer, StreamSettings(language=language)) for language in steps}
    for stream in streams.values():
        stream.hear(waveform, at_end=True)
    while all(stream.is_ready for stream in streams.values()):
        for rows, out in zip(steps.values(), encode_chunks([*streams.values()]), strict=True):
            rows.append(out)
    features = model.features(waveform)
    for language, rows in steps.items():
        conditions = model.labels.conditions([{} if language is None else {"language": language}])
        whole = model(features[None], torch.tensor([len(features)]), conditions).out[0]
        torch.testing.assert_close(torch.cat(rows), whole, rtol=0, atol=1e-5)
    assert not torch.allclose(torch.cat(steps["a"]), torch.cat(steps["b"]), atol=1e-3)


def test_the_server_recognises_recordings_in_its_language(bilingual: Path) -> None:
    second = read_manifest(bilingual / "test.jsonl")[1]
    with serving(bilingual / "run", "--language", "b") as server:
        assert server.post(Path(second.audio_filepath).read_bytes(), "b.flac").json()["text"] == second.text
        form = {"model": "run", "language": "b", "response_format": "verbose_json"}
        answer = httpx.post(
            f"{server.address}/v1/audio/transcriptions",
            files={"file": Path(second.audio_filepath).read_bytes()},
            data=form,
            timeout=PATIENCE,
        ).json()
        assert (answer["text"], answer["language"]) == (second.text, "b")


def test_a_request_names_its_language_and_the_server_only_the_default(bilingual: Path) -> None:
    first, second = read_manifest(bilingual / "test.jsonl", ["language"])[:2]  # languages a and b

    def form(server: Server, given: Utterance, language: str) -> httpx.Response:
        return httpx.post(
            f"{server.address}/v1/audio/transcriptions",
            files={"file": Path(given.audio_filepath).read_bytes()},
            data={"model": "run", "language": language, "response_format": "verbose_json"},
            timeout=PATIENCE,
        )

    with serving(bilingual / "run", "--language", "b") as server:
        for given, language in ((first, "a"), (second, "b"), (first, "a")):
            content = Path(given.audio_filepath).read_bytes()
            assert server.post(content, "a.flac", language=language).json()["text"] == given.text
            answer = form(server, given, language).json()
            assert (answer["text"], answer["language"]) == (given.text, language)
        refusal = server.post(content, "a.flac", language="xx")
        assert refusal.status_code == 422
        assert mentions(refusal.json()["detail"], "language ... a, b ... xx")
        assert form(server, first, "xx").status_code == 400


def test_a_stream_names_its_language(bilingual: Path) -> None:
    first, second = read_manifest(bilingual / "test.jsonl", ["language"])[:2]
    recognizer = load_recognizer(bilingual / "run")

    async def texts() -> list[str]:
        recognised = []
        async with live(recognizer) as server:
            for given, language in ((first, "a"), (second, "b")):
                rate = recognizer.model.features.sample_rate
                options = {"sample_rate": rate, "language": language}
                recognised.append(text(await say(server, [pcm(load_waveform(given.audio_filepath, rate))], options)))
            async with server.connect() as connection:
                await connection.send(json.dumps({"sample_rate": 16_000, "language": "xx"}))
                [refusal] = await events(connection)
                assert "xx" in refusal["error"]
        return recognised

    assert asyncio.run(texts()) == [first.text, second.text]


def test_an_exported_model_recognises_in_the_language_of_the_export(
    bilingual: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with refused(InputError, "--language ... a, b; got xx"):
        export([str(bilingual / "run"), "-o", str(tmp_path / "onnx"), "--language", "xx"])
    paths = [each.audio_filepath for each in read_manifest(bilingual / "test.jsonl")[:6]]
    recognizer = load_recognizer(bilingual / "run")
    for language, options in (("b", ["--language", "b"]), (None, [])):
        assert export([str(bilingual / "run"), "-o", str(tmp_path / "onnx"), *options]) == 0
        assert ("--language" in capsys.readouterr().out) == (language is None)
        programs = load_recognizer(tmp_path / "onnx")
        assert programs.model.labels.names == []
        expected = [transcript.text for transcript in recognizer.transcribe(paths, language=language)]
        assert [transcript.text for transcript in programs.transcribe(paths)] == expected


@pytest.mark.slow
def test_the_step_of_an_exported_stream_recognises_in_the_language_of_the_export(tmp_path: Path) -> None:
    """The export compares each program, also the step, with the model; a step without the prompt would differ."""
    streaming = [
        "encoder=conformer_streaming_xs",
        "encoder.dim=16",
        "encoder.num_layers=2",
        "encoder.block.num_heads=2",
    ]
    model, config = fresh(*streaming), resolved(*TINY, *PROMPT, "head=ctc", *streaming)
    files = fitted_files(model.tokenizer, model.features, model.labels)
    replace_bundle(tmp_path / "streaming", Bundle(model_config(config), files, model.state_dict(), ""))
    assert export([str(tmp_path / "streaming"), "-o", str(tmp_path / "onnx"), "--language", "a"]) == 0
    assert (tmp_path / "onnx" / "step.onnx").exists()


def test_conversion_of_a_ctc_model_with_a_prompt_to_nemo_is_refused(bilingual: Path, tmp_path: Path) -> None:
    with refused(InputError, "head ... transducer; got ctc_intermediate"):
        convert([str(bilingual / "run"), "--to", "nemo", "-o", str(tmp_path / "model.nemo")])


def test_a_language_without_a_prompt_that_knows_it_is_refused_by_name(fluent: Path, bilingual: Path) -> None:
    with refused(InputError, "language ... language", cure="Leave out language"):
        load_recognizer(fluent / "run").transcribe(np.zeros(16_000, np.float32), sample_rate=16_000, language="a")
    with refused(InputError, "language ... a, b; got xx"):
        load_recognizer(bilingual / "run").transcribe(np.zeros(16_000, np.float32), sample_rate=16_000, language="xx")
    with refused(InputError, "language ... a, b; got xx"):
        Stream(load_recognizer(bilingual / "run"), language="xx")


def test_a_model_without_a_prompt_has_the_tensors_that_it_always_had(fluent: Path) -> None:
    recognizer = load_recognizer(fluent / "run")
    assert recognizer.model.labels.names == []
    assert not any(name.startswith("prompt") for name in recognizer.model.state_dict())
    assert not (fluent / "run" / "bundle" / "labels.json").exists()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_an_utterance_with_a_label_has_the_same_output_alone_and_in_any_batch(dtype: torch.dtype) -> None:
    model = fresh().to(dtype).eval()
    lengths, languages = (41, 64, 17, 30), ("a", None, "b", "b")
    batch = batch_of(model, lengths, languages)
    assert batch.conditions["language"].tolist() == [1, 0, 2, 2]
    padding = torch.arange(64) >= batch.feature_lengths[:, None]
    features = batch.features.to(dtype).masked_fill(padding[:, :, None], math.nan)
    encoded = model.encode(replace(batch, features=features))
    for row, (frames, language) in enumerate(zip(lengths, languages, strict=True)):
        [alone] = [
            model.encode(replace(batch_of(model, [frames], [language]), features=features[row : row + 1, :frames]))
        ]
        tolerance = 1e-5 if dtype == torch.float32 else 1e-10
        torch.testing.assert_close(encoded.out[row, : alone.lengths[0]], alone.out[0], rtol=0, atol=tolerance)


@torch.no_grad()
def test_the_label_is_concatenated_to_each_frame_and_taps_see_the_output_before_the_prompt() -> None:
    model = fresh("head=ctc_intermediate").eval()
    batch = batch_of(model, [64], ["b"])
    encoded, plain = model.encode(batch), model.encoder(batch.features, batch.feature_lengths, model.head.taps)
    prompt: Any = model.prompt
    first, _, last = prompt.layers
    for frame in range(plain.out.shape[1]):
        joined = torch.cat([plain.out[0, frame], torch.tensor([0.0, 0.0, 1.0])])  # ids: unknown, a, b
        torch.testing.assert_close(encoded.out[0, frame], last(first(joined).relu()))
    for block, before in plain.blocks.items():
        assert torch.equal(encoded.blocks[block].out, before.out)


def test_all_views_of_an_utterance_have_its_label() -> None:
    model = fresh("head=ctc_consistency")
    batch = batch_of(model, [64, 41], ["b", None])
    twice = replace(
        batch, features=batch.features.repeat(2, 1, 1), feature_lengths=batch.feature_lengths.repeat(2), num_frames=()
    )
    encoded = model.encode(twice)
    assert encoded.conditions["language"].tolist() == [2, 0, 2, 0]
    assert model.head.losses(encoded, batch.targets)["loss"].isfinite().all()


def test_the_share_of_labels_that_become_unknown_is_the_dropout() -> None:
    prompt = component("prompt", resolved("prompt=label", "corpus.labels=[language]", "prompt.dropout=0.25")["prompt"])
    made = prompt(4, 2)
    encoded = Encoded(torch.zeros(4000, 1, 4), torch.ones(4000), {}, {"language": torch.ones(4000, dtype=torch.int64)})
    known = made.eval()(encoded).out
    assert (known == known[:1]).all()
    unknown = made(encoded._replace(conditions={"language": torch.zeros(4000, dtype=torch.int64)})).out
    trained = made.train()(encoded).out
    dropped = (trained == unknown).flatten(1).all(dim=1)
    assert ((trained == known).flatten(1).all(dim=1) ^ dropped).all()
    assert 0.22 < dropped.float().mean() < 0.28


def test_every_weight_of_a_prompt_is_trained_in_bfloat16() -> None:
    model = fresh("head=ctc_attention")
    batch = batch_of(model, [64, 41, 30], ["a", "b", None])
    with torch.autocast("cpu", torch.bfloat16):
        losses = model.head.losses(model.encode(batch), batch.targets)
    losses["loss"].sum().backward()
    gradients = [weight.grad for weight in model.prompt.parameters()]  # type: ignore[union-attr]
    assert all(gradient is not None and gradient.isfinite().all() and gradient.any() for gradient in gradients)


def test_labels_are_numbered_alphabetically_and_the_room_of_the_network_is_checked() -> None:
    labels = Labels(["language"])
    labels.fit(LANGUAGES)
    assert labels.values("language") == ["a", "b"]
    assert labels.conditions([{"language": "b"}, {"language": "c"}, {}])["language"].tolist() == [2, 0, 0]
    loaded = Labels(["language"])
    loaded.load(labels.files())
    assert loaded.values("language") == ["a", "b"]
    assert fresh("prompt.num_labels=5").prompt.num_ids == 6  # type: ignore[union-attr]
    with refused(InputError, "prompt.num_labels ... 2; got 1"):
        fresh("prompt.num_labels=1")


@pytest.mark.parametrize(
    "content",
    [
        *(b"[]", b"{}", b"{", b'{"language": ["a"]}', b'{"language": {}}', b'{"language": {"": 1}}'),
        *(b'{"language": {"a": -1}}', b'{"language": {"a": 1.0}}', b'{"language": {"a": true}}'),
        *(b'{"language": {"auto": 0}}', b'{"language": {"a": 1000000000000}}'),
    ],
)
def test_a_damaged_file_of_labels_is_refused(content: bytes) -> None:
    with refused(InputError, "labels.json"):
        Labels(["language"]).load({"labels.json": content})


def test_several_values_may_have_one_id_and_unknown_may_have_a_name() -> None:
    labels = Labels(["language"])
    labels.load({"labels.json": b'{"language": {"auto": 0, "en": 1, "en-US": 1, "de": 7}}'})
    given = [{"language": value} for value in ("auto", "en", "en-US", "de", "xx")]
    assert labels.conditions(given)["language"].tolist() == [0, 1, 1, 7, 0]
    assert (labels.values("language"), labels.last_id("language")) == (["auto", "en", "en-US", "de"], 7)
    labels.check("language", "auto", "--language")


def test_a_prompt_needs_its_label_in_the_corpus(bilingual: Path, tmp_path: Path) -> None:
    with refused(InputError, "corpus.labels ... language; got []", cure="corpus.labels=[language]"):
        settings_with("prompt=label")
    check_components(resolved(*PROMPT))
    absent = ["prompt=label", "corpus.labels=[lang]", "prompt.label=lang"]
    with refused(InputError, "prompt.label ... lang"):
        train(settings_with(*TINY, *absent, *tone_corpus(bilingual), f"run_dir={tmp_path / 'run'}"))


def test_training_counts_the_utterances_without_a_label_and_refuses_other_labels_on_resume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_two_languages(tmp_path, {"train": 12, "valid": 2, "test": 2})
    rows = read_manifest(tmp_path / "train.jsonl", ["language"])
    write_manifest(tmp_path / "train.jsonl", [replace(rows[0], labels={}), *rows[1:]])
    run = [*TINY, *PROMPT, *tone_corpus(tmp_path), f"run_dir={tmp_path / 'run'}", "head=ctc", "trainer.max_epochs=1"]
    with caplog.at_level(logging.INFO):
        train(settings_with(*run))
    assert "language is one of a, b" in caplog.text
    assert f"training: 1 of 12 utterances have no language that the model knows: {rows[0].id}" in caplog.text
    write_manifest(tmp_path / "train.jsonl", rows)
    with refused(InputError, "manifests.train"):
        train(settings_with(*run, "trainer.max_epochs=2", "resume.allow=[trainer.max_epochs]"))


def test_fine_tuning_keeps_the_prompt_and_its_labels(bilingual: Path, tmp_path: Path) -> None:
    train_from(bilingual / "run", bilingual, tmp_path, "trainer.max_steps=1", "optimizer.lr=1e-9")
    tuned, before = load_recognizer(tmp_path), load_recognizer(bilingual / "run")
    assert tuned.model.labels.values("language") == ["a", "b"]
    for name, weight in before.model.prompt.state_dict().items():  # type: ignore[union-attr]
        torch.testing.assert_close(tuned.model.prompt.state_dict()[name], weight, rtol=0, atol=1e-6)  # type: ignore[union-attr]


def test_batches_of_waveforms_and_made_up_batches_have_conditions(bilingual: Path) -> None:
    model = fresh()
    utterances = read_manifest(bilingual / "train.jsonl", ["language"])
    plan = settings_with("augment=[]").data.plan
    training_set = TrainingSet(utterances, model.features, model.reference, None, 0, plan)
    items = [Item(0, row, 1.0) for row in range(3)]
    assert training_set.made_up(items, torch.Generator()).conditions["language"].tolist() == [1, 2, 1]
    waveforms = SpeechDataset(utterances, WaveformFeatures(model.features), model.reference)  # type: ignore[arg-type]
    batch = collate_waveforms(waveforms.__getitems__(items), model.labels)
    assert batch.rest.conditions["language"].tolist() == [1, 2, 1]


def test_a_rank_without_utterances_takes_part_in_the_gradients_of_the_prompt() -> None:
    model = fresh()
    trainable: Any = SimpleNamespace(model=model)
    TrainableRecognizer.idle(trainable).sum().backward()
    gradients = [weight.grad for weight in model.parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


@pytest.mark.slow
def test_a_killed_and_resumed_run_with_a_prompt_is_bit_identical(tmp_path: Path) -> None:
    in_two_languages(tmp_path, {"train": 48, "valid": 8, "test": 8})
    run = [*TINY, *PROMPT, *tone_corpus(tmp_path), "num_threads=1", "trainer.max_epochs=2", "checkpoint.every_steps=2"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"

    def started(run_dir: Path, before: Callable[[], object] | None = None) -> int:
        return finish(start(resolved(*run, f"run_dir={run_dir}"), tmp_path / "log", before=before))

    assert started(whole) == 0
    assert started(parts, partial(die_at_save, 2)) == -signal.SIGKILL
    assert started(parts) == 0
    assert resumptions(parts)[0][0] > 0
    assert bundle(parts) == bundle(whole)
    assert metrics(parts) == metrics(whole)
