"""The form of `pipeline.yaml`: what it may say, and errors that name the place in the file."""

import re
from collections.abc import Hashable
from typing import Any, TypeVar

import msgspec
import yaml

from models.errors import ConfigError
from models.pipeline import Combiner, Confidence, Late, Source, When

_T = TypeVar("_T", bound=msgspec.Struct)
_PLACE = re.compile(r"(?P<what>.*) - at (?P<key>`key` in )?`\$(?P<where>.*)`", re.DOTALL)
_CHOICES: dict[str, type[Late | Combiner | Confidence]] = {
    "late": Late,
    "combine": Combiner,
    "confidence": Confidence,
}


class StageFile(msgspec.Struct, frozen=True):
    """A stage as written: `model` with `inputs`, or `combine` with `of`."""

    model: str | None
    version: int | None
    inputs: dict[str, Source]
    combine: Combiner | None
    of: tuple[Source, ...]
    when: When | None


class PipelineFile(msgspec.Struct, frozen=True):
    """A pipeline as written, in the file's order; nothing in it is checked against models yet."""

    stages: dict[str, StageFile]
    outputs: dict[str, tuple[Source, ...]]
    slo_ms: float | None
    late: Late


def decode_pipeline(text: str, path: str) -> PipelineFile:
    """Decode the text of a `pipeline.yaml`; raises ConfigError, whose message starts with `path` and the place."""
    try:
        document = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that does not exist
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    top = _convert(document, _Top, path, "")
    return PipelineFile(
        stages={name: _stage(stage, path, f"stages.{name}") for name, stage in top.stages.items()},
        outputs={name: _output(output, path, f"outputs.{name}") for name, output in top.outputs.items()},
        slo_ms=top.slo_ms,
        late=top.late,
    )


class _Top(msgspec.Struct, forbid_unknown_fields=True):
    stages: dict[str, Any]
    outputs: dict[str, Any]
    slo_ms: float | None = None
    late: Late = Late.SERVE


class _ModelStage(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    inputs: dict[str, Any]
    version: int | None = None
    when: Any = None


class _CombinerStage(msgspec.Struct, forbid_unknown_fields=True):
    combine: Combiner
    of: list[Any]
    when: Any = None


class _Output(msgspec.Struct, forbid_unknown_fields=True):
    sources: str | list[Any] = msgspec.field(name="from")


def _stage(value: object, path: str, at: str) -> StageFile:
    if isinstance(value, dict) and "combine" in value:
        stage = _convert(value, _CombinerStage, path, at)
        of = tuple(_source(source, path, f"{at}.of.{index}") for index, source in enumerate(stage.of))
        return StageFile(None, None, {}, stage.combine, of, _when(stage.when, path, at))
    if isinstance(value, dict) and "model" not in value:
        raise ConfigError(f"{path}: {at}: expected 'model' or 'combine'")
    model = _convert(value, _ModelStage, path, at)
    inputs = {name: _source(source, path, f"{at}.inputs.{name}") for name, source in model.inputs.items()}
    return StageFile(model.model, model.version, inputs, None, (), _when(model.when, path, at))


def _when(value: object, path: str, at: str) -> When | None:
    return None if value is None else _convert(value, When, path, f"{at}.when")


def _output(value: object, path: str, at: str) -> tuple[Source, ...]:
    sources = value if isinstance(value, str) else _convert(value, _Output, path, at).sources
    if isinstance(sources, str):
        return (_source(sources, path, at),)
    return tuple(_source(source, path, f"{at}.from.{index}") for index, source in enumerate(sources))


def _source(value: object, path: str, at: str) -> Source:
    stage, _, tensor = value.partition(".") if isinstance(value, str) else ("", "", "")
    if not stage or not tensor:
        raise ConfigError(f"{path}: {at}: expected STAGE.TENSOR or request.TENSOR, got {value!r:.80}")
    return Source(stage, tensor)


def _convert(value: object, form: type[_T], path: str, at: str) -> _T:
    """`value` as `form`, which is flat enough for msgspec's place to be a field of it."""
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        what, where = str(error), ""
        if match := _PLACE.fullmatch(what):
            what, where = match["what"], match["where"].lstrip(".")
            if match["key"]:
                what = f"{what} as a name; put it in quotes"
        if "unknown field" in what:
            fields = ", ".join(field.encode_name for field in msgspec.structs.fields(form))
            what = f"{what}; expected {fields}"
        if "enum" in what and where in _CHOICES:
            what = f"{what}; expected {' or '.join(_CHOICES[where])}"
        place = ".".join(part for part in (at, where) if part)
        raise ConfigError(f"{path}: {place}: {what}" if place else f"{path}: {what}") from error


class _Loader(yaml.SafeLoader):
    """A SafeLoader that refuses a key given twice: a second stage of the same name would silently replace the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.value in seen and isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, f"'{key_node.value}' twice", key_node.start_mark)
            if isinstance(key_node, yaml.ScalarNode):
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)
