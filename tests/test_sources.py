"""Data of users: the format is recognised, each format is read, and what cannot be used is named."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from asr.apps.finetune.collect import MAX_NAMED, Collected, collect
from asr.apps.finetune.entry import SourceOptions
from asr.apps.finetune.formats import FORMATS
from asr.core.data.manifest import Utterance
from asr.errors import InputError
from tests.refusals import mentions, refused
from tests.test_convert_recipe import SOURCES, parquet_file

RATE = 8000
SECONDS = 2.0  # length of each recording


def record(folder: Path, *names: str, num_channels: int = 1) -> None:
    """Write recordings of SECONDS seconds."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / name, np.full((round(SECONDS * RATE), num_channels), 0.1), RATE)


def collected(path: Path, format: str | None = None, **options: Any) -> Collected:
    """Collect a source without problems."""
    problems: list[str] = []
    result = collect(path, SourceOptions(**options), format, problems.append)
    assert problems == []
    return result


def problem(path: Path, format: str | None = None, **options: Any) -> str:
    """Return the only problem of a source, which is refused because of it."""
    problems: list[str] = []
    with refused(InputError, f"{path} ... 1 problem", cure="--skip-bad"):
        collect(path, SourceOptions(**options), format, problems.append)
    [line] = problems
    return line


def spans(utterances: list[Utterance]) -> list[tuple[float | None, float, str]]:
    return [(utterance.offset, utterance.duration, utterance.text) for utterance in utterances]


# ---- recognition


@pytest.mark.parametrize("source", sorted(SOURCES.keys() - {"nemo"}))  # another name of manifest
def test_options_of_other_formats_are_refused(source: str, tmp_path: Path) -> None:
    format, make = SOURCES[source]
    path = make(tmp_path)
    options = {"text_column": "a", "audio_column": "b", "recordings": path, "field": "c", "newest": True, "root": path}
    others = options.keys() - set(FORMATS[format].options)
    assert others
    for name in others:
        with refused(InputError, f"--{name.replace('_', '-')} ... {format}"):
            collect(path, SourceOptions(**{name: options[name]}), format, lambda _: None)


@pytest.mark.parametrize("source", SOURCES)
def test_the_file_and_the_folder_of_a_source_have_the_same_format(source: str, tmp_path: Path) -> None:
    format, make = SOURCES[source]
    path = make(tmp_path)
    files = [file for file in path.iterdir() if file.suffix in (".csv", ".jsonl")] if path.is_dir() else []
    folders = [path.parent] if format in ("common_voice", "table") else []
    expected = "manifest" if format == "nemo" else format
    assert {collected(each).format for each in (path, *files, *folders)} == {expected}


def test_parquet_is_recognised_and_its_names_are_announced_before_audio_is_written(tmp_path: Path) -> None:
    record(tmp_path, "a.wav")
    file = parquet_file(tmp_path / "data" / "train.parquet", [(tmp_path / "a.wav").read_bytes()])

    def refuse(names: set[str]) -> None:
        assert names == {"train"}
        raise InputError("--audio-dir must be empty; it is not.")

    with refused(InputError, "--audio-dir"):
        collected(file.parent, audio_dir=tmp_path / "out", on_audio_names=refuse)
    assert not (tmp_path / "out").exists()
    assert collected(file.parent, audio_dir=tmp_path / "out").format == "parquet"


def test_a_source_that_two_formats_accept_is_refused_until_one_is_given(tmp_path: Path) -> None:
    record(tmp_path, "a.wav")
    (tmp_path / "a.txt").write_text("of the file")
    (tmp_path / "all.csv").write_text("path,text\na.wav,of the table\n")
    with refused(InputError, f"{tmp_path} ... --format table ... --format text_files"):
        collected(tmp_path)
    assert collected(tmp_path, "text_files").utterances[0].text == "of the file"
    assert collected(tmp_path, "table").utterances[0].text == "of the table"


def test_a_source_of_no_format_is_refused_with_its_content(tmp_path: Path) -> None:
    record(tmp_path, "a.wav", "b.wav", "c/d.wav")
    with refused(InputError, f"{tmp_path} ... Parquet ... 2 .wav files ... 1 folder"):
        collected(tmp_path)
    with refused(InputError, "a.wav ... .wav"):
        collected(tmp_path / "a.wav")
    with refused(InputError, "nowhere ... nothing exists"):
        collected(tmp_path / "nowhere")


@pytest.mark.parametrize("head", ["path,sentence", "file_name,text", "audio_filepath\ttext", "client_id,path,sentence"])
def test_a_csv_that_is_almost_a_special_format_is_a_table(head: str, tmp_path: Path) -> None:
    record(tmp_path, "a.wav")
    delimiter = "\t" if "\t" in head else ","
    row = delimiter.join("a.wav" if "path" in name or "file" in name else "yes" for name in head.split(delimiter))
    (tmp_path / "data.csv").write_text(f"{head}\n{row}\n")
    assert collected(tmp_path).format == "table"


