"""Nemotron 3.5: the language as a prompt, from and to transformers and NeMo, equal for each language."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import sentencepiece
import torch
from torch import Tensor
from transformers import AutoProcessor, Nemotron3_5AsrForRNNT

from asr import Stream
from asr.apps.convert.nemo.convert import from_nemo
from asr.apps.convert.prompt import take_prompt
from asr.convert import main
from asr.core.checkpoint.bundle import read_bundle
from asr.core.checkpoint.load import load_recognizer
from asr.core.data.manifest import Utterance
from asr.core.data.token_counts import count_tokens
from asr.core.data.utterances import Utterances
from asr.errors import InputError
from asr.evaluate import main as evaluate
from asr.interfaces import Hypothesis, Span
from tests import nemotron
from tests.nemo import member as tar_member
from tests.nemo import nemo_files, sentencepiece_model, write_tar
from tests.nemotron import LANGUAGES, LOOK_AHEADS, NUM_PROMPTS
from tests.parakeet import SAMPLE_RATE, change
from tests.refusals import refused
from tests.test_convert import assert_equal, assert_refused
from tests.test_nemotron import WAVEFORMS, causal_config, causal_state, nemo_archive, prompt_state


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny model (`theirs`), its bundle (`ours`), and the folder converted back (`back`)."""
    folder = tmp_path_factory.mktemp("nemotron")
    nemotron.save(folder / "theirs", has_prompt=True)
    assert main([str(folder / "theirs"), "-o", str(folder / "ours")]) == 0
    assert main([str(folder / "ours"), "--to", "huggingface", "-o", str(folder / "back")]) == 0
    return folder


@torch.no_grad()
def theirs(folder: Path, waveform: Tensor, number: int) -> tuple[Tensor, str]:
    """Return the output of the encoder's projection (T', J), in float64, and the text, for a language's number."""
    model = Nemotron3_5AsrForRNNT.from_pretrained(folder, attn_implementation="sdpa").double().eval()
    processor = AutoProcessor.from_pretrained(folder)
    inputs = processor.feature_extractor(waveform.numpy(), sampling_rate=SAMPLE_RATE, return_tensors="pt")
    inputs = {**inputs, "input_features": inputs["input_features"].double(), "prompt_ids": torch.tensor([number])}
    frames = model.get_audio_features(**inputs, num_lookahead_tokens=LOOK_AHEADS[0]).pooler_output[0]
    sequence = model.generate(**inputs, num_lookahead_tokens=LOOK_AHEADS[0]).sequences[0].tolist()
    ids = [token for token in sequence if token != model.config.blank_token_id]
    text = processor.tokenizer.decode(ids, group_tokens=False)
    return frames - model.encoder_projector.bias, " ".join(text.split())


@pytest.mark.parametrize("name", ["theirs", "back"])
@pytest.mark.parametrize("language", ["en", "en-US", "de", "fr-FR", "auto", None])
@torch.no_grad()
def test_frames_and_texts_of_each_language_equal_those_of_transformers(
    language: str | None, name: str, converted: Path
) -> None:
    recognizer, waveform = load_recognizer(converted / "ours"), WAVEFORMS[0]
    frames, text = theirs(converted / name, waveform, LANGUAGES[language or "auto"])
    [transcript] = recognizer.transcribe([waveform], sample_rate=SAMPLE_RATE, language=language)
    assert transcript.text == text != ""
    model: Any = recognizer.model
    features = model.features(waveform)[None]
    labels = [{} if language is None else {"language": language}]
    encoded = model.double()(
        features.double(), torch.tensor([features.shape[1]]), conditions=model.labels.conditions(labels)
    )
    actual = encoded.out[0] @ model.head.joiner.of_frames.weight.T
    torch.testing.assert_close(actual, frames[: len(actual)], rtol=0, atol=1e-2)  # features of transformers are float32


def test_the_language_changes_the_text(converted: Path) -> None:
    recognizer = load_recognizer(converted / "ours")
    texts = {
        recognizer.transcribe(WAVEFORMS[0], sample_rate=SAMPLE_RATE, language=language).text
        for language in ("en", "de", "fr-FR", "auto")
    }
    assert len(texts) > 1


def test_a_stream_has_its_language(converted: Path) -> None:
    recognizer, waveform = load_recognizer(converted / "ours"), WAVEFORMS[0]
    for language in ("en", "de", None):
        expected = recognizer.transcribe(waveform, sample_rate=SAMPLE_RATE, language=language)
        reader = Stream(recognizer, language=language, endpoint_seconds=None, settled_seconds=None)
        captions = [*map(reader.feed, waveform.split(1_000)), reader.finish()]
        assert " ".join(word.text for each in captions for word in each.final) == expected.text


