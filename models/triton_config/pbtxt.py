"""Triton's `ModelConfig` as text and JSON, by the protobuf message that tritonclient carries."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from google.protobuf import json_format, text_format  # type: ignore[import-untyped]
from tritonclient.grpc import model_config_pb2

from sluice.models.errors import ConfigError
from sluice.models.triton_config.field_lines import suggestion, unknown_type
from sluice.models.triton_config.fields import refuse_fields, unused_fields
from sluice.models.triton_config.model_config import TritonModelConfig

_UNSET = -(1 << 31)
"""A maximum batch size that is not given, which the message cannot distinguish from 0."""
_MAPS = ("input_map", "output_map", "parameters", "metric_tags", "inputs", "priority_queue_policy")


def decode_config(text: str, path: str) -> TritonModelConfig:
    """Decode the text of a `config.pbtxt`.

    Raises ConfigError, whose message starts with `path` and the place, for invalid text and for fields that Sluice does
    not honour.
    """
    message = model_config_pb2.ModelConfig(max_batch_size=_UNSET)
    try:
        # Only Parse refuses a field that is given twice, and only Merge sees one that is given as 0.
        text_format.Parse(text, model_config_pb2.ModelConfig())
        _refuse_repeated_keys(text)
        text_format.Merge(text, message)
    except text_format.ParseError as error:
        line, column = error.GetLine(), error.GetColumn()
        place = f"{path}:{line}:{column}" if line is not None else path
        what = str(error).removeprefix(f"{line}:{column} : ")
        hint = _hint(what)
        raise ConfigError(f"{place}: not a model configuration: {' '.join(what.split()):.500}{hint}") from error
    except ValueError as error:  # the number of an enumeration that has more than 64 bits; the parser lets it through
        before, found, _ = text.partition(str(error).rpartition(" ")[2])
        place = f"{path}:{before.count(chr(10)) + 1}" if found else path
        raise ConfigError(f"{place}: not a model configuration: {error!s:.500}") from error
    return _typed(message, path)


def decode_config_json(text: str | bytes, path: str) -> TritonModelConfig:
    """Decode a configuration in JSON, as clients send it; otherwise as `decode_config`."""
    message = model_config_pb2.ModelConfig(max_batch_size=_UNSET)
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise json_format.ParseError(f"expected an object, got {type(document).__name__}")
        json_format.ParseDict(document, message)
    except (json_format.ParseError, ValueError, RecursionError) as error:
        what = " ".join(str(error).split())
        raise ConfigError(f"{path}: not a model configuration in JSON: {what:.500}") from error
    return _typed(message, path)


def full_json(config: Mapping[str, Any]) -> dict[str, Any]:
    """A valid configuration as Triton prints it: with defaults, and 64-bit integers as numbers."""
    return _fields(json_format.ParseDict(config, model_config_pb2.ModelConfig()), defaults=True)


def encode_config(config: TritonModelConfig) -> str:
    """The JSON text of `full_json`."""
    printed = msgspec.structs.replace(config, unused=())
    return json.dumps(full_json(msgspec.to_builtins(printed, str_keys=True)))


def _typed(message: Any, path: str) -> TritonModelConfig:
    given = message.max_batch_size != _UNSET
    refuse_fields(message, path)
    fields = _fields(message, defaults=False)
    if not given:
        fields.pop("max_batch_size", None)
    else:
        fields.setdefault("max_batch_size", 0)
    if not {"graph", "execution_accelerators"} & fields.get("optimization", {}).keys():
        fields.pop("optimization", None)
    config = msgspec.convert(fields, TritonModelConfig, strict=False)
    return msgspec.structs.replace(config, unused=unused_fields(message))


def _fields(message: Any, *, defaults: bool) -> dict[str, Any]:
    """The fields by name, those with default values only if wanted; a message that is not set is always left out."""
    found: dict[str, Any] = {}
    present = {field.name for field, _ in message.ListFields()}
    for field in message.DESCRIPTOR.fields:
        if field.name not in present and (not defaults or (field.has_presence and not field.is_repeated)):
            continue
        value = getattr(message, field.name)
        if field.is_repeated and field.message_type and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            found[field.name] = {str(key): _value(inner, value[key], defaults) for key in sorted(value)}
        elif field.is_repeated:
            found[field.name] = [_value(field, each, defaults) for each in value]
        else:
            found[field.name] = _value(field, value, defaults)
    return found


def _value(field: Any, value: Any, defaults: bool) -> Any:
    if field.message_type:
        return _fields(value, defaults=defaults)
    if field.enum_type:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else str(value)
    return value


def _hint(what: str) -> str:
    """The end of an error of the parser about an unknown name or a wrong number; "" for other errors."""
    name = unknown_type(what)
    pool = model_config_pb2.ModelConfig.DESCRIPTOR.file.pool
    try:
        fields = pool.FindMessageTypeByName(name).fields_by_name
    except KeyError:
        fields = {}
    try:
        values = pool.FindEnumTypeByName(name).values_by_name
    except KeyError:
        values = {}
    return suggestion(what, fields, values)


def _refuse_repeated_keys(text: str) -> None:
    """Raise ParseError for a map with a repeated key: the parser would silently take the last one."""
    tokenizer = text_format.Tokenizer(text.splitlines())
    seen: list[set[tuple[str, str]]] = [set()]
    blocks: list[str] = []
    last = ""
    for token in _tokens(tokenizer):
        if token in {"{", "<"}:
            blocks.append(last)
            seen.append(set())
        elif token in {"}", ">"} and blocks:
            last = blocks.pop()
            seen.pop()
        elif last == "key" and blocks and blocks[-1] in _MAPS and token != ":":
            entry = (blocks[-1], token.strip("\"'"))
            if entry in seen[-2]:
                raise tokenizer.ParseError(f"{entry[0]} has the key {token} twice")
            seen[-2].add(entry)
            last = ""
        elif token not in {":", "[", "]", ","}:
            last = token


def _tokens(tokenizer: Any) -> Iterator[str]:
    while not tokenizer.AtEnd():
        yield tokenizer.token
        tokenizer.NextToken()
