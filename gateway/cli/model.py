"""`sluice model`: lists, loads, unloads and registers the models of a running server, over the protocol's HTTP."""

import argparse
import base64
import http.client
import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from sluice.gateway.cli import validate as validate_command
from sluice.gateway.cli.http_client import Headers, add_server_arguments, check_url, open_url, unreachable
from sluice.gateway.cli.text.text_table import aligned
from sluice.models.errors import ConfigError, ServingError
from sluice.models.repository.names import check_name

_T = TypeVar("_T")

LOAD_TIMEOUT_S = 600
"""Time for a server to load and warm a model."""


class _Refusal(msgspec.Struct):
    error: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command can do."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = _action(actions, "list", _list, "tell all that the server knows, and how it is")
    listing.add_argument("--ready", action="store_true", help="only what is ready")
    listing.add_argument("--json", action="store_true", help="as the server tells it, for programs")
    load = _action(actions, "load", _load, "load a model or pipeline, or load it again if it has changed")
    load.add_argument("name", metavar="NAME")
    load.add_argument("--config", type=Path, metavar="FILE", help="a configuration in JSON instead of the repository's")
    unload = _action(actions, "unload", _unload, "unload a model or pipeline")
    unload.add_argument("name", metavar="NAME")
    unload.add_argument("--dependents", action="store_true", help="also the models that only it needs")
    unload.add_argument("--recycle", action="store_true", help="replace the workers that held it: all memory returns")
    config = _action(actions, "config", _config, "print the configuration of a model or pipeline")
    config.add_argument("name", metavar="NAME")
    config.add_argument("--version", default="", metavar="N", help="a version (default: the latest)")
    register = _action(
        actions, "register", _register, "upload a model and load it; kept until it is unloaded or the server ends"
    )
    register.add_argument("name", metavar="NAME")
    register.add_argument("--file", type=Path, required=True, metavar="FILE", help="the model, e.g. model.onnx")
    register.add_argument("--labels", type=Path, metavar="FILE", help="names of an output's elements, one a line")
    register.add_argument("--config", type=Path, metavar="FILE", help="a configuration in JSON")
    check = actions.add_parser("validate", help="check a model repository, or model files, without a server")
    validate_command.add_arguments(check)


def _action(actions: Any, name: str, command: Any, help: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=help)
    parser.set_defaults(command=command)
    add_server_arguments(parser)
    return parser


def _list(options: argparse.Namespace) -> int:
    body = call(options.url, "/v2/repository/index", {"ready": options.ready}, options.header)
    entries = _decoded(options.url, body, list[dict[str, str]])
    if options.json:
        print(body.decode())
        return 0
    columns = ("name", "version", "state", "reason")
    # The protocol tells of what was never loaded just the name.
    known = [{"state": "not loaded", **entry} for entry in entries]
    rows = [columns, *(tuple(entry.get(column, "") for column in columns) for entry in known)]
    for line in aligned(rows, len(columns)):
        print(line)
    return 0


def _load(options: argparse.Namespace) -> int:
    check_name("NAME", options.name)
    parameters = {} if options.config is None else {"config": _text(options.config)}
    given = {} if options.config is None else {"config.pbtxt": options.config}
    return _change(options, "load", parameters, given)


def _unload(options: argparse.Namespace) -> int:
    # The protocol's unload of what there is not succeeds.
    body = call(options.url, "/v2/repository/index", {}, options.header)
    index = _decoded(options.url, body, list[dict[str, str]])
    if all(entry.get("name") != options.name for entry in index):
        print(f"sluice: {options.url}: there is no model or pipeline '{options.name}'", file=sys.stderr)
        return 1
    parameters = {"unload_dependents": options.dependents, "recycle": options.recycle}
    return _change(options, "unload", {name: value for name, value in parameters.items() if value})


def _config(options: argparse.Namespace) -> int:
    version = f"/versions/{quote(options.version, safe='')}" if options.version else ""
    body = call(options.url, f"/v2/models/{quote(options.name, safe='')}{version}/config", None, options.header)
    print(json.dumps(_decoded(options.url, body, dict[str, Any]), indent=2))
    return 0


