"""Hashes of everything that determines a bulk job's texts: input, model, settings."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, uint8

from asr.apps.bulk.source import Source
from asr.base.storage.location import absolute
from asr.core.checkpoint.bundle import Bundle
from asr.core.checkpoint.load import read_model
from asr.core.decoder_choice import with_decoder
from asr.core.hub.download import path_of
from asr.errors import InputError

COLUMNS = (
    "id",
    "audio_filepath",
    "duration",
    "offset",
    "speaker",
    "start",
    "num_bytes",
)  # columns of an index that are hashed; texts are not hashed
DIGITS = 32  # hexadecimal digits of a fingerprint


def settings_fingerprint(settings: Mapping[str, Any]) -> str:
    """Return the hash of settings that are plain values."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:DIGITS]


def input_fingerprint(source: Source, labels: Sequence[str] = ()) -> str:
    """Return the hash of a job's utterances: ids, locations, durations, labels, and versions of audio or shards."""
    digest = hashlib.sha256(source.versions)
    for part in source.utterances.parts:
        digest.update(absolute(part.folder).encode("utf-8", "surrogateescape") if part.folder else b"")
        for batch in part.index.batches:
            for name in COLUMNS:
                values = batch.column(name).to_pylist()
                digest.update("\n".join(map(repr, values)).encode())
    for label in labels:
        digest.update("\n".join(map(repr, source.utterances.label(label))).encode())
    return digest.hexdigest()[:DIGITS]


def model_fingerprint(model: str | Path, base: str | Path | None, decode: Mapping[str, Any]) -> str:
    """Return the hash of a model: weights, config, files of the bundle, and the decoder with the files it reads.

    Args:
        model: as for `load_recognizer`.
        base: base of the model if it is an adapter.
        decode: settings of the decoder that replace the model's own.
    """
    bundle = read_model(Path(path_of(model)), None if base is None else Path(path_of(base)))
    bundle = replace(bundle, config=with_decoder(bundle.config, decode))
    digest = hashlib.sha256()
    for name, content in _contents(bundle):
        digest.update(f"{name}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:DIGITS]


def _contents(bundle: Bundle) -> Iterator[tuple[str, bytes]]:
    attached = {str(path): key for key, path in bundle.attached.items()}
    for key, path in sorted(bundle.attached.items()):
        try:
            yield key, _file_digest(path)
        except OSError as error:
            raise InputError(f"{key} must be a file that can be read; got {path}: {error.strerror}.") from None
    yield "config", json.dumps(_without_paths(bundle.config, attached), sort_keys=True, default=str).encode()
    yield from sorted(bundle.files.items())
    for name, path in sorted(bundle.programs.items()):
        yield name, _file_digest(path)
    for name, weight in sorted(bundle.weights.items()):
        yield f"{name} {weight.dtype} {tuple(weight.shape)}", _bytes(weight)


def _without_paths(value: Any, attached: Mapping[str, str]) -> Any:
    """Return a config in which setting names replace the paths of attached files, whose contents are hashed instead."""
    if isinstance(value, Mapping):
        return {key: _without_paths(item, attached) for key, item in value.items()}
    return attached.get(str(value), value) if isinstance(value, str | Path) else value


def _file_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _bytes(weight: Tensor) -> bytes:
    return weight.detach().contiguous().flatten().view(uint8).numpy().tobytes()
