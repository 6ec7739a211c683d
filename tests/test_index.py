"""Indexes of manifests: each row equals a manifest's line, all processes share one index, and faults are handled."""

import errno
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.components.head.ctc import CTC
from asr.components.tokenizer.char import Char
from asr.core.data import index as index_module
from asr.core.data import index_cache, token_counts
from asr.core.data.dataset import Reference
from asr.core.data.fingerprint import fingerprint, stored_fingerprint
from asr.core.data.index import open_index, record_batches
from asr.core.data.index_cache import IndexCache
from asr.core.data.manifest import Utterance, known, read_manifest
from asr.core.data.token_counts import count_tokens, stored_counts
from asr.core.data.utterances import Part, Utterances, with_known_ids
from asr.errors import InputError
from tests.refusals import mentions, refused
from tests.tones import sentences

TEXTS = st.text('ab \n"é\u4e2d\U0001f600\udcff', max_size=8)  # \udcff: a byte that is not UTF-8
SECONDS = st.floats(0.001, 1e6)
SPEAKERS = st.none() | TEXTS.filter(known)
UTTERANCES = st.lists(
    st.builds(Utterance, TEXTS, SECONDS, TEXTS, TEXTS, st.none() | st.floats(0, 1e6), SPEAKERS), max_size=12
)
TOKENIZER = Char()
TOKENIZER.fit(["abcdefghijklmnopqrstuvwxyz "])
REFERENCE = Reference(TOKENIZER.encode, CTC.min_frames, lambda frames: frames // 4)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit record batches to 5 rows, so that an index has several batches."""
    monkeypatch.setattr(index_module, "BATCH_ROWS", 5)


@pytest.fixture
def cache(tmp_path: Path) -> IndexCache:
    return IndexCache(tmp_path / "cache")


def write_lines(path: Path, number: int, **keys: object) -> Path:
    """Write a manifest; some of its utterances have an offset or a speaker."""
    lines = []
    for place, text in enumerate(sentences(number, seed=4)):
        line = {"id": f"u{place}", "audio_filepath": f"audio/{place}.wav", "duration": 1 + place / 8, "text": text}
        line |= {"offset": place / 2} if place % 3 else {}
        line |= {"speaker": f"s{place % 4}"} if place % 2 else {}
        lines.append(json.dumps(line | keys) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


@settings(deadline=None)  # cores may be shared
@given(UTTERANCES)
def test_rows_equal_the_utterances_that_they_were_made_from(utterances: list[Utterance]) -> None:
    assert list(Utterances.of(utterances)) == utterances


def test_an_index_contains_all_data_of_the_manifest(tmp_path: Path, cache: IndexCache) -> None:
    path = write_lines(tmp_path / "train.jsonl", 23)
    listed, indexed = read_manifest(path), cache.utterances(path)
    assert list(indexed) == listed
    assert indexed[-1] == listed[-1]
    assert list(indexed[3:17:2]) == listed[3:17:2]
    assert list(indexed.texts) == [utterance.text for utterance in listed]
    assert indexed.texts[4:6] == [utterance.text for utterance in listed[4:6]]
    assert indexed.durations.tolist() == [utterance.duration for utterance in listed]
    assert list(indexed.audio_paths()) == [utterance.audio_filepath for utterance in listed]
    with pytest.raises(IndexError):
        indexed[23]


def test_rows_selected_from_several_manifests_keep_their_order_and_audio_paths(
    tmp_path: Path, cache: IndexCache
) -> None:
    (tmp_path / "other").mkdir()
    paths = write_lines(tmp_path / "a.jsonl", 12), write_lines(tmp_path / "other" / "b.jsonl", 9)
    listed = [utterance for path in paths for utterance in read_manifest(path)]
    joined = Utterances.joined([cache.utterances(path) for path in paths]).normalized(str.upper)
    places = np.array([0, 4, 5, 11, 12, 13, 20])
    chosen = joined.select(places).select(np.array([1, 2, 4, 6]))
    expected = [listed[place] for place in (4, 5, 12, 20)]
    assert [utterance.id for utterance in chosen] == list(chosen.ids) == [utterance.id for utterance in expected]
    assert list(chosen.texts) == [utterance.text.upper() for utterance in chosen]
    assert list(chosen.texts) == [utterance.text.upper() for utterance in expected]
    assert list(chosen.audio_paths()) == [utterance.audio_filepath for utterance in expected]
    assert chosen.durations.tolist() == [utterance.duration for utterance in expected]


def test_non_utf8_names_and_large_numeric_ids_are_preserved(tmp_path: Path, cache: IndexCache) -> None:
    lines = [
        b'{"audio_filepath": "\xff.wav", "duration": 1, "text": "a"}',
        b'{"id": 123456789012345678901234567890, "audio_filepath": "b.wav", "duration": 2, "text": "b"}',
        b'{"id": 7, "audio_filepath": "c.wav", "offset": 1.50, "duration": 2, "text": "c", "speaker": 3}',
    ]
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    indexed = cache.utterances(path)
    assert list(indexed) == read_manifest(path)
    assert list(indexed.ids) == ["\udcff.wav", "123456789012345678901234567890", "7"]
    assert os.fsencode(indexed[0].audio_filepath) == os.fsencode(tmp_path) + b"/\xff.wav"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"audio_filepath": "a.wav", "duration": NaN, "text": "a"}', "duration; got nan"),
        ('{"audio_filepath": "a.wav", "text": "a"}', "missing duration"),
        ('{"audio_filepath": "a.wav", "duration": 1,', "line ... JSON"),
        ('{"audio_filepath": "\\ud800.wav", "duration": 1, "text": "a"}', "lone surrogate"),
        ('{"id": "u2", "audio_filepath": "a.wav", "duration": 1, "text": "a"}', "'u2' ... 3"),
    ],
)
def test_errors_name_the_file_and_the_line_and_leave_no_index(
    line: str, message: str, tmp_path: Path, cache: IndexCache
) -> None:
    path = write_lines(tmp_path / "train.jsonl", 9)
    path.write_text(path.read_text() + line + "\n")
    with refused(InputError, f"{path}:10 ... {message}"):
        cache.utterances(path)
    assert [file.suffix for file in cache.folder.iterdir()] == [".lock"]


