"""YAML files with strict rules: no key twice, no unknown key, and errors that name the place."""

import re
from collections.abc import Hashable
from typing import Any, TypeVar, get_args

import msgspec
import yaml

from sluice.models.errors import ConfigError

_T = TypeVar("_T", bound=msgspec.Struct)
_PLACE = re.compile(r"(?P<what>.*) - at (?P<key>`key` in )?`\$(?P<where>.*)`", re.DOTALL)


def load_yaml(text: str, path: str) -> object:
    """The document in `text`; raises ConfigError, whose message starts with `path`."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that does not exist
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from error


def convert(value: object, form: type[_T], path: str, at: str) -> _T:
    """Convert `value`, found at `at`, to `form`; raises ConfigError, whose message starts with `path` and the place.

    `form` must be flat enough for msgspec's place to be a field of it.
    """
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        what, where = str(error), ""
        if match := _PLACE.fullmatch(what):
            what, where = match["what"], match["where"].lstrip(".")
            if match["key"]:
                what = f"{what} as a name; put it in quotes"
        fields = {field.encode_name: field.type for field in msgspec.structs.fields(form)}
        if "unknown field" in what:
            what = f"{what}; expected {', '.join(fields)}"
        if "enum" in what and (choices := _choices(fields.get(where))):
            what = f"{what}; expected {' or '.join(choices)}"
        place = ".".join(part for part in (at, where) if part)
        raise ConfigError(f"{path}: {place}: {what}" if place else f"{path}: {what}") from error


def _choices(field: Any) -> list[str]:
    """The texts that a field of an enum may have, which may be left out."""
    return [choice for each in get_args(field) or (field,) for choice in getattr(each, "__members__", {}).values()]


class _Loader(yaml.SafeLoader):
    """A SafeLoader that refuses a repeated key: a second stage of the same name would silently replace the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.value in seen and isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, f"'{key_node.value}' twice", key_node.start_mark)
            if isinstance(key_node, yaml.ScalarNode):
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)