def test_converting_back_keeps_tensors_and_languages_and_a_second_time_gives_the_same_files(
    converted: Path, tmp_path: Path
) -> None:
    before, back = (safetensors.torch.load_file(converted / name / "model.safetensors") for name in ("theirs", "back"))
    assert before.keys() == back.keys()
    for name in before:
        assert "prompt" not in name or torch.equal(before[name], back[name]), name
    processor = json.loads((converted / "back" / "processor_config.json").read_text())
    assert (processor["prompt_dictionary"], processor["num_prompts"]) == (LANGUAGES, NUM_PROMPTS)
    assert processor["processor_class"] == "Nemotron3_5AsrProcessor"
    assert main([str(converted / "back"), "-o", str(tmp_path / "ours")]) == 0
    assert main([str(tmp_path / "ours"), "--to", "huggingface", "-o", str(tmp_path / "back")]) == 0
    for path in (converted / "back").iterdir():
        if path.name != "README.md":
            assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes(), path.name


def prompted_config(**changes: Any) -> dict[str, Any]:
    """Return the config of a tiny causal model with a prompt in NeMo's form."""
    defaults = {"initialize_prompt_feature": True, "num_prompts": NUM_PROMPTS, "prompt_dictionary": LANGUAGES}
    return causal_config("rnnt") | {"model_defaults": defaults | changes}


def test_an_archive_of_nemo_converts_and_converts_back(tmp_path: Path) -> None:
    weights = causal_state("rnnt") | prompt_state(NUM_PROMPTS)
    path = nemo_archive(tmp_path, prompted_config(), weights)
    before = from_nemo(path).bundle
    for source, name in ((path, "ours"), (tmp_path / "ours.nemo", "again")):
        assert main([str(source), "-o", str(tmp_path / name)]) == 0
        assert main([str(tmp_path / name), "--to", "nemo", "-o", str(tmp_path / f"{name}.nemo")]) == 0
    assert (tmp_path / "ours.nemo").read_bytes() == (tmp_path / "again.nemo").read_bytes()
    back = from_nemo(tmp_path / "ours.nemo").bundle
    assert back.config == before.config
    assert_equal(back.weights, before.weights)
    ids = json.loads(before.files["labels.json"])["language"]
    dim = before.config["encoder"]["dim"]
    for language, number in LANGUAGES.items():
        columns = [before.weights["prompt.layers.0.weight"][:, dim + ids[language]]]
        assert torch.equal(columns[0], weights["prompt_kernel.0.weight"][:, dim + number]), language


