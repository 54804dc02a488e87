"""The format of `pipeline.yaml`; errors name the place in the file."""

from typing import Any

import msgspec

from sluice.models.errors import ConfigError
from sluice.models.pipelines.pipeline import Combiner, Late, TensorSource, When
from sluice.models.yaml_file import convert, load_yaml


class StageFile(msgspec.Struct, frozen=True):
    """A stage as written: `model` or `family` with `inputs`, or `combine` with `of` (and `weights`)."""

    model: str | None = None
    version: int | None = None
    family: str | None = None
    min_accuracy: float | None = None
    inputs: dict[str, TensorSource] = {}
    combine: Combiner | None = None
    of: tuple[TensorSource, ...] = ()
    weights: tuple[float, ...] = ()
    when: When | None = None


class PipelineFile(msgspec.Struct, frozen=True):
    """A pipeline as written, in the file's order, not yet checked against models."""

    stages: dict[str, StageFile]
    outputs: dict[str, tuple[TensorSource, ...]]
    slo_ms: float | None
    late: Late | None
    weight: float
    percentile: float | None
    client_key: str | None


def decode_pipeline(text: str, path: str) -> PipelineFile:
    """Decode the text of a `pipeline.yaml`; raises ConfigError, whose message starts with `path` and the place."""
    top = convert(load_yaml(text, path), _Top, path, "")
    return PipelineFile(
        stages={name: _stage(stage, path, f"stages.{name}") for name, stage in top.stages.items()},
        outputs={name: _output(output, path, f"outputs.{name}") for name, output in top.outputs.items()},
        slo_ms=top.slo_ms,
        late=top.late,
        weight=top.weight,
        percentile=top.percentile,
        client_key=top.client_key,
    )


class _Top(msgspec.Struct, forbid_unknown_fields=True):
    stages: dict[str, Any]
    outputs: dict[str, Any]
    slo_ms: float | None = None
    late: Late | None = None
    weight: float = 1.0
    percentile: float | None = None
    client_key: str | None = None


class _ModelStage(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    inputs: dict[str, Any]
    version: int | None = None
    when: Any = None


class _FamilyStage(msgspec.Struct, forbid_unknown_fields=True):
    family: str
    inputs: dict[str, Any]
    min_accuracy: float | None = None
    when: Any = None


class _CombinerStage(msgspec.Struct, forbid_unknown_fields=True):
    combine: Combiner
    of: list[Any]
    weights: tuple[float, ...] = ()
    when: Any = None


class _Output(msgspec.Struct, forbid_unknown_fields=True):
    sources: str | list[Any] = msgspec.field(name="from")


def _stage(value: object, path: str, at: str) -> StageFile:
    if isinstance(value, dict) and "combine" in value:
        combiner = convert(value, _CombinerStage, path, at)
        of = tuple(_source(source, path, f"{at}.of.{index}") for index, source in enumerate(combiner.of))
        return StageFile(combine=combiner.combine, of=of, weights=combiner.weights, when=_when(combiner.when, path, at))
    if isinstance(value, dict) and "family" in value:
        family = convert(value, _FamilyStage, path, at)
        return StageFile(
            family=family.family,
            min_accuracy=family.min_accuracy,
            inputs=_inputs(family.inputs, path, at),
            when=_when(family.when, path, at),
        )
    if isinstance(value, dict) and "model" not in value:
        raise ConfigError(f"{path}: {at}: expected 'model', 'family' or 'combine'")
    model = convert(value, _ModelStage, path, at)
    return StageFile(
        model=model.model,
        version=model.version,
        inputs=_inputs(model.inputs, path, at),
        when=_when(model.when, path, at),
    )


def _inputs(values: dict[str, Any], path: str, at: str) -> dict[str, TensorSource]:
    return {name: _source(source, path, f"{at}.inputs.{name}") for name, source in values.items()}


def _when(value: object, path: str, at: str) -> When | None:
    return None if value is None else convert(value, When, path, f"{at}.when")


def _output(value: object, path: str, at: str) -> tuple[TensorSource, ...]:
    sources = value if isinstance(value, str) else convert(value, _Output, path, at).sources
    if isinstance(sources, str):
        return (_source(sources, path, at),)
    return tuple(_source(source, path, f"{at}.from.{index}") for index, source in enumerate(sources))


def _source(value: object, path: str, at: str) -> TensorSource:
    stage, _, tensor = value.partition(".") if isinstance(value, str) else ("", "", "")
    if not stage or not tensor:
        raise ConfigError(f"{path}: {at}: expected STAGE.TENSOR or request.TENSOR, got {value!r:.80}")
    return TensorSource(stage, tensor)