def test_a_table_with_bars_and_named_columns_is_not_ljspeech(tmp_path: Path) -> None:
    record(tmp_path, "a.wav")
    (tmp_path / "metadata.csv").write_text("audio_file|text|speaker\na.wav|yes|x\n")
    assert collected(tmp_path).format == "table"


# ---- tables


def table(folder: Path, content: str, name: str = "speech.csv") -> Path:
    record(folder, "a.wav", "b.wav")
    (folder / name).write_bytes(content.encode())
    return folder / name


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", "audio,text\na.wav,one\nb.wav,two; and\n"),
        ("x.csv", "\ufeffPath;Transcript\r\na.wav;one\r\nb.wav;two; and\r\n".replace("two; and", '"two; and"')),
        ("x.tsv", "wav\tsentence\na.wav\tone\nb.wav\ttwo; and\n"),
        ("X.TSV", 'file_name\ttext\n"a.wav"\t"one"\n\n"b.wav"\t"two; and"'),
        ("x.csv", 'transcription|filename\none|a.wav\n"two; and"|b.wav\n'),
        ("x.csv", 'text,file\n"one","a.wav"\n"two;\nand",b.wav\n'),
    ],
)
def test_tables_may_have_any_delimiter_quotes_and_line_ends(name: str, content: str, tmp_path: Path) -> None:
    utterances = collected(table(tmp_path, content, name)).utterances
    assert [(utterance.id, utterance.text.split()) for utterance in utterances] == [
        ("a.wav", ["one"]),
        ("b.wav", ["two;", "and"]),
    ]


def test_a_description_names_the_columns_the_size_and_what_was_ignored(tmp_path: Path) -> None:
    path = table(tmp_path, "path,sentence,notes,speaker\na.wav,one,x,1\nb.wav,two,y,1\n")
    description = collected(path).description
    assert mentions(description, f"{path} ... a table ... audio=path ... text=sentence ... speaker ... ignored: notes")
    assert mentions(description, "2 utterances ... 0.00 h ... 1 known speaker")


def test_segments_of_a_table_have_a_start_with_a_duration_or_an_end(tmp_path: Path) -> None:
    rows = "a.wav,one,0.5,1.25,\na.wav,two,1.75,,\nb.wav,all,,,\n"
    path = table(tmp_path, "audio,text,start,duration,id\n" + rows)
    assert spans(collected(path).utterances) == [(0.5, 1.25, "one"), (1.75, 0.25, "two"), (None, SECONDS, "all")]
    path = table(tmp_path, "audio,text,offset,end\na.wav,one,0.5,1.25\n")
    assert spans(collected(path).utterances) == [(0.5, 0.75, "one")]


def test_a_rounded_duration_of_the_whole_file_is_ignored(tmp_path: Path) -> None:
    result = collected(table(tmp_path, "audio,text,duration\na.wav,one,3\n"))
    assert spans(result.utterances) == [(None, SECONDS, "one")]
    assert "ignored: duration" in result.description


def test_audio_of_a_table_is_relative_to_the_table_or_to_the_root_or_absolute(tmp_path: Path) -> None:
    record(tmp_path / "sounds", "c.wav")
    path = table(tmp_path, f"audio,text\nc.wav,one\n{tmp_path / 'a.wav'},two\n")
    utterances = collected(path, root=tmp_path / "sounds").utterances
    assert [Path(utterance.audio_filepath).name for utterance in utterances] == ["c.wav", "a.wav"]
    assert mentions(problem(path), f"{path}:2 ... c.wav")


def test_the_columns_of_audio_and_text_may_be_chosen(tmp_path: Path) -> None:
    path = table(tmp_path, "recording,lyrics,text\na.wav,one,x\n")
    with refused(InputError, f"{path}:2 ... recording", cure="--audio-column"):
        collected(path)
    assert spans(collected(path, audio_column="recording", text_column="lyrics").utterances) == [(None, SECONDS, "one")]


