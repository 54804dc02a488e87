"""`sluice infer`: sends one inference request to a running server, and prints the outputs."""

import argparse
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.gateway.cli.client.http import Refused, ServerAddress
from sluice.models.command_line import add_connection_options, quantity
from sluice.models.errors import ConfigError

if TYPE_CHECKING:
    from sluice.gateway.cli.inference.grpc import GrpcInference
    from sluice.gateway.cli.inference.http import HttpInference
    from sluice.gateway.cli.inference.messages import Inference, Inferred, ModelInfo, TypedArray

FAILED = 1
"""Exit status when the server refused the request, or could not run it."""
TIMEOUT_S = 60.0
"""Time for the answer."""
MAX_FILE_BYTES = 1 << 30

_HTTP, _GRPC = "http://127.0.0.1:8000", "grpc://127.0.0.1:8001"
_WHOLE_ELEMENTS = 100
"""Outputs with more elements are printed without their middle."""
_EDGE_ELEMENTS = 4
_LINE_CHARACTERS = 110


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.set_defaults(command=_infer)
    add = parser.add_argument
    add("model", metavar="MODEL", help="name of a model or pipeline, or NAME:VERSION")
    add(
        "file",
        nargs="?",
        metavar="FILE",
        help="the inputs: a body of the V2 protocol or inputs by name in JSON, .npz or .npy; - for standard input",
    )
    add("--zeros", action="store_true", help="send zeros, and empty strings, of the shapes in the model's metadata")
    add("--rows", type=int, metavar="N", help="with --zeros: rows of the batch (default 1)")
    shape = "with --zeros: the whole shape of an input, such as image=1,3,224,224 (repeatable)"
    add("--shape", type=_shape, action="append", default=[], metavar="NAME=N,N", help=shape)
    add("--url", metavar="URL", help=f"URL of the server (default {_HTTP}, with --grpc {_GRPC})")
    add("--grpc", action="store_true", help="send it over gRPC, as with a URL that begins with grpc:// or grpcs://")
    add_connection_options(parser)
    add("--timeout-s", type=quantity("_s"), default=TIMEOUT_S, metavar="S", help="time for the answer (default 60)")
    add("--json", action="store_true", help="print the answer as JSON")


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, sizes = text.rpartition("=")
    numbers = sizes.split(",") if sizes else []
    if not name or not all(number.isdecimal() for number in numbers):
        raise argparse.ArgumentTypeError(f"expected NAME=N,N with whole numbers, got '{text:.80}'")
    return name, tuple(map(int, numbers))


def _infer(options: argparse.Namespace) -> int:
    _check(options)
    data = None if options.zeros else _read(options.file)
    try:
        with _server(options) as server:
            model = server.metadata()
            inference = _inputs(options, model, data)
            began = time.perf_counter()
            outcome = server.infer(inference)
            took_ms = (time.perf_counter() - began) * 1000
    except Refused as error:
        print(f"sluice: {error}", file=sys.stderr)
        return FAILED
    if options.json:
        print(_json(model, outcome, took_ms))
    else:
        _print(model, outcome, took_ms)
    return 0


def _check(options: argparse.Namespace) -> None:
    if options.zeros == (options.file is not None):
        got = "both" if options.zeros else "neither"
        raise ConfigError(f"expected either --zeros or FILE, got {got}")
    if not options.zeros and (options.shape or options.rows is not None):
        raise ConfigError("--rows and --shape: expected with --zeros only")
    if options.rows is not None and options.rows < 1:
        raise ConfigError(f"--rows: expected at least 1, got {options.rows}")
    if not 0 < options.timeout_s < float("inf"):
        raise ConfigError(f"--timeout-s: expected seconds above 0, got {options.timeout_s:g}")


def _read(file: str) -> bytes:
    """The contents of the file with the inputs."""
    try:
        if file == "-":
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                data = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{file}: larger than {MAX_FILE_BYTES >> 20} MiB")
    return data


def _server(options: argparse.Namespace) -> "AbstractContextManager[HttpInference | GrpcInference]":
    name, _, version = options.model.partition(":")
    url = options.url or (_GRPC if options.grpc else _HTTP)
    is_grpc = url.startswith(("grpc://", "grpcs://"))
    if options.grpc and not is_grpc:
        raise ConfigError(f"--url {url}: expected a URL with --grpc that begins with grpc:// or grpcs://")
    address = ServerAddress.of(argparse.Namespace(**{**vars(options), "url": url}))
    if is_grpc:
        from sluice.gateway.cli.inference.grpc import GrpcInference

        return GrpcInference(url, address.headers, address.tls, name, version, options.timeout_s)
    from sluice.gateway.cli.inference.http import HttpInference

    return nullcontext(HttpInference(address, name, version, options.timeout_s))


def _inputs(options: argparse.Namespace, model: "ModelInfo", data: bytes | None) -> "Inference":
    from sluice.gateway.cli.inference.inputs import read_inputs, zeros

    if data is None:
        return zeros(model, options.rows or 1, dict(options.shape))
    return read_inputs(data, "standard input" if options.file == "-" else options.file, model)


def _print(model: "ModelInfo", outcome: "Inferred", took_ms: float) -> None:
    version = f" version {outcome.version}" if outcome.version else ""
    id = f", request {outcome.id}" if outcome.id else ""
    print(f"{model.name}{version}: {took_ms:.1f} ms{id}")
    for name, tensor in outcome.outputs.items():
        print(f"{name}  {tensor.datatype} {list(tensor.array.shape)}")
        print("".join(f"  {line}\n" for line in _values(tensor).split("\n")), end="")


def _values(tensor: "TypedArray") -> str:
    import numpy as np

    from sluice.gateway.cli.inference.messages import as_numbers

    return np.array2string(
        as_numbers(tensor),
        max_line_width=_LINE_CHARACTERS,
        precision=6,
        suppress_small=True,
        separator=", ",
        threshold=_WHOLE_ELEMENTS,
        edgeitems=_EDGE_ELEMENTS,
    )


def _json(model: "ModelInfo", outcome: "Inferred", took_ms: float) -> str:
    import orjson

    from sluice.gateway.cli.inference.messages import as_numbers

    outputs = [
        {
            "name": name,
            "datatype": tensor.datatype,
            "shape": tensor.array.shape,
            "data": as_numbers(tensor).ravel().tolist(),
        }
        for name, tensor in outcome.outputs.items()
    ]
    answer = {"model_name": model.name, "model_version": outcome.version, "id": outcome.id, "outputs": outputs}
    return orjson.dumps({**answer, "time_ms": round(took_ms, 3)}).decode()