def _register(options: argparse.Namespace) -> int:
    check_name("NAME", options.name)
    suffix = _suffix(options.file)
    parameters = {f"file:1/model{suffix}": _encoded(options.file)}
    config: dict[str, Any] = {}
    if options.config is not None:
        try:
            config = json.loads(_text(options.config))
        except ValueError as error:
            raise ConfigError(f"{options.config}: not JSON: {error}") from error
        if not isinstance(config, dict):
            raise ConfigError(f"{options.config}: expected an object, the configuration of a model")
    if options.labels is not None:
        outputs = config.setdefault("output", _outputs(options.file))
        if not isinstance(outputs, list) or not outputs or not isinstance(outputs[0], dict):
            raise ConfigError("--labels: expected a --config that names the output that the labels are for")
        outputs[0].setdefault("label_filename", "labels.txt")
        parameters[f"file:{outputs[0]['label_filename']}"] = _encoded(options.labels)
    given = {f"1/model{suffix}": options.file, "1": options.file, "config.pbtxt": options.config or "--config"}
    return _change(options, "load", {"config": json.dumps(config), **parameters}, given)


def _suffix(path: Path) -> str:
    """How the name of a model file ends, by which a server knows what it is."""
    from sluice.models.repository.scan import MODEL_SUFFIXES  # which takes long to import

    for suffix in MODEL_SUFFIXES:
        if path.name.endswith(suffix):
            return suffix
    raise ConfigError(f"--file {path}: expected a model, whose name ends in one of {', '.join(MODEL_SUFFIXES)}")


def _outputs(path: Path) -> list[dict[str, str]]:
    """The outputs of a model in a configuration that leaves all else to its file, if it is one that says so."""
    if path.suffix != ".onnx":
        return []
    from sluice.models.triton_config.onnx_file import read_tensors  # which takes long to import

    return [{"name": output.name} for output in read_tensors(path).outputs]


def _change(
    options: argparse.Namespace, what: str, parameters: dict[str, Any], given: Mapping[str, object] | None = None
) -> int:
    """Have a model changed; `given` are files of the user's by the names that the server has for them."""
    body = {"parameters": parameters} if parameters else {}
    try:
        call(options.url, f"/v2/repository/models/{quote(options.name, safe='')}/{what}", body, options.header)
    except ServingError as error:
        message = str(error)
        for theirs, ours in (given or {}).items():
            place = re.escape(f"{options.name}/{theirs}:")
            message = re.sub(rf"(?<!\S)(\S*/)?{place}", f"{ours}:".replace("\\", r"\\"), message)
        raise ServingError(message) from error
    print(f"{options.name}: {what}ed")
    return 0


def call(url: str, path: str, body: object | None, headers: Headers = ()) -> bytes:
    """What a server at `url` answers: to a POST of `body` in JSON, or to a GET without one.

    Raises ServingError, with what the server says if it refuses, and when it cannot be reached.
    """
    check_url(url)
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url.rstrip("/") + path, data, dict(headers))
        with open_url(request, timeout=LOAD_TIMEOUT_S) as response:
            answer: bytes = response.read()
    except urllib.error.HTTPError as error:
        with error:
            raise ServingError(f"{url}: {_reason(error)}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise unreachable(url, error, LOAD_TIMEOUT_S) from error
    return answer


def _decoded(url: str, body: bytes, type: type[_T]) -> _T:
    try:
        return msgspec.json.decode(body, type=type)
    except msgspec.MsgspecError as error:
        raise ServingError(f"{url}: not an answer of Sluice") from error


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return msgspec.json.decode(error.read(), type=_Refusal).error
    except (msgspec.MsgspecError, OSError, http.client.HTTPException):
        return f"status {error.code}, which is not an answer of Sluice"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def _encoded(path: Path) -> str:
    try:
        return base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