def test_a_table_without_texts_is_refused_also_as_the_only_table_of_a_folder(tmp_path: Path) -> None:
    path = table(tmp_path, "audio,speaker\na.wav,x\n")
    for given in (path, tmp_path):
        with refused(InputError, f"{path}:2 ... text ... audio, speaker", cure="--text-column"):
            collected(given)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("nowhere.wav,one,0", "nowhere.wav"),
        ("a.wav, ,0", "text ... empty"),
        (",one,0", "audio"),
        ("https://example.org/a.wav,one,0", "URL ... https://example.org/a.wav"),
        ("a.wav,one,early", "start ... seconds; got 'early'"),
        ("a.wav,one,-1", "start ... seconds; got '-1'"),
        ("a.wav,one,nan", "start ... seconds; got 'nan'"),
        ("a.wav,one,9", "a.wav ... 9 ... 2 s"),
        ("a.wav,one", "3 columns ... 2"),
        ("b.wav,two,0", "b.wav@0"),
        ("speech.csv,one,0", "speech.csv"),
    ],
)
def test_a_bad_row_is_named_with_its_line_and_left_out_on_request(row: str, named: str, tmp_path: Path) -> None:
    path = table(tmp_path, f"audio,text,start\nb.wav,two,0\n{row}\n")
    assert mentions(problem(path), f"{path}:3 ... {named}")
    result = collect(path, SourceOptions(skip_bad=True), None, lambda _: None)
    assert spans(result.utterances) == [(0.0, SECONDS, "two")]
    assert "1 left out" in result.description


def test_a_quotation_mark_without_its_end_does_not_swallow_lines(tmp_path: Path) -> None:
    path = table(tmp_path, 'audio\ttext\na.wav\t"one\nb.wav\ttwo"\n', "x.tsv")
    assert mentions(problem(path), f"{path}:3 ... quotation mark")
    path = table(tmp_path, 'audio,text\na.wav,"one\nb.wav,two\n')
    with refused(InputError, f"{path}:3 ... CSV"):
        collected(path)


def test_a_column_name_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    path = table(tmp_path, "audio,text,text\na.wav,one,two\n")
    with refused(InputError, f"{path}:1 ... text"):
        collected(path)


def test_ten_problems_are_named_and_all_are_counted(tmp_path: Path) -> None:
    path = table(tmp_path, "audio,text\n" + "nowhere.wav,one\n" * (MAX_NAMED + 5))
    problems: list[str] = []
    with refused(InputError, f"{path} ... {MAX_NAMED + 5} problems"):
        collect(path, SourceOptions(), None, problems.append)
    assert len(problems) == MAX_NAMED + 1
    assert "5 more" in problems[-1]


@pytest.mark.parametrize("format", ["table", "audio_folder", "ljspeech", "librispeech"])
def test_recordings_of_a_folder_that_no_line_names_are_counted(format: str, tmp_path: Path) -> None:
    name, content = {
        "table": ("x.csv", "audio,text\nwavs/a.wav,one\n"),
        "audio_folder": ("metadata.csv", "file_name,text\nwavs/a.wav,one\n"),
        "ljspeech": ("metadata.csv", "a|one\n"),
        "librispeech": ("wavs/1.trans.txt", "a one\n"),
    }[format]
    record(tmp_path / "wavs", "a.wav", "b.wav", "c.wav")
    (tmp_path / name).write_text(content)
    assert mentions(collected(tmp_path).description, "dropped: 2 recordings")


def test_what_was_left_out_is_counted_by_reason(tmp_path: Path) -> None:
    rows = "a.wav,one\nno where.wav,one\n/there/x.wav,two\na.wav,\nb.wav, \na.wav,one\nb.wav,one,two\n"
    path = table(tmp_path, f"audio,text\n{rows}")
    description = collect(path, SourceOptions(skip_bad=True), None, lambda _: None).description
    assert sorted(map(int, re.findall(r"\((\d+)\)(?:;|$)", description))) == [1, 1, 2, 2], description


@pytest.mark.parametrize("content", ["audio,text\n", "audio,text\nnowhere.wav,one\n"])
def test_a_source_without_any_utterance_is_refused(content: str, tmp_path: Path) -> None:
    path = table(tmp_path, content)
    with refused(InputError, f"{path} ... one utterance"):
        collect(path, SourceOptions(skip_bad=True), None, lambda _: None)


# ---- folders


def test_text_files_are_matched_at_any_depth(tmp_path: Path) -> None:
    record(tmp_path, "a/1.wav", "b/1.WAV", ".hidden.wav")
    (tmp_path / "a" / "1.txt").write_text("one\ntwo\n")
    (tmp_path / "b" / "1.txt").write_text("three")
    (tmp_path / "README.txt").write_text("about")
    result = collected(tmp_path)
    assert [(utterance.id, utterance.text) for utterance in result.utterances] == [("a/1", "one two"), ("b/1", "three")]
    assert mentions(result.description, "1 .txt file ... name")


@pytest.mark.parametrize(("audio", "text"), [("SA1.WAV", "SA1.TXT"), ("a.wav", "a.Txt"), ("a.b.wav", "a.b.txt")])
def test_a_text_is_found_beside_its_recording_in_any_case_of_the_suffix(audio: str, text: str, tmp_path: Path) -> None:
    record(tmp_path, audio)
    (tmp_path / text).write_text("one")
    result = collected(tmp_path)
    assert [utterance.text for utterance in result.utterances] == ["one"]
    assert "dropped" not in result.description


