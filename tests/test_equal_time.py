"""benchmarks.equal_time trains each row of overrides for an equal time, and prints the results as one table."""

import random
from pathlib import Path

import pytest
import yaml

from asr.core.build import build_features, build_model, build_tokenizer
from benchmarks.equal_time.train import main, read_results, read_rows
from tests.conftest import TINY, resolved, tone_corpus
from tests.refusals import mentions

LETTERS = "abcdefghijklmnopqrstuvwxyz"
RECIPE = Path(__file__).parents[1] / "benchmarks" / "equal_time"
SENTENCES = [" ".join("".join(random.Random(9 * n + w).choices(LETTERS, k=6)) for w in range(9)) for n in range(100)]
SIZES = (0.8, 1.35)  # smallest and largest permitted size, relative to the first row's encoder


@pytest.mark.parametrize("file", sorted(path.name for path in RECIPE.glob("*.yaml")))
@pytest.mark.slow
def test_the_encoders_of_all_rows_have_similar_sizes(file: str) -> None:
    sizes = {}
    for name, overrides in read_rows(RECIPE / file).items():
        config = resolved(*overrides)
        tokenizer, features = build_tokenizer(config), build_features(config)
        tokenizer.fit(SENTENCES)
        model = build_model(config, tokenizer, features)
        sizes[name] = sum(weight.numel() for weight in model.encoder.parameters())
    first = next(iter(sizes.values()))
    assert all(SIZES[0] < size / first < SIZES[1] for size in sizes.values()), sizes


@pytest.mark.slow
def test_each_row_is_trained_once_and_has_a_line_in_the_table(
    tones: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.yaml"
    rows.write_text(
        yaml.safe_dump({"relu": ["encoder/block/activation=relu"], "gelu": ["encoder/block/activation=gelu"]})
    )
    command = [str(rows), "--minutes", "0.05", "--output-dir", str(tmp_path / "runs")]
    command += ["--overrides", *TINY, *tone_corpus(tones)]
    assert main([*command, "--only", "gelu"]) == 0
    assert list(read_results(tmp_path / "runs")) == ["gelu"]
    assert main(command) == 0
    results = read_results(tmp_path / "runs")
    assert list(results) == ["gelu", "relu"]
    assert all(result["steps"] > 1 for result in results.values())
    assert [line.split()[0] for line in capfd.readouterr().out.splitlines()[-2:]] == ["gelu", "relu"]


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("[a, b]", [], "of overrides"),
        ("a: {b: c}", [], "of overrides"),
        ("a: [", [], "YAML"),
        ("a: [seed=1]", ["--only", "b"], "--only ... name rows"),
        ("a: [seed=1]", ["--minutes", "0"], "--minutes; got 0"),
        ("a: [encoder=none_such]", [], "'train' ... 'encoder/none_such'"),
    ],
)
def test_invalid_rows_and_options_are_refused_in_one_line(
    content: str, arguments: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.yaml").write_text(content)
    command = [str(tmp_path / "rows.yaml"), "--minutes", "1", "--output-dir", str(tmp_path / "runs"), *arguments]
    assert main(command) == 1
    assert mentions(capfd.readouterr().err, message)