def test_the_language_of_a_manifest_or_of_the_option_is_used(
    converted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import soundfile

    lines = []
    for number, (waveform, language) in enumerate(zip(WAVEFORMS, ("de", "en", None), strict=True)):
        soundfile.write(tmp_path / f"{number}.wav", waveform.numpy(), SAMPLE_RATE, subtype="FLOAT")
        key = {} if language is None else {"language": language}
        duration = len(waveform) / SAMPLE_RATE
        lines.append({"audio_filepath": f"{number}.wav", "duration": duration, "text": "a", **key})
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, lines)))
    recognizer = load_recognizer(converted / "ours")
    for option, languages in ((None, ("de", "en", None)), ("fr-FR", 3 * ("fr-FR",))):
        report = tmp_path / "out"
        arguments = [str(converted / "ours"), str(tmp_path / "test.jsonl"), "--output-dir", str(report)]
        assert evaluate([*arguments, *([] if option is None else ["--language", option])]) == 0
        expected = [
            recognizer.transcribe(waveform, sample_rate=SAMPLE_RATE, language=language).text
            for waveform, language in zip(WAVEFORMS, languages, strict=True)
        ]
        scored = (report / "test.utterances.jsonl").read_text().splitlines()
        assert [json.loads(line)["hypothesis"] for line in scored] == expected
    with refused(InputError, "--language ... de-DE; got 'xx'"):
        evaluate([*arguments, "--language", "xx"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_dictionary": None}, "prompt_dictionary; got None"),
        ({"prompt_dictionary": {"auto": 5, "de": 6}}, "prompt_dictionary ... 'de' ... 6"),
        ({"prompt_dictionary": {"auto": 5, "de": -1}}, "prompt_dictionary ... 'de' ... -1"),
        ({"prompt_dictionary": {"auto": 5, "de": True}}, "prompt_dictionary ... 'de' ... True"),
        ({"prompt_dictionary": {"de": 1, "en": 2}}, "prompt_dictionary ... auto"),
        ({"prompt_dictionary": {"auto": 5}}, "prompt_dictionary ... auto"),
        ({"num_prompts": 1}, "num_prompts; got 1"),
        ({"num_prompts": "six"}, "num_prompts; got 'six'"),
        ({"num_prompts": 7}, "prompt_kernel.0.weight"),
    ],
)
def test_a_damaged_prompt_of_nemo_is_refused_in_one_line(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    weights = causal_state("rnnt") | prompt_state(NUM_PROMPTS)
    assert_refused(nemo_archive(tmp_path, prompted_config(**changes), weights), message, tmp_path)


def test_a_default_prompt_that_is_not_auto_is_refused(tmp_path: Path) -> None:
    folder = nemotron.save(tmp_path / "theirs", has_prompt=True)
    change(folder / "config.json", default_prompt_id=1)
    assert_refused(folder, "default_prompt_id ... auto; got 1", tmp_path)


@pytest.mark.parametrize("auto", [0, 3, 101, 127])
def test_each_of_128_languages_has_an_id_of_its_own(auto: int) -> None:
    numbers = {f"language {number}": number for number in range(128) if number != auto}
    prompt = take_prompt(numbers | {"auto": auto}, 128, 2048)
    ids = json.loads(prompt.files["labels.json"])["language"]
    assert sorted(ids.values()) == list(range(128))
    assert ids["auto"] == 0


def test_a_prompt_that_is_not_one_of_languages_is_not_converted(converted: Path, tmp_path: Path) -> None:
    bundle = read_bundle(converted / "ours")
    shutil.copytree(converted / "ours", tmp_path / "ours")
    settings = bundle.config["prompt"] | {"label": "domain"}
    change(tmp_path / "ours" / "config.json", prompt=settings)
    change(tmp_path / "ours" / "labels.json", domain=json.loads(bundle.files["labels.json"])["language"])
    labels = json.loads((tmp_path / "ours" / "labels.json").read_text())
    (tmp_path / "ours" / "labels.json").write_text(json.dumps({"domain": labels["domain"]}))
    with refused(InputError, "prompt.label=language ... domain"):
        main([str(tmp_path / "ours"), "--to", "huggingface", "-o", str(tmp_path / "theirs")])


def test_a_known_language_called_auto_is_not_converted(converted: Path, tmp_path: Path) -> None:
    shutil.copytree(converted / "ours", tmp_path / "ours")
    change(tmp_path / "ours" / "labels.json", language={"auto": 1, "de": 2})
    with refused(InputError, "auto ... language"):
        main([str(tmp_path / "ours"), "--to", "huggingface", "-o", str(tmp_path / "theirs")])


TAGS = ("<en-US>", "<de-DE>")


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bundle of a model whose tokenizer has tags of languages."""
    folder = tmp_path_factory.mktemp("tagged")
    model = sentencepiece_model(tags=TAGS)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    settings = prompted_config()
    settings["joint"]["vocabulary"] = [processor.id_to_piece(number) for number in range(processor.vocab_size())]
    files = nemo_files(settings, causal_state("rnnt") | prompt_state(NUM_PROMPTS)) | {"0123_tokenizer.model": model}
    path = write_tar(folder / "tagged.nemo", [tar_member(name, content) for name, content in files.items()])
    assert main([str(path), "-o", str(folder / "ours")]) == 0
    return folder / "ours"


def test_a_target_ends_with_the_tag_of_its_language(tagged: Path) -> None:
    model = load_recognizer(tagged).model
    encode, reference = model.tokenizer.encode, model.reference
    for language, tag in (("en", "<en-US>"), ("en-US", "<en-US>"), ("de", "<de-DE>")):
        tokens = reference.tokens("the fox", language)
        assert tokens == encode(f"the fox {tag}") != encode("the fox")
        assert model.tokenizer.names[tokens[-1]] == tag
        assert model.tokenizer.decode(tokens) == "the fox"
    for language in ("fr-FR", "auto", "xx", None):  # no tag, no language, unknown
        assert reference.tokens("the fox", language) == encode("the fox")


def test_tags_count_as_tokens_of_an_utterance(tagged: Path) -> None:
    reference = load_recognizer(tagged).model.reference
    languages = ("en", "fr-FR")
    utterances = [Utterance("a.wav", 9.0, "the fox", name, labels={"language": name}) for name in languages]
    counts = count_tokens(Utterances.of(utterances), reference).num_tokens.tolist()
    assert counts == [len(reference.tokens("the fox", "en")), len(reference.tokens("the fox", None))]
    assert counts[0] > counts[1]


def test_a_transcript_has_the_language_of_the_last_tag(tagged: Path) -> None:
    recognizer = load_recognizer(tagged)
    tokenizer = recognizer.model.tokenizer
    tokens = [*tokenizer.encode("the <de-DE> fox <en-US>"), *tokenizer.encode("dog")]
    hypothesis = Hypothesis(tokens, 0.0, [Span(frame, frame + 1) for frame in range(len(tokens))], [0.9] * len(tokens))
    recognizer.search = lambda evidence, values=None, biasings=None: [[hypothesis]]  # type: ignore[method-assign]
    transcript = recognizer.transcribe(WAVEFORMS[0], sample_rate=SAMPLE_RATE)
    assert (transcript.text, transcript.language) == ("the fox dog", "en-US")
    assert transcript.as_dict()["language"] == "en-US"
    assert "language" not in replace(transcript, language=None).as_dict()