def test_a_recording_with_two_texts_is_a_problem(tmp_path: Path) -> None:
    record(tmp_path, "a.wav")
    for name in ("a.txt", "a.TXT"):
        (tmp_path / name).write_text(name)
    assert mentions(problem(tmp_path), "a.wav ... a.TXT ... a.txt")


def test_sample_numbers_of_the_whole_recording_are_no_words(tmp_path: Path) -> None:
    record(tmp_path, "a.wav", "b.wav")
    (tmp_path / "a.txt").write_text(f"0 {round(SECONDS * RATE)} She had one.\n")
    (tmp_path / "b.txt").write_text("0 46 are two numbers\n")
    assert [each.text for each in collected(tmp_path).utterances] == ["She had one.", "0 46 are two numbers"]


@pytest.mark.parametrize(("text", "named"), [(None, "b.wav ... b.txt"), (" \n", "b.txt ... empty")])
def test_audio_without_a_text_is_named(text: str | None, named: str, tmp_path: Path) -> None:
    record(tmp_path, "a.wav", "b.wav")
    (tmp_path / "a.txt").write_text("one")
    if text is not None:
        (tmp_path / "b.txt").write_text(text)
    assert mentions(problem(tmp_path), named)


@pytest.mark.parametrize(("line", "named"), [("1-2-1", "ID TEXT"), ("1-2-9 abc", "1-2-9.flac"), ("../x abc", "../x")])
def test_a_bad_line_of_librispeech_is_named(line: str, named: str, tmp_path: Path) -> None:
    record(tmp_path, "1/2/1-2-0.flac")
    (tmp_path / "1" / "2" / "1-2.trans.txt").write_text(f"1-2-0 ABC\n{line}\n")
    assert mentions(problem(tmp_path), f"1-2.trans.txt:2 ... {named}")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a.wav|one and two"], [("one and two", None)]),
        (["wavs/a.wav|one and two", "wavs/b|three"], [("one and two", None), ("three", None)]),
        (["a|one and two|anna", "b|three four|anna"], [("one and two", "anna"), ("three four", "anna")]),
        (["a|0|one and two", "b|0|three four"], [("one and two", "0"), ("three four", "0")]),
        (["a|12|twelve", "b|Dr. 5|doctor five"], [("twelve", None), ("doctor five", None)]),
        (["a|hello|0", "b|world|1"], [("hello", "0"), ("world", "1")]),
        (["a|one|anna", "b|two|anna"], [("one", "anna"), ("two", "anna")]),
        (["a|Mr.|mister", "b|Dr.|doctor"], [("mister", None), ("doctor", None)]),
        (["a|5|five", "b|6|six"], [("five", None), ("six", None)]),
        (["a|one two|", "b|Dr. No|doctor no"], [("one two", None), ("doctor no", None)]),
        (["a|7 12|seven twelve", "b|5 of 20|five of twenty"], [("seven twelve", None), ("five of twenty", None)]),
    ],
)
def test_lists_like_ljspeech_may_have_suffixes_folders_and_speakers(
    lines: list[str], expected: list[tuple[str, str | None]], tmp_path: Path
) -> None:
    record(tmp_path / "wavs", "a.wav", "b.wav")
    (tmp_path / "metadata.csv").write_text("\n".join(lines))
    result = collected(tmp_path)
    assert [(each.text, each.speaker) for each in result.utterances] == expected
    assert [Path(each.audio_filepath).name for each in result.utterances] == ["a.wav", "b.wav"][: len(lines)]


def test_a_column_like_ljspeechs_that_is_not_read_is_named_and_suffixes_have_any_case(tmp_path: Path) -> None:
    record(tmp_path / "wavs", "a.WAV", "b.wav")
    (tmp_path / "metadata.csv").write_text("a|anna|one two\nb|bert|three four")
    result = collected(tmp_path)
    assert Path(result.utterances[0].audio_filepath).name == "a.WAV"
    assert mentions(result.description, "ignored ... column 2")


@pytest.mark.parametrize("format", ["ljspeech", "table", "audio_folder", "librispeech", "common_voice"])
def test_a_name_that_is_too_long_for_a_file_is_named(format: str, tmp_path: Path) -> None:
    name = "x" * 300
    files = {
        "ljspeech": ("metadata.csv", f"{name}|one\n"),
        "table": ("x.csv", f"audio,text\n{name}.wav,one\n"),
        "audio_folder": ("metadata.csv", f"file_name,text\n{name}.wav,one\n"),
        "librispeech": ("1-2.trans.txt", f"{name} one\n"),
        "common_voice": ("validated.tsv", f"client_id\tpath\tsentence\nx\t{name}\tone\n"),
    }
    (tmp_path / files[format][0]).write_text(files[format][1])
    assert mentions(problem(tmp_path if format != "table" else tmp_path / "x.csv", format), "xxx")


