"""Tuning on a dev set: weights of the search, calibrated confidence, and a bundle that stores both."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from asr.apps.language_models.selection import fewest_errors
from asr.apps.language_models.tuning import EncodedUtterance, search_values
from asr.components.decode.fusion.shallow_fusion import LM_WEIGHTS, WORD_INSERTION_BONUSES
from asr.core.checkpoint.bundle import read_bundle
from asr.core.checkpoint.load import load_recognizer
from asr.core.data.manifest import Utterance, read_manifest
from asr.core.recognition.confidence import UNCALIBRATED
from asr.core.recognition.long_form import Segment
from asr.errors import InputError
from asr.interfaces import Tunable
from asr.ngram import main as ngram
from asr.transcribe import main as transcribe
from asr.tune import main as tune
from tests.crashing import Killed, dies_at
from tests.refusals import check_refusal, refused

ALWAYS = ["--attach", "always"]  # these dev sets are too small for a significant gain
TUNED = ["README.md", "characters.json", "confidence.json", "config.json", "lm.arpa", "weights.safetensors"]


@pytest.fixture
def bundle(fluent: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fluent / "run" / "bundle", tmp_path / "bundle"))


@pytest.fixture
def dev(fluent: Path) -> Path:
    return fluent / "valid.jsonl"


def model_of(path: Path, texts: list[str], order: int = 2) -> Path:
    """Make a language model."""
    text = path.with_suffix(".text")
    text.write_text("".join(f"{sentence}\n" for sentence in texts))
    assert ngram([str(text), "-o", str(path), "--order", str(order)]) == 0
    return path


@pytest.fixture
def lm(dev: Path, tmp_path: Path) -> Path:
    return model_of(tmp_path / "dev.arpa", [utterance.text for utterance in read_manifest(dev)])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def decode_of(bundle: Path) -> dict[str, Any]:
    return dict(json.loads((bundle / "config.json").read_text())["decode"])


# The search.


class Weights(NamedTuple):
    """The values of a trial."""

    lm_weight: float
    word_insertion_bonus: float
    unknown_score: float = 0.0


OWN = Weights(0.5, 1.0)


def stub(
    errors: Callable[[Weights], int], own: Weights = OWN, three: bool = False
) -> tuple[Any, list[EncodedUtterance]]:
    """Make an utterance of 100 words, and a recogniser that makes `errors` in it; `own` are the values it stores."""
    tunable = {
        "lm_weight": Tunable(own.lm_weight, LM_WEIGHTS),
        "word_insertion_bonus": Tunable(own.word_insertion_bonus, WORD_INSERTION_BONUSES),
        **({"unknown_score": Tunable(own.unknown_score, (-4.0, -2.0, 0.0))} if three else {}),
    }

    def search(evidence: int, values: dict[str, float]) -> list[list[int]]:
        """Return one hypothesis for the only segment; its single token is the number of wrong words at these values."""
        assert evidence == 2, "the evidence of the segment"
        wrong = errors(Weights(**values))
        return [[wrong]]

    def text(wrong: int) -> str:
        return " ".join(["wrong"] * wrong + ["right"] * (100 - wrong))

    recognizer = SimpleNamespace(
        model=SimpleNamespace(scored_by=str),
        decode=SimpleNamespace(tunable=tunable),
        search=search,
        evidence=lambda encoded: int(encoded.lengths),
        text=text,
    )
    utterance = Utterance("x.wav", 1.0, " ".join(["right"] * 100), "x")
    return recognizer, [EncodedUtterance(utterance, [Segment(0.0, torch.zeros(2, 3))])]


def two_valleys(weights: Weights) -> int:
    """Return errors with two minima; the deeper one is far from the start, so a descent ends in the shallower one."""
    shallow = 10 + 8 * abs(weights.lm_weight - 0.5) + 3 * abs(weights.word_insertion_bonus - 2)
    deep = 5 + 30 * abs(weights.lm_weight - 2.0) + 10 * abs(weights.word_insertion_bonus + 1)
    return min(100, round(min(shallow, deep)))


def test_with_two_tuned_values_all_combinations_are_tried_once() -> None:
    seen: list[Weights] = []
    search = search_values(*stub(two_valleys), lambda values, counts: seen.append(Weights(**values)))
    assert search.values[fewest_errors(search.trials)] == {"lm_weight": 2.0, "word_insertion_bonus": -1.0}
    assert [Weights(**values) for values in search.values] == seen
    assert len(set(seen)) == len(seen) == (len(LM_WEIGHTS) - 1) * len(WORD_INSERTION_BONUSES) + 1
    assert search.trials.words[:, 0].tolist() == [two_valleys(weights) for weights in seen]
    assert search.trials.strength.tolist() == [weights.lm_weight for weights in seen]
    assert search.num_words == 100


def test_the_first_trial_is_without_the_language_model() -> None:
    """Without the language model all tuned values are 0, so there is only one such trial, not one for each bonus."""
    for three in (False, True):
        search = search_values(*stub(two_valleys, three=three), lambda values, counts: None)
        assert set(search.values[0].values()) == {0.0}
        assert [values["lm_weight"] for values in search.values].count(0.0) == 1


@pytest.mark.parametrize("three", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_the_start_of_the_search_does_not_change_its_result(seed: int, three: bool) -> None:
    """Values that an earlier tuning has stored do not change the result of tuning.

    The number of errors is random for each combination of values, so a search that started from other values could end
    elsewhere.
    """

    def errors(weights: Weights) -> int:
        return hash((weights, seed)) % 101

    first, other = (
        search_values(*stub(errors, own, three), lambda values, counts: None)
        for own in (Weights(0.5, 1.0, -4.0), Weights(2.0, 4.0, 0.0))
    )
    assert first.values == other.values
    assert first.trials.words.tolist() == other.trials.words.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_changing_the_chosen_lm_weight_and_one_other_value_gives_no_improvement(seed: int) -> None:
    def errors(weights: Weights) -> int:
        return 0 if weights.lm_weight == 0 else hash((weights, seed)) % 101

    def without_zero(weights: Weights) -> int:
        return errors(weights) if weights.lm_weight else 100

    search = search_values(*stub(without_zero, three=True), lambda values, counts: None)
    best = Weights(**search.values[fewest_errors(search.trials)])
    for weight in LM_WEIGHTS[1:]:
        for bonus in WORD_INSERTION_BONUSES:
            assert without_zero(Weights(weight, bonus, best.unknown_score)) >= without_zero(best)
        for unknown in (-4.0, -2.0, 0.0):
            assert without_zero(Weights(weight, best.word_insertion_bonus, unknown)) >= without_zero(best)


# The command.


def test_a_tuned_bundle_uses_its_weights_language_model_and_calibration_after_it_is_moved(
    bundle: Path, dev: Path, lm: Path, fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune([str(bundle), str(dev), "--lm", str(lm), "--beam", "4", *ALWAYS]) == 0
    lines = capsys.readouterr().out.splitlines()
    tried = [line for line in lines if line.startswith("LM weight ")]
    errors = [int(line.split()[-2]) for line in tried]
    assert len(tried) > 4
    taken = next(line.removeprefix("best choice: ") for line in lines if line.startswith("best choice: "))
    [chosen] = [number for line, number in zip(tried, errors, strict=True) if _weights(line) == _weights(taken)]
    assert chosen == int(taken.rpartition(": ")[2].split(",")[0])
    assert min(errors) <= chosen <= errors[0]
    assert any(line.startswith("confidence: ") for line in lines)
    assert lines[-1] == f"{bundle}: language model attached, confidence calibrated"

    assert sorted(contents(bundle)) == TUNED
    assert (bundle / "lm.arpa").read_bytes() == lm.read_bytes()
    decode = decode_of(bundle)
    fusion = decode["fusion"]
    assert (decode["name"], fusion["lm"], decode["beam_size"]) == ("beam", "lm.arpa", 4)
    assert (fusion["lm_weight"], fusion["word_insertion_bonus"], fusion["unknown_score"]) == _weights(taken)
    card = (bundle / "README.md").read_text()
    assert card.count("Tuned on valid.jsonl: beam search, LM weight ") == 1
    assert "A speech recogniser trained by" in card

    lm.unlink()
    moved = bundle.rename(tmp_path / "moved")
    recognizer = load_recognizer(moved)
    assert recognizer.decode.fusion.has_model
    assert tuple(number.value for number in recognizer.decode.tunable.values()) == _weights(taken)
    assert recognizer.calibration != UNCALIBRATED
    assert transcribe([str(moved), str(fluent / "test.jsonl")]) == 0
    assert transcribe([str(moved), str(fluent / "test.jsonl"), "--decode", "greedy"]) == 0
    assert transcribe([str(moved), str(fluent / "test.jsonl"), "--lm-weight", "0.1"]) == 0, (
        "the bundle has its own language model"
    )


def _weights(line: str) -> tuple[float, float, float]:
    """Return the numbers in a line `LM weight 0.50, word insertion bonus 0.00, unknown score -4.00…`."""
    words = line.replace(",", " ").replace(":", " ").split()
    return float(words[2]), float(words[6]), float(words[9])


def test_without_a_language_model_only_confidence_is_tuned(
    bundle: Path, dev: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = decode_of(bundle)
    assert tune([str(bundle), str(dev)]) == 0
    output = capsys.readouterr().out
    assert "no language model (--lm): no weights to tune" in output
    assert output.endswith(f"{bundle}: confidence calibrated; no language model attached\n")
    assert sorted(contents(bundle)) == [name for name in TUNED if name != "lm.arpa"]
    assert decode_of(bundle) == before == {"name": "greedy"}


def test_a_gain_within_the_noise_is_reported_and_attaches_nothing(
    bundle: Path, dev: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The language model's text is unrelated to the speech."""
    before = decode_of(bundle)
    lm = model_of(tmp_path / "other.arpa", ["zu za", "za zu za", "zo"])
    assert tune([str(bundle), str(dev), "--lm", str(lm), "--beam", "4"]) == 0
    output = capsys.readouterr().out
    assert "expected on unseen speech like the dev set, by cross-validation: " in output
    assert "The gain is not certain, so the decoder is not changed." in output
    assert output.endswith(f"{bundle}: confidence calibrated; no language model attached\n")
    assert sorted(contents(bundle)) == [name for name in TUNED if name != "lm.arpa"]
    assert decode_of(bundle) == before == {"name": "greedy"}
    assert "Tuned on valid.jsonl: greedy search, unchanged; confidence" in (bundle / "README.md").read_text()


