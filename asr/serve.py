"""python -m asr.serve MODEL: serve a page, HTTP endpoints (one is compatible with OpenAI's) and a WebSocket."""

import argparse
import errno
import importlib.util
import ipaddress
import math
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from asr.base.settings.rule import STREAM_SECONDS, THREADS
from asr.base.text.printable import printable
from asr.core.cli.command import check_language, inference, load_model, model_parser, run_command
from asr.core.decoder_choice import add_decoding
from asr.errors import InputError, how_to_install

if TYPE_CHECKING:
    from asr.apps.serve.hosts import Hosts
    from asr.apps.serve.hotwords import ServedHotwords
    from asr.apps.serve.pages import ExampleAudio
    from asr.core.recognition.inference import Inference
    from asr.core.recognition.recognizer import Recognizer
    from asr.interfaces import Biasing

# The extra `serve`:
PACKAGES = ("fastapi", "fastapi_offline", "uvicorn", "websockets", "python_multipart", "prometheus_client")
NUMBERS = (  # option, type, metavar, default, help
    ("--max-megabytes", float, "N", 100, "limit of an upload"),
    ("--max-seconds", float, "S", 600, "limit of a recording"),
    ("--upload-seconds", float, "S", 60, "timeout of an upload"),
    ("--queue", int, "N", 64, "maximum number of queued recordings"),
    # larger batches increase the delay, but hardly increase the throughput
    ("--max-batch", int, "N", 8, "maximum number of recordings in a batch"),
    ("--streams", int, "N", 16, "maximum number of concurrent streams"),
    ("--stream-seconds", float, "S", 3600, "maximum length of a stream"),
    ("--idle-seconds", float, "S", 30, "timeout of a stream without messages"),
    ("--chunk-seconds", float, "S", None, "length of a stream's chunk (default: the model's)"),
    ("--left-seconds", float, "S", None, "left context of a chunk (default: the model's)"),
    ("--right-seconds", float, "S", None, "right context of a chunk (default: the model's)"),
    ("--num-threads", int, "N", None, "threads of the model on a CPU (default: torch's choice)"),
    ("--stop-seconds", float, "S", 30, "time limit of a shutdown"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM; accepted recordings are finished."""
    options = _parser().parse_args(arguments)
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"asr.serve needs packages that are not installed: {', '.join(missing)}. {how_to_install('serve')}"
        )
    from asr.apps.serve.hosts import known_hosts
    from asr.apps.serve.pages import read_examples

    _check(options)
    inference_options = _bounds(options)
    with _bound_socket(options.host, options.port) as server_socket:
        hosts = known_hosts(options.host, server_socket.getsockname()[0], options.allowed_host)
        recognizer = load_model(options)
        inference_options = _with_prompt(recognizer, inference_options)
        hotwords = _served_hotwords(recognizer, options)
        _tell(recognizer, hosts)
        examples = read_examples(options.example, options.max_seconds)
        _serve(options, recognizer, inference_options, hosts, hotwords, examples, server_socket)
    return 0


def _parser() -> argparse.ArgumentParser:
    about = "Serve a page, an HTTP endpoint and a WebSocket for speech recognition."
    parser = model_parser("serve", about, workers=False)
    server = parser.add_argument_group("the server")
    server.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine only)"
    )
    server.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="another accepted Host header, such as a proxy's name; may be repeated; *: any (default: --host and "
        "localhost; unless --host is a loopback address, also this machine's name and any address)",
    )
    server.add_argument(
        "--forwarded-allow-ips",
        metavar="ADDRESSES",
        help="proxies whose X-Forwarded-For is trusted in the log, separated by commas; *: all (default: none)",
    )
    server.add_argument("--port", type=int, default=8000, help="port; 0: any free port (default 8000)")
    name = "the model's name for clients, such as whisper-1 (default: the name of its folder)"
    server.add_argument("--model-name", metavar="NAME", help=name)
    language = "language of the model, such as en, for /v1/audio/transcriptions and for the model's prompt, if it has "
    language += "one (default: unknown)"
    server.add_argument("--language", metavar="CODE", help=language)
    server.add_argument(
        "--example", action="append", default=[], metavar="FILE", help="recording for the page; may be repeated"
    )
    server.add_argument(
        "--hotwords-list",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="hotwords, one per line, that requests choose with hotwords_list=NAME; may be repeated",
    )
    server.add_argument(
        "--prompt-hotwords",
        action="store_true",
        help="take the phrases between commas or lines of OpenAI's field prompt as hotwords",
    )
    for option, kind, metavar, default, meaning in NUMBERS:
        shown = "" if default is None else f" (default {default})"
        server.add_argument(option, type=kind, default=default, metavar=metavar, help=f"{meaning}{shown}")
    add_decoding(parser)
    return parser


def _check(options: argparse.Namespace) -> None:
    bounds = ("max_megabytes", "max_seconds", "upload_seconds", "queue", "max_batch", "stop_seconds")
    for key in (*bounds, "streams", "stream_seconds", "idle_seconds"):
        value = getattr(options, key)
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"--{key.replace('_', '-')} must be positive and finite; got {value}.")
    for key, rule in ({"num_threads": THREADS} | STREAM_SECONDS).items():
        if getattr(options, key) is not None:
            rule.check("--" + key.replace("_", "-"), getattr(options, key))
    if options.model_name is not None and not (options.model_name.strip() and options.model_name.isprintable()):
        raise InputError(f"--model-name must be a printable name; got {options.model_name!r}.")
    if not 0 <= options.port < 1 << 16:
        raise InputError(f"--port must be between 0 and 65535; got {options.port}.")
    if options.forwarded_allow_ips not in (None, "*"):
        _check_addresses(options.forwarded_allow_ips)


def _with_prompt(recognizer: "Recognizer", inference_options: "Inference") -> "Inference":
    """Leave --language to the answers if the model has no prompt; otherwise, check that the prompt knows it."""
    from dataclasses import replace

    from asr.core.data.labels import LANGUAGE

    if LANGUAGE not in recognizer.model.labels.names:
        check_language(inference_options.language)
        return replace(inference_options, language=None)
    if inference_options.language is not None:
        recognizer.model.labels.check(LANGUAGE, inference_options.language, "--language")
    return inference_options


def _check_addresses(addresses: str) -> None:
    for address in addresses.split(","):
        try:
            ipaddress.ip_network(address.strip())
        except ValueError as error:
            must = "--forwarded-allow-ips must be addresses or networks, separated by commas, or *"
            raise InputError(f"{must}; got {addresses}: {error}.") from None


def _bounds(options: argparse.Namespace) -> "Inference":
    """Return the options of inference, with the server's number of recordings in a batch."""
    from dataclasses import replace

    inference_options = inference(options)
    return replace(inference_options, batches=replace(inference_options.batches, max_utterances=options.max_batch))


def _bound_socket(host: str, port: int) -> socket.socket:
    """Bind the address before the model is loaded; earlier connections are answered once the model is loaded."""
    must = "--host and --port must be a free address of this machine"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen()  # without listen(), another server could bind the same address
        except OSError:
            bound.close()
            raise
    except (OSError, UnicodeError) as error:
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = "it is in use; choose another --port" if in_use else getattr(error, "strerror", None) or str(error)
        raise InputError(f"{must}; got {host}:{port}: {reason}.") from None
    return bound


def _served_hotwords(recognizer: "Recognizer", options: argparse.Namespace) -> "ServedHotwords":
    """Compile the lists of --hotwords-list."""
    from asr.apps.serve.hotwords import ServedHotwords
    from asr.components.decode.fusion.hotwords import read_phrases

    compiled = recognizer.decode.compile_hotwords
    if compiled is None:
        if options.prompt_hotwords or options.hotwords_list:
            option = "--prompt-hotwords" if options.prompt_hotwords else "--hotwords-list"
            raise InputError(f"{option} needs a beam search; got {recognizer.decode.description}. Add --beam 4.")
        return ServedHotwords(recognizer)
    lists: dict[str, Biasing] = {}
    for given in options.hotwords_list:
        name, _, path = given.partition("=")
        if not (name and path) or name in lists:
            must = "--hotwords-list must be NAME=FILE, with a different NAME each time"
            raise InputError(f"{must}; got {given}.")
        lists[name] = compiled(read_phrases(path), None)
        print(printable(f"hotwords: list {name} has {len(lists[name].phrases):,} phrases"), file=sys.stderr)
        _tell_impossible(lists[name])
    return ServedHotwords(recognizer, lists, options.prompt_hotwords)


def _tell(recognizer: "Recognizer", hosts: "Hosts") -> None:
    """Print notes on hotwords that cannot be recognised, and on access to the server."""
    _tell_impossible(recognizer.decode.biasing)
    if hosts.any_address:
        print("note: everybody who can reach --host can use the server; it has no password", file=sys.stderr)


def _tell_impossible(biasing: "Biasing") -> None:
    for phrase, reason in biasing.impossible.items():
        print(printable(f"hotwords: {phrase!r} cannot be recognised: {reason}"), file=sys.stderr)


def _serve(
    options: argparse.Namespace,
    recognizer: "Recognizer",
    inference_options: "Inference",
    hosts: "Hosts",
    hotwords: "ServedHotwords",
    examples: "tuple[ExampleAudio, ...]",
    server_socket: socket.socket,
) -> None:
    from dataclasses import replace

    from asr.apps.serve.jobs import Jobs
    from asr.apps.serve.metrics import Metrics
    from asr.apps.serve.run import serve
    from asr.apps.serve.service import Service
    from asr.apps.serve.stream_client import StreamLimits
    from asr.apps.serve.stream_sockets import StreamSockets
    from asr.apps.serve.streams import Streams
    from asr.apps.serve.upload import Limits, Uploads
    from asr.core.recognition.captions import StreamSettings

    metrics = Metrics()
    of_jobs = replace(inference_options, language=None)  # a request's language takes precedence
    jobs = Jobs(recognizer, of_jobs, queue=options.queue, num_threads=options.num_threads, on_batch=metrics.batch)
    limits = Limits(round(options.max_megabytes * 1e6), options.max_seconds, options.upload_seconds)
    uploads = Uploads(limits, options.queue, metrics.uploading)
    streams = Streams(
        recognizer,
        StreamSettings(
            options.chunk_seconds, options.left_seconds, options.right_seconds, language=inference_options.language
        ),
        num_threads=options.num_threads,
        on_turn=metrics.turn,
    )
    if streams.note:
        print(printable(f"note: live captions are slower with this model: {streams.note}"), file=sys.stderr)
    stream_limits = StreamLimits(options.streams, options.stream_seconds, options.idle_seconds)
    sockets = StreamSockets(streams, stream_limits, hotwords, metrics.stream, metrics.stream_ended)
    name = options.model_name or _name(options.model)
    service = Service(name, recognizer, jobs, sockets, uploads, metrics, hosts, hotwords, examples, options.language)
    serve(service, server_socket, options.stop_seconds, options.forwarded_allow_ips)


def _name(model: str) -> str:
    """Return the default name of a model: the name of its folder."""
    path = Path(os.path.abspath(model))
    return printable(path.parent.name if path.name == "bundle" else path.stem if path.suffix == ".ckpt" else path.name)


if __name__ == "__main__":
    run_command(main)