def test_a_url_of_a_file_on_this_machine_is_its_path(tmp_path: Path) -> None:
    record(tmp_path, "a b.wav")
    path = table(tmp_path, f"audio,text\nfile://{tmp_path}/a%20b.wav,one\nfile://localhost{tmp_path}/a.wav,two\n")
    assert [Path(each.audio_filepath).name for each in collected(path).utterances] == ["a b.wav", "a.wav"]
    for url in ("file://elsewhere/a.wav", "file://[", "http://[::1"):
        assert mentions(problem(table(tmp_path, f"audio,text\n{url},one\n")), url)


def test_a_table_that_names_files_on_the_server_of_label_studio_is_refused_with_a_cure(tmp_path: Path) -> None:
    path = table(tmp_path, "audio,transcription\n/data/upload/3/a.wav,one\n")
    assert mentions(problem(path), f"{path}:2 ... format JSON")
    path = table(tmp_path, "audio,transcription\nhttp://localhost:8080/data/upload/3/a.wav,one\n")
    assert mentions(problem(path), f"{path}:2 ... format JSON")


def test_a_csv_export_of_label_studio_is_refused_with_a_cure_though_its_audio_is_there(tmp_path: Path) -> None:
    places = '"[{""start"":0,""end"":1}]"'
    columns = "annotation_id,annotator,audio,id,label,transcription"
    path = table(tmp_path, f'{columns}\n1,1,a.wav,1,{places},"[""one"",""two""]"\n')
    with refused(InputError, f"{path} ... CSV", cure="JSON"):
        collected(path)


def test_the_audio_of_a_row_may_be_an_object_with_its_path_and_times(tmp_path: Path) -> None:
    record(tmp_path, "a.wav")
    rows = [{"audio": {"path": "a.wav", "bytes": None}, "sentence": "all"}]
    rows += [{"audio": {"path": "a.wav", "start_time": 0.5, "end_time": 1.5}, "sentence": "part", "duration": 1.0}]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert spans(collected(tmp_path / "x.jsonl").utterances) == [(None, SECONDS, "all"), (0.5, 1.0, "part")]


@pytest.mark.parametrize("columns", [{"path": "a.wav"}, {"file_name": "a.wav"}])
def test_parquet_that_names_files_is_refused_with_a_cure(columns: dict[str, str], tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([columns | {"text": "one"}]), tmp_path / "x.parquet")
    with refused(InputError, f"{tmp_path} ... column audio ... {next(iter(columns))}", cure="CSV"):
        collected(tmp_path)


