"""Curves are read from metrics.csv; smoothed and thinned curves equal those of plain loops."""

import random
from pathlib import Path

import pytest

from asr.apps.web.curves import Curve, read_curves


def noisy(number: int) -> Curve:
    draw = random.Random(number)
    return Curve(list(range(1, number + 1)), [draw.gauss(0, 1) for _ in range(number)])


@pytest.mark.parametrize("number", [1, 2, 3, 10, 101])
@pytest.mark.parametrize("width", [1, 3, 7])
def test_a_smoothed_point_is_the_mean_of_equally_many_neighbours_on_both_sides(number: int, width: int) -> None:
    curve = noisy(number)
    for place, smoothed in enumerate(curve.smoothed(width).values):
        reach = (width - 1) // 2
        while place - reach < 0 or place + reach >= number:
            reach -= 1
        neighbours = curve.values[place - reach : place + reach + 1]
        assert smoothed == pytest.approx(sum(neighbours) / len(neighbours), abs=1e-12)


@pytest.mark.parametrize(("number", "buckets"), [(1, 5), (20, 5), (21, 5), (1000, 7), (99_999, 100)])
def test_a_thinned_curve_keeps_both_ends_and_the_extremes_of_every_interval(number: int, buckets: int) -> None:
    curve = noisy(number)
    thin = curve.thinned(buckets)
    points = list(zip(curve.steps, curve.values, strict=True))
    thinned_points = list(zip(thin.steps, thin.values, strict=True))
    assert thinned_points == [point for point in points if point in set(thinned_points)], (
        "a thinned curve must contain only points of the curve, in order"
    )
    assert len(thinned_points) <= 4 * buckets
    assert (thinned_points[0], thinned_points[-1]) == (points[0], points[-1])
    for interval in range(buckets):
        bucket_points = points[interval * number // buckets : (interval + 1) * number // buckets]
        for extreme in (min, max):
            assert not bucket_points or extreme(bucket_points, key=lambda point: point[1]) in thinned_points


def test_non_finite_numbers_are_dropped_and_counted_and_a_truncated_file_is_read_as_far_as_possible(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(
        "step,epoch,train/loss,valid/wer\r\n"
        "10,1.0,2.5,\r\n"
        "20,1.0,nan,\r\n"
        "30,1.0,inf,0.5\r\n"
        "forty,1.0,1.0,0.1\r\n"
        "\0\0\0\r\n"
        "50,2.0,1.2"
    )
    curves = read_curves(path)
    assert curves["train/loss"] == Curve([10, 50], [2.5, 1.2], not_finite=2)
    assert curves["valid/wer"] == Curve([30], [0.5])
    assert curves["epoch"].values == [1.0, 1.0, 1.0, 2.0]


@pytest.mark.parametrize("content", ["", "step\r\n", "step,train/loss\r\n", "a,b\r\n1,2\r\n", "step,train/loss\r\n1"])
def test_a_file_without_numbers_has_no_curves(content: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(content)
    assert read_curves(tmp_path / "metrics.csv") == {}
    assert read_curves(tmp_path / "absent.csv") == {}


def test_a_file_is_read_up_to_the_first_line_that_is_not_csv(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,train/loss\n1,2.5\n2," + "x" * 200_000 + "\n3,1.5\n")
    assert read_curves(path) == {"train/loss": Curve([1], [2.5])}
    path.write_text("x" * 200_000)
    assert read_curves(path) == {}