@pytest.mark.parametrize("content", [None, b"", b"\n \n"])
def test_an_absent_or_empty_manifest_is_named(content: bytes | None, tmp_path: Path, cache: IndexCache) -> None:
    path = tmp_path / "train.jsonl"
    if content is not None:
        path.write_bytes(content)
    with refused(InputError, "such manifest" if content is None else "least one utterance"):
        cache.utterances(path)


def test_a_moved_manifest_keeps_its_index_and_a_changed_one_gets_a_new_index(tmp_path: Path, cache: IndexCache) -> None:
    path = write_lines(tmp_path / "train.jsonl", 9)
    first = cache.utterances(path)
    (tmp_path / "moved").mkdir()
    moved = cache.utterances(path.rename(tmp_path / "moved" / "renamed.jsonl"))
    assert moved.source == first.source
    assert moved[0].audio_filepath == str(tmp_path / "moved" / "audio" / "0.wav")
    before = path.parent.stat()
    write_lines(path, 9, text="other")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert cache.utterances(path).texts[0] == "other"


@pytest.mark.parametrize("damage", ["truncated", "empty", "foreign"])
def test_a_damaged_index_is_rebuilt(
    damage: str, tmp_path: Path, cache: IndexCache, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_lines(tmp_path / "train.jsonl", 9)
    expected = list(cache.utterances(path))
    (stored,) = cache.folder.glob("*.arrow")
    if damage == "foreign":
        with pa.ipc.new_file(str(stored), pa.schema([("x", pa.int64())])):
            pass
    else:
        os.truncate(stored, stored.stat().st_size // 2 if damage == "truncated" else 0)
    assert list(cache.utterances(path)) == expected
    assert mentions(caplog.text, "written again")


def test_an_index_may_be_given_as_a_manifest_unless_it_is_damaged(tmp_path: Path, cache: IndexCache) -> None:
    path = write_lines(tmp_path / "train.jsonl", 9)
    expected = list(cache.utterances(path))
    (stored,) = cache.folder.glob("*.arrow")
    stored.rename(tmp_path / "index.arrow")
    assert list(cache.utterances(tmp_path / "index.arrow")) == expected
    os.truncate(tmp_path / "index.arrow", 1000)
    with refused(InputError, "index.arrow ... be an index"):
        cache.utterances(tmp_path / "index.arrow")


def test_a_read_only_cache_folder_causes_a_warning_and_does_not_stop_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_lines(tmp_path / "train.jsonl", 9)
    (tmp_path / "file").write_text("in the way")
    cache = IndexCache(tmp_path / "file")
    utterances = cache.utterances(path)
    assert list(utterances) == read_manifest(path)
    counts = stored_counts(utterances, REFERENCE, cache, "")
    assert counts.num_tokens.tolist() == [len(text) for text in utterances.texts]
    assert mentions(caplog.text, "data.index_dir ... writable folder")


def test_a_full_disk_causes_a_warning_and_does_not_stop_the_run(
    tmp_path: Path, cache: IndexCache, caplog: pytest.LogCaptureFixture
) -> None:
    program = (
        "import resource, sys; from pathlib import Path; from asr.core.data.index_cache import IndexCache\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "print(len(IndexCache(sys.argv[1]).utterances(Path(sys.argv[2]))))"
    )
    path = write_lines(tmp_path / "train.jsonl", 90)
    command = [sys.executable, "-c", program, str(cache.folder), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "90\n"
    assert mentions(done.stderr, "in memory")
    assert list(cache.folder.glob("*.arrow")) == []


def test_an_error_while_numbers_are_computed_is_not_attributed_to_the_cache_folder(cache: IndexCache) -> None:
    def compute() -> np.ndarray:
        raise FileNotFoundError("words.txt")

    with pytest.raises(FileNotFoundError, match=r"words\.txt"):
        cache.numbers("key", compute)
    assert cache.numbers("key", lambda: np.arange(3)).tolist() == [0, 1, 2]  # the lock is released


def test_numbers_are_computed_only_once_even_if_the_disk_is_full(
    cache: IndexCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, write: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(index_cache, "write_whole", full)
    computed: list[int] = []
    assert cache.numbers("key", lambda: (computed.append(1), np.arange(3))[1]).tolist() == [0, 1, 2]
    assert computed == [1]
    assert mentions(caplog.text, "in memory")


def test_ids_of_several_manifests_are_compared_once_for_all_processes(
    tmp_path: Path, cache: IndexCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write_lines(tmp_path / name, count) for name, count in (("a.jsonl", 9), ("b.jsonl", 5), ("c.jsonl", 3))]
    lines = [json.loads(line) for line in paths[1].read_text().splitlines()]
    paths[1].write_text("".join(json.dumps(line | {"id": f"other-{line['id']}"}) + "\n" for line in lines))

    def parts() -> list[Part]:
        return [part for path in paths for part in cache.utterances(path).parts]

    expected = with_known_ids(parts())
    assert expected == {2}  # number 2, c.jsonl, repeats ids of a.jsonl
    assert cache.with_known_ids(parts()) == expected
    monkeypatch.setattr(index_cache, "with_known_ids", lambda parts: pytest.fail("it was computed again"))
    assert cache.with_known_ids(parts()) == expected
    paths[2].write_text(paths[1].read_text().replace("other", "third"))
    monkeypatch.undo()
    assert cache.with_known_ids(parts()) == set()  # different content gives a different key


def _open(folder: Path, path: Path, queue: "multiprocessing.Queue[tuple[int, int]]") -> None:
    count = 0

    def slowly(utterances: Iterator[Utterance], labels: Sequence[str]) -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in record_batches(utterances, labels):
            count += 1
            time.sleep(0.05)
            yield batch

    index_module.record_batches = slowly  # type: ignore[assignment]
    utterances = IndexCache(folder).utterances(path)
    queue.put((count, len(utterances)))


def test_only_one_process_writes_an_index_and_a_killed_process_releases_the_lock(
    tmp_path: Path, cache: IndexCache
) -> None:
    path = write_lines(tmp_path / "train.jsonl", 60)
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[tuple[int, int]] = context.Queue()
    racers = [context.Process(target=_open, args=(cache.folder, path, queue)) for _ in range(3)]
    racers[0].start()
    while not list(cache.folder.glob("*.unfinished")) and not list(cache.folder.glob(".*")):
        time.sleep(0.005)
    for racer in racers[1:]:
        racer.start()
    time.sleep(0.1)
    assert racers[0].pid is not None
    os.kill(racers[0].pid, signal.SIGKILL)
    results = sorted(queue.get(timeout=30) for _ in racers[1:])
    assert [length for _, length in results] == [60, 60]
    assert [batches for batches, _ in results] == [0, 12]  # one process wrote the index, the other loaded it
    for racer in racers:
        racer.join()


def test_stored_token_counts_equal_the_lengths_of_the_encoded_texts(tmp_path: Path, cache: IndexCache) -> None:
    utterances = cache.utterances(write_lines(tmp_path / "train.jsonl", 23))
    counts = stored_counts(utterances, REFERENCE, cache, "char")
    tokens = [TOKENIZER.encode(text) for text in utterances.texts]
    assert counts.num_tokens.tolist() == [len(ids) for ids in tokens]
    assert counts.min_frames.tolist() == [CTC.min_frames(ids) for ids in tokens]


def test_each_text_is_encoded_once_and_again_only_after_a_change(tmp_path: Path, cache: IndexCache) -> None:
    encoded: list[str] = []

    def encode(text: str) -> list[int]:
        encoded.append(text)
        return TOKENIZER.encode(text)

    reference = Reference(encode, CTC.min_frames, REFERENCE.output_lengths)
    utterances = cache.utterances(write_lines(tmp_path / "train.jsonl", 300))
    probed = 100
    stored_counts(utterances, reference, cache, "char")
    assert len(encoded) == 300 + probed
    stored_counts(utterances, reference, cache, "char")
    assert len(encoded) == 300 + 2 * probed
    shorter = stored_counts(utterances.normalized(lambda text: text[1:]), reference, cache, "char")
    assert len(encoded) == 600 + 3 * probed
    assert shorter.num_tokens.tolist() == [len(text) - 1 for text in utterances.texts]


def test_counting_in_several_processes_gives_equal_counts_and_the_same_error(
    tmp_path: Path, cache: IndexCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    utterances = cache.utterances(write_lines(tmp_path / "train.jsonl", 40))
    alone = count_tokens(utterances, REFERENCE)
    monkeypatch.setattr(token_counts, "CHUNK", 7)
    monkeypatch.setattr(token_counts, "MIN_PARALLEL", 10)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    parallel = count_tokens(utterances, REFERENCE)
    assert parallel.num_tokens.tolist() == alone.num_tokens.tolist()
    assert parallel.min_frames.tolist() == alone.min_frames.tolist()
    odd = utterances.normalized(lambda text: text + "ß" if text == utterances.texts[29] else text)
    first = list(odd.texts).index(utterances.texts[29] + "ß")
    with refused(InputError, f"valid ... 1 of 40 utterances ... 'ß' (u{first})"):
        count_tokens(odd, REFERENCE, "valid")


def test_the_fingerprint_computed_from_an_index_equals_that_of_its_utterances(
    tmp_path: Path, cache: IndexCache
) -> None:
    utterances = cache.utterances(write_lines(tmp_path / "train.jsonl", 23)).normalized(str.upper)
    expected = fingerprint(list(utterances))
    assert expected.startswith("23 utterances, sha256 ")
    assert stored_fingerprint(utterances, cache, "upper") == expected
    assert stored_fingerprint(utterances, cache, "upper") == expected  # read from disk
    assert stored_fingerprint(utterances.normalized(str.lower), cache, "upper") == fingerprint(
        list(utterances.normalized(str.lower))
    )


def test_several_indexed_manifests_have_the_same_fingerprint_as_without_an_index(
    tmp_path: Path, cache: IndexCache
) -> None:
    import hashlib

    paths = write_lines(tmp_path / "a.jsonl", 12), write_lines(tmp_path / "b.jsonl", 9)
    joined = Utterances.joined([cache.utterances(path) for path in paths])
    digest = hashlib.sha256()
    for utterance in [utterance for path in paths for utterance in read_manifest(path)]:
        line = f"{utterance.id}\t{utterance.offset}\t{utterance.duration}\t{utterance.text}\n"
        digest.update(line.encode())
    assert stored_fingerprint(joined, cache, "") == f"21 utterances, sha256 {digest.hexdigest()[:16]}"


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        (b"[1]", "whose shards ... sizes"),
        (b'{"a.tar": -1}', "whose shards ... sizes"),
        (b'{"../a.tar": 1}', "shards ... of the index"),
        (b"{", "be an index"),
    ],
)
def test_a_malicious_description_of_shards_is_refused(shards: bytes, message: str, tmp_path: Path) -> None:
    [batch] = record_batches([Utterance("a", 1.0, "a", "a")])
    metadata = {**index_module.SCHEMA.metadata, index_module.SHARDS: shards}
    with pa.ipc.new_file(str(tmp_path / "index.arrow"), batch.schema.with_metadata(metadata)) as writer:
        writer.write_batch(batch)
    with refused(InputError, message):
        open_index(tmp_path / "index.arrow")


@pytest.mark.parametrize("damage", ["gap", "offsets", "duration", "extent"])
def test_malicious_columns_are_refused(damage: str, tmp_path: Path) -> None:
    [batch] = record_batches([Utterance("a", 1.0, "a", str(number)) for number in range(3)])
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns |= {
        "gap": {"id": pa.array([b"a", None, b"c"], pa.binary())},
        "offsets": {
            "text": pa.Array.from_buffers(
                pa.binary(), 3, [None, pa.py_buffer(np.array([0, 1 << 30, 2, 3], np.int32)), pa.py_buffer(b"abc")]
            )
        },
        "duration": {"duration": pa.array([1.0, float("nan"), 1.0])},
        "extent": {"start": pa.array([0, -1, 0]), "num_bytes": pa.array([1, 1, 1])},
    }[damage]
    with pa.ipc.new_file(str(tmp_path / "index.arrow"), index_module.SCHEMA) as writer:
        writer.write_batch(pa.record_batch(list(columns.values()), schema=index_module.SCHEMA))
    with refused(InputError, "index.arrow"):
        open_index(tmp_path / "index.arrow")


def test_an_index_with_record_batches_of_other_sizes_is_refused(tmp_path: Path) -> None:
    batches = list(record_batches([Utterance("a", 1.0, "a", str(number)) for number in range(6)]))
    with pa.ipc.new_file(str(tmp_path / "index.arrow"), batches[0].schema) as writer:
        for batch in reversed(batches):
            writer.write_batch(batch)
    with refused(InputError, "whose record batches ... it is damaged"):
        open_index(tmp_path / "index.arrow")


def test_utterances_without_a_manifest_are_not_cached(cache: IndexCache, caplog: pytest.LogCaptureFixture) -> None:
    utterances = Utterances.of([Utterance("a", 1.0, "abc", "x")])
    with caplog.at_level(logging.INFO):
        assert stored_counts(utterances, REFERENCE, cache, "char").num_tokens.tolist() == [3]
    assert not cache.folder.exists()
    assert Utterances([Part(utterances.parts[0].index, "folder")])[0].audio_filepath == "folder/a"