def test_metadata_of_an_audio_folder_below_a_folder_is_no_parquet_with_audio(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "train").mkdir()
    rows = pyarrow.Table.from_pylist([{"file_name": "a.wav", "text": "one"}])
    pyarrow.parquet.write_table(rows, tmp_path / "train" / "metadata.parquet")
    with refused(InputError, f"{tmp_path} ... 1 folder"):
        collected(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_refused_with_its_cure(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("audio,text\na.wav,one\n", encoding=encoding)
    with refused(InputError, "UTF-16", cure="UTF-8"):
        collected(tmp_path / "x.csv", "table")


@pytest.mark.parametrize("name", ["x.tsv", "x.jsonl", "x.txt"])
def test_utf_16_is_refused_with_its_cure(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("audio\ttext\na.wav\tone\n", encoding="utf-16")
    with refused(InputError, f"{tmp_path / name} ... UTF-16", cure="UTF-8"):
        collected(tmp_path / name)


# ---- lhotse


def cut(folder: Path, **more: Any) -> dict[str, Any]:
    record(folder, "a.wav")
    source = {"type": "file", "channels": [0], "source": str(folder / "a.wav")}
    recording = {"id": "r", "sources": [source], "sampling_rate": RATE, "duration": SECONDS}
    part = {"id": "s", "recording_id": "r", "start": 0.0, "duration": SECONDS, "text": "one", "language": "en"}
    whole = {"id": "c", "start": 0.0, "duration": SECONDS, "channel": 0, "type": "MonoCut", "recording": recording}
    return whole | {"supervisions": [part], "custom": {}} | more


@pytest.mark.parametrize("name", ["cuts.json", "cuts.jsonl"])
def test_cuts_may_be_a_list_and_the_keys_that_are_not_read_are_named(name: str, tmp_path: Path) -> None:
    row = json.dumps(cut(tmp_path), indent=1 if name == "cuts.json" else None)
    (tmp_path / name).write_text(f"[{row}]" if name == "cuts.json" else row)
    result = collected(tmp_path / name)
    assert (result.format, spans(result.utterances)) == ("lhotse", [(None, SECONDS, "one")])
    assert mentions(result.description, "ignored ... custom, language")


def test_a_mixed_cut_is_refused_with_its_cure(tmp_path: Path) -> None:
    path = tmp_path / "cuts.jsonl"
    tracks = [{"cut": cut(tmp_path), "offset": 0.0}]
    path.write_text(json.dumps({"id": "m", "type": "MixedCut", "tracks": tracks}))
    for format in (None, "lhotse"):
        assert mentions(problem(path, format), "MixedCut ... CutSet.save_audios")


@pytest.mark.parametrize("start", [10**400, "early", None])
def test_a_start_that_is_no_number_of_seconds_is_named(start: Any, tmp_path: Path) -> None:
    path = tmp_path / "cuts.jsonl"
    path.write_text(json.dumps(cut(tmp_path, start=start)))
    assert mentions(problem(path), f"{path}:1")


def test_a_kaldi_utterance_that_is_its_own_speaker_has_none_and_segments_without_text_are_counted(
    tmp_path: Path,
) -> None:
    record(tmp_path, "a.wav")
    files = {"wav.scp": "r a.wav", "text": "u one\nv two", "utt2spk": "u u\nv anna\nw w"}
    files["segments"] = "u r 0 1\nv r 1 2\nw r 0 2"
    for name, content in files.items():
        (tmp_path / name).write_text(f"{content}\n")
    result = collected(tmp_path)
    assert [each.speaker for each in result.utterances] == [None, "anna"]
    assert mentions(result.description, "1 segment (")


def test_a_folder_of_common_voice_is_its_validated_table(tmp_path: Path) -> None:
    _, make = SOURCES["common_voice"]
    make(tmp_path)
    shutil.copy(tmp_path / "validated.tsv", tmp_path / "train.tsv")
    assert collected(tmp_path).utterances == collected(tmp_path / "validated.tsv").utterances


# ---- Label Studio


def text_of(text: str | list[str], region: str = "whole", field: str = "transcription") -> dict[str, Any]:
    value = {"text": [text] if isinstance(text, str) else text}
    return {"id": region, "type": "textarea", "from_name": field, "to_name": "audio", "value": value}


def region_of(region: str, start: float, end: float, channel: int = 0) -> dict[str, Any]:
    value = {"start": start, "end": end, "channel": channel, "labels": ["Speech"]}
    return {"id": region, "type": "labels", "from_name": "labels", "to_name": "audio", "value": value}


def annotation(*results: dict[str, Any], by: Any = 1, **more: Any) -> dict[str, Any]:
    return {"completed_by": by, "was_cancelled": False, "ground_truth": False, "result": [*results]} | more


def export(folder: Path, *annotations: dict[str, Any], audio: str = "a.wav", **task: Any) -> Path:
    """Write an export of two tasks: one with these annotations, and one with the text "second"."""
    record(folder, "a.wav", "b.wav")
    first = {"id": 1, "data": {"audio": audio}, "annotations": [*annotations], "predictions": []} | task
    second = {"id": 2, "data": {"audio": "b.wav"}, "annotations": [annotation(text_of("second"))]}
    (folder / "export.json").write_text(json.dumps([first, second]))
    return folder / "export.json"


def test_texts_of_whole_files_and_of_regions_are_read(tmp_path: Path) -> None:
    regions = [region_of("q", 1.0, 1.75), text_of("two", "q"), text_of(["one", "more"], "p"), region_of("p", 0.25, 0.5)]
    result = collected(export(tmp_path, annotation(*regions, region_of("z", 1.8, 1.9))))
    assert result.format == "label_studio"
    assert [utterance.id for utterance in result.utterances] == ["1-p", "1-q", "2"]
    assert spans(result.utterances) == [(0.25, 0.25, "one more"), (1.0, 0.75, "two"), (None, SECONDS, "second")]
    assert "1 untranscribed region" in result.description


def test_the_text_of_a_region_may_carry_its_times_itself(tmp_path: Path) -> None:
    text = text_of("one", "p")
    text["value"] |= {"start": 0.25, "end": 0.5}
    assert spans(collected(export(tmp_path, annotation(text))).utterances)[0] == (0.25, 0.25, "one")


@pytest.mark.parametrize("places", [[], [region_of("whole", 0.25, 0.5)]])
def test_one_of_several_text_fields_must_be_chosen(places: list[dict[str, Any]], tmp_path: Path) -> None:
    path = export(tmp_path, annotation(*places, text_of("one"), text_of("noise", field="notes")))
    with refused(InputError, f"{path} ... transcription ... notes", cure="--field notes"):
        collected(path)
    result = collected(path, field="transcription")
    assert [utterance.text for utterance in result.utterances] == ["one", "second"]
    assert mentions(result.description, "text=transcription ... ignored: notes")
    with refused(InputError, "--field ... transcription, notes; got 'comments'"):
        collected(path, field="comments")


def test_cancelled_and_empty_annotations_and_predictions_are_dropped_and_counted(tmp_path: Path) -> None:
    cancelled = annotation(text_of("cancelled"), was_cancelled=True)
    predictions = [{"result": [text_of("predicted")]}, {"result": []}]
    path = export(tmp_path, cancelled, annotation(text_of(" ")), annotation(), predictions=predictions)
    result = collected(path)
    assert [utterance.text for utterance in result.utterances] == ["second"]
    dropped = "2 predictions ... 1 cancelled annotation ... 2 empty annotations"
    assert mentions(result.description, dropped)


BOTH = (
    annotation(text_of("old"), by=1, updated_at="2024-05-01T10:00:00.25Z"),
    annotation(text_of("new"), by={"id": 2, "email": "b@example.org"}, created_at="2024-05-01T10:00:01Z"),
)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"newest": True}, "new"),
        ({"annotator": "1"}, "old"),
        ({"annotator": "2"}, "new"),
        ({"annotator": "b@example.org"}, "new"),
        ({"annotator": "1", "newest": True}, "old"),
    ],
)
def test_different_texts_are_a_conflict_unless_an_option_decides(
    options: dict[str, Any], text: str, tmp_path: Path
) -> None:
    path = export(tmp_path, *BOTH)
    assert mentions(problem(path), f"{path} ... task 1 ... 'old' ... 'new' ... --annotator ... --newest")
    assert mentions(problem(path, annotator="3"), "'old' ... 'new'")
    result = collect(path, SourceOptions(skip_bad=True), None, lambda _: None)
    assert [utterance.text for utterance in result.utterances] == ["second"]
    assert collected(path, **options).utterances[0].text == text


