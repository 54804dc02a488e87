"""`sluice config`: checks and shows the settings of a server, and prints the schemas of its files."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from sluice.gateway.cli import serve
from sluice.gateway.config.configured_partitions import configured_partitions
from sluice.gateway.config.contradictions import contradictions
from sluice.gateway.config.schemas import SCHEMAS
from sluice.gateway.config.server_config import ServerConfig, check_arenas
from sluice.models.errors import ConfigError, ServingError
from sluice.models.sources.source import FsspecSource
from sluice.models.text_table import print_table
from sluice.mps.partitions.cpu import check_partitions

UNUSABLE = 2
"""Exit status for settings with which a server could not start."""
CONTRADICTORY = 1
"""Exit status with --strict when settings cannot work together."""

_HIDDEN = "********"
_SECRET = "value"
"""The key of an element of `restricted` that is a secret."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of the command."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    check = _action(actions, "check", _check, "check the settings that `sluice serve` would have with these options")
    serve.add_arguments(check)
    check.add_argument(
        "--strict", action="store_true", help="exit with 1 if settings are valid but cannot work together"
    )
    check.set_defaults(command=_check)
    show = _action(actions, "show", _show, "print every setting that `sluice serve` would have, and its origin")
    serve.add_arguments(show)
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(command=_show)
    schema = _action(actions, "schema", _schema, "print the JSON Schema of a kind of file, for editors")
    schema.add_argument("kind", choices=list(SCHEMAS), help="the kind of file")


def _action(actions: Any, name: str, command: Any, help: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=help, description=help)
    parser.set_defaults(command=command)
    return parser


def _check(options: argparse.Namespace) -> int:
    effective = serve.effective_config(options)
    serve.model_files(options)
    path = "settings" if options.config is None else str(options.config)

    def at(place: str, what: str = "") -> str:
        return effective.lines.prefix(path, place, what) if _is_in(effective.document, place) else f"{path}:"

    wrong = [f"{at(place, reason)} {reason}" for place, reason in _unusable(effective.config)]
    for line in wrong:
        print(f"sluice: {line}", file=sys.stderr)
    found = list(contradictions(effective.config))
    for each in found:
        print(f"{at(each.place)} warning: {each.place}: {each.text}")
    if wrong:
        return UNUSABLE
    if not found:
        print(f"{path}: ok")
    return CONTRADICTORY if found and options.strict else 0


def _unusable(config: ServerConfig) -> Iterator[tuple[str, str]]:
    """The settings, by their key, with which a server could not start here, and why."""
    for key, check in _CHECKS.items():
        try:
            check(config)
        except ServingError as error:
            yield key, str(error)


def _check_tls(config: ServerConfig) -> None:
    if config.tls is not None:
        config.tls.ssl_context()


def _check_ports(config: ServerConfig) -> None:
    if config.http_port == config.grpc_port != 0:
        raise ConfigError(f"grpc_port: expected another port than http_port, got {config.grpc_port} for both")


def _check_repositories(config: ServerConfig) -> None:
    for each in config.directories:
        if not each.is_dir():
            raise ConfigError(f"repository: {each}: expected a directory, the model repository")
    for url in config.sources:
        FsspecSource(url).check_packages()


_CHECKS: Mapping[str, Callable[[ServerConfig], None]] = {
    "partitions": lambda config: check_partitions(configured_partitions(config)),
    "limits": lambda config: check_arenas(config.limits),
    "tls": _check_tls,
    "grpc_port": _check_ports,
    "repository": _check_repositories,
}
"""The checks of a server that starts, by the key that each is about."""


def _show(options: argparse.Namespace) -> int:
    serve.model_files(options)
    effective = serve.effective_config(options)
    rows = list(_settings(effective, str(options.config)))
    if options.json:
        document = {place: {"value": value, "origin": origin} for place, value, origin in rows}
        print(json.dumps(document, indent=2))
    else:
        print_table([(place, _text(value), origin) for place, value, origin in rows], 3, header=False)
    return 0


def _schema(options: argparse.Namespace) -> int:
    print(json.dumps(SCHEMAS[options.kind](), indent=2))
    return 0


def _settings(effective: serve.EffectiveConfig, path: str) -> Iterator[tuple[str, object, str]]:
    """The place, the value and the origin of every setting."""

    def walk(value: object, at: str) -> Iterator[tuple[str, object, str]]:
        if isinstance(value, dict) and value and at not in effective.given:
            for key, each in value.items():
                yield from walk(each, f"{at}.{key}" if at else str(key))
            return
        if (given := _given(effective.given, at)) is not None:
            origin = given
        elif _is_in(effective.document, at):
            origin = effective.lines.prefix(path, at)[:-1]
        else:
            origin = "default"
        yield at, _without_secrets(value) if at == "restricted" else value, origin

    yield from walk(msgspec.to_builtins(effective.config), "")


def _given(given: Mapping[str, str], at: str) -> str | None:
    """The option or variable that a setting, or one that it is a part of, comes from."""
    steps = at.split(".")
    places = (".".join(steps[:count]) for count in range(len(steps), 0, -1))
    return next((given[place] for place in places if place in given), None)


def _is_in(document: Any, at: str) -> bool:
    """True if a document has a value at a place; names with dots are tried as a whole."""
    if not at:
        return True
    if not isinstance(document, dict):
        return False
    if at in document:
        return True
    heads = (str(key) for key in document if at.startswith(f"{key}."))
    return any(_is_in(document[head], at[len(head) + 1 :]) for head in heads)


def _without_secrets(elements: Any) -> list[dict[str, object]]:
    return [{**each, _SECRET: _HIDDEN} for each in elements]


def _text(value: object) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