def test_several_dev_sets_are_reported_separately(
    bundle: Path, dev: Path, lm: Path, fluent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [str(dev), str(fluent / "test.jsonl")]
    assert tune([str(bundle), *sets, "--lm", str(lm), "--beam", "4", *ALWAYS]) == 0
    lines = capsys.readouterr().out.splitlines()
    each = [line for line in lines if line.startswith(tuple(f"{path}: " for path in sets))]
    assert len(each) == 2
    before, after = (sum(int(line.split()[place]) for line in each) for place in (1, 4))
    taken = next(line for line in lines if line.startswith("best choice: "))
    assert after == int(taken.rpartition(": ")[2].split(",")[0])
    assert before == int(next(line for line in lines if line.startswith("LM weight  0.00")).split()[-2])
    assert "Tuned on valid.jsonl, test.jsonl: beam search" in (bundle / "README.md").read_text()


def test_a_spelling_model_is_stored_with_the_language_model(
    bundle: Path, dev: Path, tmp_path: Path, fluent: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{utterance.text}\n" for utterance in read_manifest(dev)))
    lm, spelling = tmp_path / "words.arpa", tmp_path / "letters.arpa"
    assert ngram([str(text), "-o", str(lm), "--spelling", str(spelling), "--order", "2"]) == 0
    assert tune([str(bundle), str(dev), "--lm", str(lm), "--spelling", str(spelling), "--beam", "4", *ALWAYS]) == 0
    assert sorted(contents(bundle)) == sorted([*TUNED, "spelling.arpa"])
    assert (bundle / "spelling.arpa").read_bytes() == spelling.read_bytes()
    lm.unlink(), spelling.unlink()
    recognizer = load_recognizer(bundle.rename(tmp_path / "moved"))
    assert list(recognizer.decode.tunable) == ["lm_weight", "word_insertion_bonus"]
    assert transcribe([str(tmp_path / "moved"), str(fluent / "test.jsonl")]) == 0


def test_repeated_tuning_starts_from_the_settings_of_the_bundle_and_may_replace_its_language_model(
    bundle: Path, dev: Path, lm: Path, tmp_path: Path
) -> None:
    assert tune([str(bundle), str(dev), "--lm", str(lm), "--beam", "4", *ALWAYS]) == 0
    once = contents(bundle)
    assert tune([str(bundle), str(dev), *ALWAYS]) == 0
    assert contents(bundle) == once, "equal dev set and model: no byte changes"

    other = model_of(tmp_path / "other.arpa", ["fa fa", "be be be", "fa be"])
    assert tune([str(bundle), str(dev), "--lm", str(other), "--lm-weight", "0.2", *ALWAYS]) == 0
    assert (bundle / "lm.arpa").read_bytes() == other.read_bytes()
    assert sorted(contents(bundle)) == TUNED
    assert (bundle / "README.md").read_text().count("Tuned on") == 1

    before = contents(bundle)
    with refused(InputError, "tuning ... --decode"):
        tune([str(bundle), str(dev), "--decode", "greedy"])
    assert contents(bundle) == before, "the bundle may have the only copy of the language model"


def test_a_run_folder_can_be_given_instead_of_its_bundle(fluent: Path, dev: Path, tmp_path: Path) -> None:
    shutil.copytree(fluent / "run" / "bundle", tmp_path / "run" / "bundle")
    assert tune([str(tmp_path / "run"), str(dev)]) == 0
    assert (tmp_path / "run" / "bundle" / "confidence.json").is_file()


def test_bad_utterances_of_a_dev_set_are_named_and_the_rest_is_used(
    bundle: Path, dev: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [
        json.dumps(
            {
                "audio_filepath": utterance.audio_filepath,
                "duration": utterance.duration,
                "text": utterance.text,
                "id": utterance.id,
            }
        )
        for utterance in read_manifest(dev)
    ]
    gone = json.dumps({"audio_filepath": "gone.wav", "duration": 1.0, "text": "ab", "id": "g"})
    (tmp_path / "some.jsonl").write_text("\n".join([*good[:6], gone, "{"]))
    assert tune([str(bundle), str(tmp_path / "some.jsonl")]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3
    check_refusal(errors[0], f"{tmp_path / 'some.jsonl'}:8 ... JSON")
    check_refusal(errors[1], f"error: g: {tmp_path / 'gone.wav'} ... no such file")
    check_refusal(errors[2], "2 of 8 utterances")
    assert (bundle / "confidence.json").is_file()


def silent(text: str) -> Callable[[Path, Path], list[str]]:
    """Return a function that writes a dev set of silence with a text."""

    def make(folder: Path, bundle: Path) -> list[str]:
        import numpy as np
        import soundfile

        soundfile.write(folder / "silence.wav", np.zeros(16000), 16000)
        (folder / "m.jsonl").write_text(
            json.dumps({"audio_filepath": "silence.wav", "duration": 1.0, "text": text}) + "\n"
        )
        return [str(bundle), str(folder / "m.jsonl")]

    return make


def with_file(option: str, content: bytes) -> Callable[[Path, Path], list[str]]:
    def make(folder: Path, bundle: Path) -> list[str]:
        (folder / "file").write_bytes(content)
        return [str(bundle), "DEV", option, str(folder / "file")]

    return make


def with_folder(name: str) -> Callable[[Path, Path], list[str]]:
    def make(folder: Path, bundle: Path) -> list[str]:
        (bundle / name).mkdir()
        return [str(bundle), "DEV"]

    return make


KENLM = b"mmap lm http://kheafield.com/code format version 5\n\0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (silent(""), "m.jsonl ... dev set"),
        (silent("ab cd"), "confidence ... none was recognised"),
        (
            with_file("--lm", KENLM),
            "language model ... ARPA",
        ),
        (with_file("--lm", b"text"), "language model ... ARPA"),
        (with_file("--lexicon", b""), "lexicon ... it has none"),
        (with_file("--hotwords", b""), "hotwords ... file has none"),
        (lambda folder, bundle: [str(bundle), "DEV", "--lm", "nowhere.arpa"], "nowhere.arpa ... No such file"),
        (lambda folder, bundle: [str(bundle), "DEV", "--lm-weight", "1"], "--lm-weight ... --lm"),
        (lambda folder, bundle: [str(bundle), "nowhere.jsonl"], "nowhere.jsonl: no such manifest"),
        (lambda folder, bundle: ["some.ckpt", "DEV"], "some.ckpt ... MODEL"),
        (lambda folder, bundle: [str(folder / "nowhere"), "DEV"], "model ... a run folder"),
        (with_folder("notes"), "folder to replace ... contains notes"),
    ],
)
def test_an_impossible_request_is_reported_in_one_line_before_the_search_and_the_bundle_does_not_change(
    bundle: Path, dev: Path, tmp_path: Path, arguments: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def searched(*_: Any) -> None:
        pytest.fail("the search, which takes hours, was begun")

    monkeypatch.setattr("asr.apps.language_models.tuning.search_values", searched)
    given = arguments(tmp_path, bundle)
    before = {path: path.read_bytes() for path in bundle.iterdir() if path.is_file()}
    with refused(InputError, message):
        tune([str(dev) if argument == "DEV" else argument for argument in given])
    assert {path: path.read_bytes() for path in bundle.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("call", [0, 3, 6, 7, 8, 9])
def test_after_a_kill_during_writing_the_old_or_new_bundle_is_intact_and_tuning_can_be_repeated(
    bundle: Path, dev: Path, lm: Path, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sorted(contents(bundle))
    options = [str(bundle), str(dev), "--lm", str(lm), "--beam", "2", *ALWAYS]
    with dies_at(call, monkeypatch), pytest.raises(Killed):
        tune(options)
    places = [place for place in (bundle, bundle.with_name(".bundle.replaced")) if place.is_dir()]
    assert places
    for place in places:
        read_bundle(place)
        assert sorted(contents(place)) in (whole, TUNED)
    assert tune(options) == 0
    assert sorted(contents(bundle)) == TUNED
    assert not any(path.name.startswith(".") for path in bundle.parent.iterdir())


def test_continuing_the_training_does_not_overwrite_a_tuned_bundle(fluent: Path, dev: Path, tmp_path: Path) -> None:
    from asr.core.run.folder import open_run_dir

    shutil.copytree(fluent / "run" / "bundle", tmp_path / "run" / "bundle")
    assert tune([str(tmp_path / "run"), str(dev)]) == 0
    before = contents(tmp_path / "run" / "bundle")
    with refused(InputError, "not contain ... asr.tune"):
        open_run_dir(tmp_path / "run")
    assert contents(tmp_path / "run" / "bundle") == before