def test_a_ground_truth_is_used_and_equal_texts_are_no_conflict(tmp_path: Path) -> None:
    result = collected(export(tmp_path, *BOTH, annotation(text_of("true"), ground_truth=True)))
    assert result.utterances[0].text == "true"
    assert "2 other annotations" in result.description
    same = annotation(text_of(" old "), by=5)
    assert collected(export(tmp_path, BOTH[0], same)).utterances[0].text == "old"


def test_annotations_without_a_time_are_a_conflict_even_if_the_newest_decides(tmp_path: Path) -> None:
    path = export(tmp_path, BOTH[0], annotation(text_of("new")))
    assert mentions(problem(path, newest=True), "'old' ... 'new'")


@pytest.mark.parametrize(
    ("audio", "file"),
    [
        ("/data/upload/7/1a2b-x.wav", "7/1a2b-x.wav"),
        ("/data/upload/7/1a2b-x.wav", "1a2b-x.wav"),
        ("/label-studio/data/upload/7/a%20b.wav", "7/a b.wav"),
        ("/data/local-files/?d=talks/a%20b.wav", "talks/a b.wav"),
        ("talks/x.wav", "talks/x.wav"),
        ("0a1b2c3d-x.wav", "x.wav"),
        ("/data/upload/7/0a1b2c3d-x.wav", "x.wav"),  # as the upload was named
        ("http://localhost:8080/data/upload/7/1a2b-x.wav", "7/1a2b-x.wav"),
        ("https://label.example.org/studio/data/upload/7/0a1b2c3d-x.wav", "x.wav"),
        ("http://localhost:8080/data/local-files/?d=talks/x.wav", "talks/x.wav"),
    ],
)
def test_audio_is_found_below_the_root_or_beside_the_export(audio: str, file: str, tmp_path: Path) -> None:
    path = export(tmp_path, annotation(text_of("one")), audio=audio)
    record(tmp_path, file)
    assert collected(path).utterances[0].audio_filepath == str(tmp_path / file)
    root = tmp_path / "root"
    record(root, file, "b.wav")
    assert collected(path, root=root).utterances[0].audio_filepath == str(root / file)


@pytest.mark.parametrize(
    ("audio", "named"),
    [
        ("https://example.org/data/upload/1/c.wav", "URL ... https://example.org"),
        ("s3://bucket/a.wav", "URL ... s3://bucket/a.wav"),
        ("/data/local-files/?d=../../etc/passwd", "'../../etc/passwd'"),
        ("/data/local-files/?x=a.wav", "KeyError"),
        ("http://localhost/data/upload/../../etc/passwd", "../../etc/passwd"),
        ("/tasks/7/presign/?fileuri=czM6Ly9idWNrZXQvYS53YXY=", "s3://bucket/a.wav"),
        ("http://localhost:8080/tasks/7/resolve/?fileuri=czM6Ly9idWNrZXQvYS53YXY=", "'s3://bucket/a.wav'"),
        (f"/data/upload/1/{'x' * 300}.wav", "xxx.wav"),
        ("/data/upload/1/nowhere.wav", "nowhere.wav"),
    ],
)
def test_audio_that_is_no_file_below_the_root_is_named(audio: str, named: str, tmp_path: Path) -> None:
    path = export(tmp_path, annotation(text_of("one")), audio=audio)
    assert mentions(problem(path), f"{path} ... task 1 ... {named}")


