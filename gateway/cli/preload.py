"""`sluice model preload`: fills the response cache of a running server with the answers to the rows of a file."""

import argparse
import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from sluice.gateway.cli.client.http import ServerAddress, add_server_arguments, decode, request
from sluice.gateway.cli.progress import progress
from sluice.models.errors import ConfigError, ServingError

if TYPE_CHECKING:
    from sluice.gateway.cli.inference.http import HttpInference
    from sluice.gateway.cli.inference.messages import Inference, ModelInfo
    from sluice.models.tensors.arrays import Array

AT_ONCE = 8
"""Requests that are under way at a time, so that a server has batches to form and others are not crowded out."""
TIMEOUT_S = 600.0


class _Counts(msgspec.Struct, frozen=True):
    """The times that something happened."""

    count: int = 0


class _CacheStatistics(msgspec.Struct, frozen=True):
    """The counts of the response cache."""

    cache_hit: _Counts = _Counts()
    cache_miss: _Counts = _Counts()


class _ModelStatistics(msgspec.Struct, frozen=True):
    inference_stats: _CacheStatistics


class _Statistics(msgspec.Struct, frozen=True):
    model_stats: list[_ModelStatistics]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.set_defaults(command=_preload)
    parser.add_argument("name", metavar="NAME", help="name of the model or pipeline")
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="an .npz file with an array for each input, of as many rows each"
    )
    parser.add_argument(
        "--rows", type=int, default=1, metavar="N", help="rows of a request, as clients will send them (default: 1)"
    )
    add_server_arguments(parser)


def _preload(options: argparse.Namespace) -> int:
    if options.rows < 1:
        raise ConfigError(f"--rows: expected at least 1, got {options.rows}")
    from sluice.gateway.cli.inference.http import HttpInference

    server = ServerAddress.of(options)
    arrays = _arrays(options.file)
    model = HttpInference(server, options.name, "", TIMEOUT_S)
    is_batchable = _check_model(server, options.name)
    if options.rows > 1 and not is_batchable:
        raise ConfigError(f"--rows: expected 1, since '{options.name}' has no batch dimension, got {options.rows}")
    requests = list(_requests(arrays, model.metadata(), str(options.file), options.rows, is_batchable))
    before = _statistics(server, options.name)
    _send(model, requests)
    after = _statistics(server, options.name)
    known = after.cache_hit.count - before.cache_hit.count
    new = after.cache_miss.count - before.cache_miss.count
    if known + new < len(requests):
        raise ServingError(
            f"{server.url}: the answers of '{options.name}' were not kept; expected a server with --cache-bytes above 0"
        )
    print(f"{options.name}: {len(requests)} requests; {new} answers are new in the cache, {known} were there")
    return 0


def _send(model: "HttpInference", requests: "list[Inference]") -> None:
    """Send all requests, `AT_ONCE` at a time; the first error ends it, with the number of the request."""
    with progress(len(requests)) as shown, ThreadPoolExecutor(AT_ONCE) as threads:
        shown.begin("filling the cache", len(requests))
        answers = [threads.submit(model.infer, each) for each in requests]
        for number, answer in enumerate(answers):
            try:
                answer.result()
            except ServingError as error:
                threads.shutdown(wait=False, cancel_futures=True)
                raise ServingError(f"request {number} of {len(requests)}: {error}") from error
            shown.advance()


def _arrays(file: Path) -> "dict[str, Array]":
    """The arrays of a file, which have the same number of rows."""
    import numpy as np

    try:
        loaded = np.load(io.BytesIO(file.read_bytes()), allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise ValueError("it holds one array without a name")
        arrays = {name: loaded[name] for name in loaded.files}
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ConfigError(f"{file}: cannot be read as .npz: {error}") from error
    rows = {name: array.shape[0] if array.ndim else None for name, array in arrays.items()}
    if len(set(rows.values())) != 1 or None in rows.values() or 0 in rows.values():
        found = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items()) or "none"
        raise ConfigError(f"{file}: expected arrays with the same number of rows, at least 1, got {found}")
    return arrays


def _check_model(server: ServerAddress, name: str) -> bool:
    """Return whether a model has a batch dimension. Raises ConfigError unless its answers may be cached."""
    body = request(server, f"/v2/models/{quote(name, safe='')}/config")
    config = decode(server.url, body, dict[str, Any])
    cache = config.get("response_cache")
    if not (isinstance(cache, Mapping) and cache.get("enable")):
        raise ConfigError(
            f"{name}: its answers are not cached; expected response_cache {{ enable: true }} in its config"
        )
    return bool(config.get("max_batch_size"))


def _requests(
    arrays: "Mapping[str, Array]", model: "ModelInfo", place: str, rows: int, is_batchable: bool
) -> "Iterator[Inference]":
    """Requests of `rows` rows each; the last one may have fewer."""
    from sluice.gateway.cli.inference.inputs import from_arrays

    count = len(next(iter(arrays.values())))
    for first in range(0, count, rows):
        part = {name: array[first : first + rows] if is_batchable else array[first] for name, array in arrays.items()}
        try:
            yield from_arrays(part, model)
        except ConfigError as error:
            raise ConfigError(f"{place}: row {first}: {error}") from error


def _statistics(server: ServerAddress, name: str) -> _CacheStatistics:
    """The counts of all versions of a model, of which the latest one answers."""
    body = request(server, f"/v2/models/{quote(name, safe='')}/stats")
    versions = [each.inference_stats for each in decode(server.url, body, _Statistics).model_stats]
    return _CacheStatistics(
        _Counts(sum(each.cache_hit.count for each in versions)),
        _Counts(sum(each.cache_miss.count for each in versions)),
    )
