"""Columns of data in each format that has columns: ids, speakers, times and channels are read, named or refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from asr.apps.finetune.collect import Collected, collect
from asr.apps.finetune.entry import MAX_OVERSHOOT, SourceOptions
from asr.core.data.manifest import known, read_manifest
from asr.core.data.split import describe, split
from asr.errors import InputError
from tests.refusals import mentions, refused
from tests.test_sources import RATE, SECONDS, problem, record, spans

FORMATS = ("table", "json", "audio_folder", "audio_folder_parquet", "parquet", "manifest")
Row = dict[str, Any]


def written(format: str, folder: Path, *rows: Row, **more: Any) -> tuple[Path, Row]:
    """Write rows, whose `audio` is a recording, in a format that has columns; return the source, and its options.

    `more` is in each row.
    """
    import pyarrow
    import pyarrow.parquet

    record(folder, *{row["audio"] for row in rows if not (folder / row["audio"]).exists()})
    rows = tuple({"text": "one", "duration": SECONDS} | row | more for row in rows)
    if format == "parquet":
        content = [row | {"audio": {"bytes": (folder / row["audio"]).read_bytes(), "path": None}} for row in rows]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(content), folder / "rows.parquet")
        return folder / "rows.parquet", {"audio_dir": folder / "out"}
    key = {"manifest": "audio_filepath", "table": "audio", "json": "audio"}.get(format, "file_name")
    rows = tuple({key if name == "audio" else name: value for name, value in row.items()} for row in rows)
    if format == "audio_folder_parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), folder / "metadata.parquet")
        return folder, {}
    path = folder / {"audio_folder": "metadata.csv", "table": "rows.csv"}.get(format, "rows.jsonl")
    if path.suffix == ".csv":
        values = [["" if value is None else str(value) for value in row.values()] for row in rows]
        path.write_text("\n".join(map(",".join, ([*rows[0]], *values))))
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return path, {}


def read(source: tuple[Path, Row]) -> Collected:
    problems: list[str] = []
    result = collect(source[0], SourceOptions(**source[1]), None, problems.append)
    assert problems == []
    return result


@pytest.mark.parametrize("format", FORMATS)
def test_a_column_id_that_repeats_is_no_id_of_utterances(format: str, tmp_path: Path) -> None:
    rows = [{"audio": f"{number}.wav", "id": number // 3, "text": f"text {number // 3}"} for number in range(6)]
    result = read(written(format, tmp_path, *rows))
    assert [each.text for each in result.utterances] == [row["text"] for row in rows]
    assert len({each.id for each in result.utterances}) == 6
    assert mentions(result.description, "ignored ... id (it repeats: '0')")


@pytest.mark.parametrize("format", FORMATS)
def test_unique_ids_are_kept_and_placeholders_are_none(format: str, tmp_path: Path) -> None:
    rows = [{"audio": "a.wav", "id": "first"}, {"audio": "b.wav", "id": "N/A"}, {"audio": "c.wav", "id": "nan"}]
    first, second, third = read(written(format, tmp_path, *rows)).utterances
    assert first.id == "first"
    assert len({second.id, third.id, "N/A", "nan"}) == 4


@pytest.mark.parametrize("format", FORMATS)
def test_one_recording_twice_with_one_id_is_refused(format: str, tmp_path: Path) -> None:
    if format == "parquet":
        pytest.skip("each row has a recording of its own")
    source, options = written(format, tmp_path, *[{"audio": "a.wav", "id": "x"}, {"audio": "a.wav", "id": "x"}])
    assert mentions(problem(source, None, **options), "unique ... 'x'")


def test_recordings_of_equal_names_in_two_folders_get_ids(tmp_path: Path) -> None:
    result = read(written("audio_folder", tmp_path, {"audio": "x/1.wav"}, {"audio": "y/1.wav"}))
    assert [each.id for each in result.utterances] == ["x/1.wav", "y/1.wav"]


@pytest.mark.parametrize("name", ["N/A", "None", "nan", " - ", "Unknown", "NULL", "<NA>", "[null]", "", None])
@pytest.mark.parametrize("format", FORMATS)
def test_a_placeholder_is_no_speaker(format: str, name: str | None, tmp_path: Path) -> None:
    rows = [{"audio": "a.wav", "speaker": "anna"}, {"audio": "b.wav", "speaker": name}]
    result = read(written(format, tmp_path, *rows))
    assert [each.speaker for each in result.utterances] == ["anna", None]
    assert "1 known speaker, 1 utterance of unknown" in result.description


@pytest.mark.parametrize(
    "name",
    [
        *("unknown_speaker", "Speaker unknown", "spk-unk", "no speaker", "anonymous", "not specified", "n.a", "#NULL!"),
        *("(none)", "\\N", "—", "---", "??", "_", "...", "[]", "''"),
    ],
)
def test_placeholders_may_have_signs_and_the_word_speaker(name: str) -> None:
    assert known(name) is None


@pytest.mark.parametrize(
    "name", ["A", "N", "no", "Nana", "speaker", "speaker_1", "spk_A", "0", "-1", "Nil Young", "他"]
)
def test_other_short_names_are_speakers(name: str) -> None:
    assert known(name) == name


def test_a_placeholder_in_a_manifest_is_no_speaker_in_training_and_evaluation(tmp_path: Path) -> None:
    row = {"audio_filepath": "a.wav", "duration": 1.0, "text": "one", "speaker": "N/A"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    assert read_manifest(tmp_path / "a.jsonl")[0].speaker is None


def test_parts_claim_other_speakers_only_if_all_speakers_are_known(tmp_path: Path) -> None:
    rows = [{"audio": f"{number}.wav", "text": f"text {number}", "speaker": f"s{number % 12}"} for number in range(60)]
    all_known = split(read(written("table", tmp_path, *rows)).utterances, seed=0)
    assert any("other speakers" in line for line in describe(all_known))
    for row in rows[::2]:
        row["speaker"] = "N/A"
    half = split(read(written("table", tmp_path, *rows)).utterances, seed=0)
    assert not any("other speakers" in line for line in describe(half))
    assert any("30 utterances" in line for line in describe(half))


TWO_PARTS = [(0.0, 0.75, "one"), (0.75, 1.0, "two")]


@pytest.mark.parametrize(
    ("names", "unit"),
    [
        (("onset", "offset"), 1.0),
        (("start", "end"), 1.0),
        (("begin", "stop"), 1.0),
        (("Start Time (s)", "End Time (s)"), 1.0),
        (("startTime", "endTime"), 1.0),
        (("start_ms", "end_ms"), 1000.0),
        (("begin_time_msec", "end_time_msec"), 1000.0),
        (("xmin", "xmax"), 1.0),
        (("segment_start", "segment_end"), 1.0),
        (("startOffset", "endOffset"), 1.0),
        (("wav_start", "wav_end"), 1.0),
    ],
)
@pytest.mark.parametrize("format", ["table", "json", "audio_folder", "audio_folder_parquet", "parquet"])
def test_starts_and_ends_are_read_by_any_usual_name(
    format: str, names: tuple[str, str], unit: float, tmp_path: Path
) -> None:
    start, end = names
    rows = [
        {"audio": "a.wav", "text": "one", start: 0.0, end: 0.75 * unit},
        {"audio": "a.wav", "text": "two", start: 0.75 * unit, end: 1.75 * unit},
    ]
    # The rows have the duration of the whole file, too.
    assert spans(read(written(format, tmp_path, *rows)).utterances) == TWO_PARTS


@pytest.mark.parametrize(
    "times",
    [
        {"start_sample": 0, "end_sample": 6000},
        {"start_frame": 0, "end_frame": 75},
        {"begin_hh_mm_ss": "00:00:00.0", "end_hh_mm_ss": "00:00:00.7"},
        {"end": 0.75},
        {"frame_offset": 100},
        {"t0": 0, "t1": 75},
        {"start_cs": 0, "end_cs": 75},
        {"video_start": 0.0, "video_end": 0.75},
        {"stopTrim": 0.75, "startTrim": 0.0},
        {"timestamp": "0.0-0.75"},
        {"segment": "0:00.00 --> 0:00.75"},
    ],
)
@pytest.mark.parametrize("format", FORMATS)
def test_times_that_are_not_understood_are_refused(format: str, times: Row, tmp_path: Path) -> None:
    path, options = written(format, tmp_path, {"audio": "a.wav"} | times)
    with pytest.raises(InputError) as raised:
        read((path, options))
    assert any(f"got {name} " in str(raised.value) for name in times)


@pytest.mark.parametrize(("name", "value"), [("timestamp", [0.0, 0.75]), ("interval", [0, 1]), ("times", (0.5, 1.5))])
@pytest.mark.parametrize("format", ["json", "manifest", "parquet"])
def test_a_start_and_an_end_in_one_value_are_refused(format: str, name: str, value: Any, tmp_path: Path) -> None:
    path, options = written(format, tmp_path, {"audio": "a.wav", name: value})
    with refused(InputError, name):
        read((path, options))


@pytest.mark.parametrize("length", ["length", "len"])
@pytest.mark.parametrize("start", ["start", "offset"])
def test_a_length_beside_a_start_needs_a_unit(start: str, length: str, tmp_path: Path) -> None:
    path, _ = written("json", tmp_path, {"audio": "a.wav", start: 0.5, length: 0.75})
    rows = path.read_text().replace('"duration"', '"size"')
    path.write_text(rows)
    with refused(InputError, length):
        read((path, {}))
    path.write_text(rows.replace(f'"{length}"', f'"{length}_s"'))
    assert spans(read((path, {})).utterances) == [(0.5, 0.75, "one")]


def test_dates_and_other_columns_are_no_times(tmp_path: Path) -> None:
    row = {"audio": "a.wav", "start_date": "2021-03-02", "from": "anna", "to": "bert", "text_length": 3}
    row |= {"start_char": 0, "end_char": 3, "start_year": 1990, "end_year": 1991, "timestamp": 1614592801, "length": 3}
    row |= {"segment": "Benchmark", "time": "2021-03-02 10:11:12", "recording_start": 12.5}
    result = read(written("table", tmp_path, row))
    assert spans(result.utterances) == [(None, SECONDS, "one")]
    assert mentions(result.description, "ignored ... start_date ... more")


def test_a_segment_without_an_end_must_be_the_last_of_its_recording(tmp_path: Path) -> None:
    rows = [{"audio": "a.wav", "start": start, "text": "one"} for start in (0.0, 0.5)]
    path, _ = written("table", tmp_path, *rows)
    path.write_text(path.read_text().replace("duration", "size"))
    assert mentions(problem(path), f"{path}:2 ... 0.5")


def test_audio_that_was_cut_out_before_it_was_stored_is_whole(tmp_path: Path) -> None:
    rows = [{"audio": "a.wav", "begin_time": 61.5, "end_time": 61.5 + SECONDS, "text": "one"}]
    path, options = written("parquet", tmp_path, *rows)
    assert spans(read((path, options)).utterances) == [(None, SECONDS, "one")]


@pytest.mark.parametrize("value", [0, 1, 1.0, "A", "left", "channel 2", "FR", "agent", "TED"])
@pytest.mark.parametrize("format", FORMATS)
def test_a_text_of_one_channel_of_two_is_refused(format: str, value: Any, tmp_path: Path) -> None:
    record(tmp_path, "a.wav", num_channels=2)
    path, options = written(format, tmp_path, {"audio": "a.wav", "channel": value})
    assert mentions(problem(path, None, **options), f"channel {value} of 2")
    path, options = written(format, tmp_path, {"audio": "mono.wav", "channel": value})
    assert len(read((path, options)).utterances) == 1


@pytest.mark.parametrize("name", ["channel_no", "Channel Num", "speaker_channel", "audioChannel", "channelIndex"])
def test_channels_have_any_usual_name(name: str, tmp_path: Path) -> None:
    record(tmp_path, "a.wav", num_channels=2)
    path, _ = written("table", tmp_path, {"audio": "a.wav", "ch": None, name: 1})
    assert mentions(problem(path), "channel 1 of 2")


@pytest.mark.parametrize("column", [{"channel": "[0]"}, {"channel": [1]}])
def test_a_list_of_one_channel_of_two_is_refused(column: Row, tmp_path: Path) -> None:
    record(tmp_path, "a.wav", num_channels=2)
    path, _ = written("json", tmp_path, {"audio": "a.wav"} | column)
    assert mentions(problem(path), "of 2")


@pytest.mark.parametrize(
    "column", [{"num_channels": 2}, {"channels": 2}, {"channel": "0,1"}, {"channel": "all"}, {"channel": "N/A"}]
)
def test_a_number_of_channels_and_all_channels_are_no_channel(column: Row, tmp_path: Path) -> None:
    record(tmp_path, "a.wav", num_channels=2)
    assert len(read(written("json", tmp_path, {"audio": "a.wav"} | column)).utterances) == 1


def test_a_channel_of_common_voice_is_refused(tmp_path: Path) -> None:
    record(tmp_path, "clips/a.wav", num_channels=2)
    (tmp_path / "validated.tsv").write_text("client_id\tpath\tsentence\tchannel\nx\ta.wav\tone\t1\n")
    assert mentions(problem(tmp_path), "channel 1 of 2")


def test_the_name_of_a_station_does_not_matter_where_there_is_one_channel(tmp_path: Path) -> None:
    record(tmp_path, "a.wav")
    result = read(written("table", tmp_path, {"audio": "a.wav", "channel": "News at Ten"}))
    assert spans(result.utterances) == [(None, SECONDS, "one")]


@pytest.mark.parametrize("excess", [0.4, 0.6])
@pytest.mark.parametrize("format", ["table", "json", "audio_folder", "manifest", "lhotse", "label_studio", "kaldi"])
def test_half_a_second_beyond_the_end_is_cut_and_counted(format: str, excess: float, tmp_path: Path) -> None:
    start, duration = 0.5, SECONDS - 0.5 + excess
    options: Row = {}
    path = tmp_path / "source.jsonl"
    record(tmp_path, "a.wav")
    if format == "lhotse":
        source = {"type": "file", "channels": [0], "source": str(tmp_path / "a.wav")}
        recording = {"id": "r", "sources": [source], "sampling_rate": RATE, "duration": start + duration}
        part = {"id": "s", "recording_id": "r", "start": 0.0, "duration": duration, "text": "one"}
        cut = {"id": "c", "start": start, "duration": duration, "channel": 0, "type": "MonoCut"}
        path.write_text(json.dumps(cut | {"recording": recording, "supervisions": [part]}))
    elif format == "label_studio":
        path = tmp_path / "export.json"
        value = {"start": start, "end": start + duration, "text": ["one"]}
        result = {"type": "textarea", "from_name": "t", "value": value}
        task = {"id": 1, "data": {"audio": "a.wav"}, "annotations": [{"completed_by": 1, "result": [result]}]}
        path.write_text(json.dumps([task]))
    elif format == "kaldi":
        path = tmp_path
        for name, line in {
            "wav.scp": "r a.wav",
            "text": "u one",
            "segments": f"u r {start} {start + duration}",
        }.items():
            (path / name).write_text(f"{line}\n")
    else:
        key = "offset" if format == "manifest" else "start"
        path, options = written(format, tmp_path, {"audio": "a.wav", key: start, "duration": duration})
    if excess > MAX_OVERSHOOT:
        assert mentions(problem(path, None, **options), "must end within ... part alone")
        return
    result = read((path, options))
    assert spans(result.utterances) == [(start, SECONDS - start, "one")]
    assert mentions(result.description, "1 utterance cut")