def test_an_export_may_be_given_by_its_folder(tmp_path: Path) -> None:
    record(tmp_path, "x.wav")
    export(tmp_path, annotation(text_of("one")), audio="/data/upload/7/0a1b2c3d-x.wav")
    (tmp_path / "notes.json").write_text("{}")
    result = collected(tmp_path)
    assert (result.format, result.utterances[0].audio_filepath) == ("label_studio", str(tmp_path / "x.wav"))


def test_results_need_neither_value_nor_id(tmp_path: Path) -> None:
    regions = [region_of("p", 0.0, 1.0), text_of("one", "p"), region_of("q", 1.0, 1.5), text_of("two", "q")]
    relation = {"type": "relation", "from_id": "p", "to_id": "q", "direction": "right"}
    choice = {"type": "choices", "from_name": "quality", "value": {"choices": ["good"]}}
    result = collected(export(tmp_path, annotation(*regions[:2], relation, *regions[2:], choice)))
    assert spans(result.utterances)[:2] == [(0.0, 1.0, "one"), (1.0, 0.5, "two")]
    assert mentions(result.description, "1 relation ... 1 choices")
    for results in ([text_of("all")], [region_of("p", 0.0, 1.0), text_of("one", "p")]):
        nameless = [{key: value for key, value in each.items() if key != "id"} for each in results]
        for each in nameless:
            each["value"].update({} if len(results) == 1 else {"start": 0.0, "end": 1.0})
        [first, *_] = collected(export(tmp_path, annotation(*nameless))).utterances
        assert spans([first]) == ([(None, SECONDS, "all")] if len(results) == 1 else [(0.0, 1.0, "one")])


def test_a_text_belongs_to_the_region_that_is_its_parent(tmp_path: Path) -> None:
    text = text_of("one", "t") | {"parentID": "p"}
    path = export(tmp_path, annotation(region_of("p", 0.0, 1.0), text, text_of([], "q")))
    assert spans(collected(path).utterances)[0] == (0.0, 1.0, "one")


def test_texts_of_several_channels_are_refused_only_if_regions_name_several(tmp_path: Path) -> None:
    path = export(tmp_path, annotation(region_of("p", 0.0, 1.0), text_of("one", "p")))
    record(tmp_path, "a.wav", num_channels=2)
    assert collected(path).utterances[0].text == "one"
    second = [region_of("q", 0.5, 1.5, channel=1), text_of("two", "q")]
    path = export(tmp_path, annotation(*second))
    record(tmp_path, "a.wav", num_channels=2)
    assert mentions(problem(path), "channel 1 of 2")


@pytest.mark.parametrize(
    "change",
    [
        lambda task: task.pop("annotations"),
        lambda task: task.update(annotations=5),
        lambda task: task.update(annotations=["a"]),
        lambda task: task["annotations"][0].update(result=[["a"]]),
        lambda task: task["annotations"][0]["result"][0].pop("value"),
        lambda task: task["annotations"][0]["result"][0]["value"].update(start="early", end="late"),
        lambda task: task["annotations"][0]["result"].extend([region_of("p", 0, 1), text_of("two", "p")]),
        lambda task: task["annotations"][0].update(updated_at="yesterday"),
        lambda task: task["data"].pop("audio"),
    ],
)
def test_a_task_without_the_expected_keys_is_named(change: Callable[[Any], Any], tmp_path: Path) -> None:
    path = export(tmp_path, annotation(text_of("one")))
    tasks = json.loads(path.read_text())
    change(tasks[0])
    path.write_text(json.dumps([tasks[1], tasks[0]]))
    assert mentions(problem(path), f"{path} ... task 1")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ([{"audio": "a.wav", "id": 1, "transcription": "one", "annotator": 1, "annotation_id": 1}], "JSON-MIN"),
        ([{"data": {"audio": "a.wav"}, "text": "one"}], "data, text"),
        ([], "tasks"),
        (["a"], "tasks"),
    ],
)
def test_other_json_is_refused_by_name(content: Any, named: str, tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    path.write_text(json.dumps(content))
    with refused(InputError, f"{path} ... {named}", cure="format JSON"):
        collected(path)
