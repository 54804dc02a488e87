"""`sluice model`: lists, loads, unloads, registers and preloads the models of a running server over HTTP."""

import argparse
import base64
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sluice.gateway.cli import preload as preload_command
from sluice.gateway.cli import validate as validate_command
from sluice.gateway.cli.client.http import ServerAddress, add_server_arguments, decode, request
from sluice.models.errors import ConfigError, ServingError
from sluice.models.repository.names import check_name
from sluice.models.text_table import print_table

LOAD_TIMEOUT_S = 600
"""Time for a server to load and warm up a model."""

_STYLES = {"READY": "green", "LOADING": "yellow", "UNLOADING": "yellow", "UNAVAILABLE": "red", "not loaded": "dim"}
"""Colours of states on a terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of the command."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = _action(actions, "list", _list, "list all models and pipelines with their state")
    listing.add_argument("--ready", action="store_true", help="list only what is ready")
    listing.add_argument("--json", action="store_true", help="print the server's answer as JSON")
    load = _action(actions, "load", _load, "load a model or pipeline, or reload it if it has changed")
    load.add_argument("name", metavar="NAME", help="name of the model or pipeline")
    load.add_argument(
        "--config", type=Path, metavar="FILE", help="a configuration in JSON that replaces the one in the repository"
    )
    unload = _action(actions, "unload", _unload, "unload a model or pipeline")
    unload.add_argument("name", metavar="NAME", help="name of the model or pipeline")
    unload.add_argument("--dependents", action="store_true", help="also unload the models that nothing else needs")
    unload.add_argument(
        "--recycle", action="store_true", help="restart the workers that held it, freeing all their memory"
    )
    config = _action(actions, "config", _config, "print the configuration of a model or pipeline")
    config.add_argument("name", metavar="NAME", help="name of the model or pipeline")
    config.add_argument("--version", default="", metavar="N", help="the version (default: the latest)")
    register = _action(
        actions,
        "register",
        _register,
        "upload a model and load it; it is served until it is unloaded or the server stops",
    )
    register.add_argument("name", metavar="NAME", help="name of the model")
    register.add_argument("--file", type=Path, required=True, metavar="FILE", help="the model file, such as model.onnx")
    register.add_argument(
        "--labels", type=Path, metavar="FILE", help="labels of the elements of the first output, one per line"
    )
    register.add_argument("--config", type=Path, metavar="FILE", help="a configuration of the model in JSON")
    text = "fill the response cache with the answers to the rows of a file"
    preload_command.add_arguments(actions.add_parser("preload", help=text, description=text))
    text = "check a model repository, or single model files, without a server"
    check = actions.add_parser("validate", help=text, description=text)
    validate_command.add_arguments(check)


def _action(actions: Any, name: str, command: Any, help: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=help, description=help)
    parser.set_defaults(command=command)
    add_server_arguments(parser)
    return parser


def _list(options: argparse.Namespace) -> int:
    body = _ask(options, "/v2/repository/index", {"ready": options.ready})
    entries = decode(options.url, body, list[dict[str, str]])
    if options.json:
        print(body.decode())
        return 0
    columns = ("name", "version", "state", "reason")
    # For a model that was never loaded the protocol reports only the name.
    known = [{"state": "not loaded", **entry} for entry in entries]
    rows = [columns, *(tuple(entry.get(column, "") for column in columns) for entry in known)]
    print_table(rows, len(columns), styles=_STYLES)
    return 0


def _load(options: argparse.Namespace) -> int:
    check_name("NAME", options.name)
    parameters = {} if options.config is None else {"config": _text(options.config)}
    given = {} if options.config is None else {"config.pbtxt": options.config}
    return _change(options, "load", parameters, given)


def _unload(options: argparse.Namespace) -> int:
    # The protocol lets the unload of an unknown model succeed.
    body = _ask(options, "/v2/repository/index", {})
    index = decode(options.url, body, list[dict[str, str]])
    if all(entry.get("name") != options.name for entry in index):
        print(f"sluice: {options.url}: there is no model or pipeline '{options.name}'", file=sys.stderr)
        return 1
    parameters = {"unload_dependents": options.dependents, "recycle": options.recycle}
    return _change(options, "unload", {name: value for name, value in parameters.items() if value})


def _config(options: argparse.Namespace) -> int:
    version = f"/versions/{quote(options.version, safe='')}" if options.version else ""
    body = _ask(options, f"/v2/models/{quote(options.name, safe='')}{version}/config", None)
    print(json.dumps(decode(options.url, body, dict[str, Any]), indent=2))
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
            raise ConfigError(
                f"{options.config}: expected an object, the configuration of a model, got {type(config).__name__}"
            )
    if options.labels is not None:
        outputs = config.setdefault("output", _outputs(options.file))
        if not isinstance(outputs, list) or not outputs or not isinstance(outputs[0], dict):
            raise ConfigError("--labels: the output is unknown; expected a --config that names it")
        outputs[0].setdefault("label_filename", "labels.txt")
        parameters[f"file:{outputs[0]['label_filename']}"] = _encoded(options.labels)
    given = {f"1/model{suffix}": options.file, "1": options.file, "config.pbtxt": options.config or "--config"}
    return _change(options, "load", {"config": json.dumps(config), **parameters}, given)


def _suffix(path: Path) -> str:
    """The suffix of a model file, which tells the server its kind."""
    from sluice.models.repository.scan import MODEL_SUFFIXES  # slow to import

    for suffix in MODEL_SUFFIXES:
        if path.name.endswith(suffix):
            return suffix
    raise ConfigError(f"--file {path}: expected a model file that ends in one of {', '.join(MODEL_SUFFIXES)}")


def _outputs(path: Path) -> list[dict[str, str]]:
    """The `output` list of a configuration, from the model file; empty for a file without descriptions."""
    if path.suffix != ".onnx":
        return []
    from sluice.models.triton_config.onnx_file import read_tensors  # slow to import

    return [{"name": output.name} for output in read_tensors(path).outputs]


def _change(
    options: argparse.Namespace, what: str, parameters: dict[str, Any], given: Mapping[str, object] | None = None
) -> int:
    """Load or unload a model; `given` maps the server's names of uploaded files to the user's, for errors."""
    body = {"parameters": parameters} if parameters else {}
    try:
        _ask(options, f"/v2/repository/models/{quote(options.name, safe='')}/{what}", body)
    except ServingError as error:
        message = str(error)
        for theirs, ours in (given or {}).items():
            place = re.escape(f"{options.name}/{theirs}:")
            message = re.sub(rf"(?<!\S)(\S*/)?{place}", f"{ours}:".replace("\\", r"\\"), message)
        raise ServingError(message) from error
    print(f"{options.name}: {what}ed")
    return 0


def _ask(options: argparse.Namespace, path: str, body: object | None) -> bytes:
    return request(ServerAddress.of(options), path, body=body, timeout_s=LOAD_TIMEOUT_S)


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
