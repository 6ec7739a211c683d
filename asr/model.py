"""python -m asr.model MODEL: print a model's parts, sizes, names of weights, tokens and features."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asr.base.text.numbers import counted
from asr.base.text.printable import printable
from asr.base.text.table import lay_out
from asr.core.cli.command import MODELS, add_base, run_command
from asr.core.cli.parser import CommandParser

if TYPE_CHECKING:
    from asr.core.checkpoint.bundle import Bundle
    from asr.core.recognition.recognizer import Recognizer
    from asr.interfaces import Tokenizer

NUM_TOKENS = 20  # number of tokens that are printed without --tokens
SECTIONS = ("normalizer", "tokenizer", "features", "encoder", "prompt", "head", "decode")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the description of a model."""
    description = "Print a model's parts with their settings, the names, shapes and number of its weights, its tokens "
    parser = CommandParser(prog="python -m asr.model", description=description + "and its features.")
    parser.add_argument("model", metavar="MODEL", help=f"{MODELS}, or hf://OWNER/NAME")
    add_base(parser)
    parser.add_argument("--tokens", action="store_true", help="print only the tokens, one per line: number and token")
    options = parser.parse_args(arguments)
    from asr.core.checkpoint.load import bundle_recognizer, read_model
    from asr.core.hub.download import path_of

    path = path_of(options.model)
    bundle = read_model(path, None if options.base is None else path_of(options.base))
    recognizer = bundle_recognizer(bundle, path)
    tokens = _shown(recognizer.model.tokenizer)
    if options.tokens:
        print("\n".join(f"{number}\t{shown}" for number, shown in enumerate(tokens)))
        return 0
    print(f"{printable(options.model)}: {repr(recognizer).strip('<>').removeprefix('Recognizer: ')}")
    print("\n".join(["", *_parts(bundle), "", *_frames(recognizer), "", *_weights(bundle.weights), ""]))
    more = f", ... (--tokens prints all {len(tokens):,})" if len(tokens) > NUM_TOKENS else ""
    print(f"tokens: {', '.join(tokens[:NUM_TOKENS])}{more}")
    return 0


def _shown(tokenizer: "Tokenizer") -> list[str]:
    """Quote the names of tokens, because many begin with a space, and mark those that are left out of texts."""
    pairs = zip(tokenizer.names, tokenizer.pieces, strict=True)
    return [
        f"{printable(name)!r}{'' if piece.strip() or piece == name else ' (hidden)'}" if name else "blank"
        for name, piece in pairs
    ]


def _parts(bundle: "Bundle") -> Iterator[str]:
    """Yield a line for each section of the config, and for each component in a section."""
    for section in filter(bundle.config.__contains__, SECTIONS):
        settings = bundle.config[section]
        if isinstance(settings, Mapping):
            yield from _part(section, settings)
        else:
            yield f"{section}: {settings}"


def _part(name: str, settings: Mapping[str, Any]) -> Iterator[str]:
    inner = {key: value for key, value in settings.items() if isinstance(value, Mapping)}
    own = [f"{key}={value}" for key, value in settings.items() if key not in inner and key != "name"]
    yield printable(f"{name}: {settings['name']}" + (f" ({', '.join(own)})" if own else ""))
    for key, part in inner.items():
        yield from _part(f"  {name.strip()}.{key}", part)


def _frames(recognizer: "Recognizer") -> Iterator[str]:
    """Yield the durations that follow from features and encoder."""
    from asr.core.recognition.latency import latencies, listed

    model = recognizer.model
    hop, rate = model.features.hop, model.features.sample_rate
    yield f"features: {model.features.dim} values every {1000 * hop / rate:g} ms, of audio of {rate:,} Hz"
    kind = "streaming" if model.encoder.streaming is not None else "not streaming"
    yield f"encoder: {model.encoder.output_dim} values every {1000 * model.frame_seconds:g} ms, {kind}"
    if latencies(model):
        yield f"latency: {listed(model)} s (--latency)"


def _weights(weights: Mapping[str, Any]) -> list[str]:
    """Return a table of the weights; names and shapes that differ only in the number of a block share a row."""
    groups: dict[tuple[str, tuple[int, ...], str], int] = {}
    for name, weight in weights.items():
        kind = str(weight.dtype).removeprefix("torch.")
        key = re.sub(r"\.\d+(?=\.|$)", ".*", name), tuple(weight.shape), kind
        groups[key] = groups.get(key, 0) + 1
    if not groups:
        return ["weights: in the exported programs"]
    rows = [("weights, as patterns for init.frozen", "tensors", "shape", "type", "numbers")]
    for (pattern, shape, kind), count in groups.items():
        size = f"{count * math.prod(shape):,}"
        rows.append((printable(pattern), f"{count:,}", "x".join(map(str, shape)) or "-", kind, size))
    numbers = sum(weight.numel() for weight in weights.values())
    total = f"{counted(len(weights), 'tensor')}, {counted(numbers, 'number')}"
    megabytes = sum(weight.numel() * weight.element_size() for weight in weights.values()) / 1e6
    return [*lay_out(rows), f"{total}, {megabytes:,.1f} MB"]


if __name__ == "__main__":
    run_command(main)
