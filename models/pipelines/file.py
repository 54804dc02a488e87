"""The format of `pipeline.yaml`; errors name the place in the file."""

import re
from typing import Any, TypeVar

import msgspec

from sluice.models.conversion import convert
from sluice.models.errors import ConfigError
from sluice.models.pipelines.pipeline import MOST_COPIES, Combiner, Compete, Late, OnLate, TensorSource, When
from sluice.models.slo import MAX_SLO_MS
from sluice.models.spelling import closest
from sluice.models.yaml_file import Lines, load_yaml

_T = TypeVar("_T", bound=msgspec.Struct)
_KINDS = ("model", "family", "combine")
"""The keys that tell the kinds of stages apart."""
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")


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
    compete: Compete | None = None
    on_late: OnLate = OnLate.WAIT


class PipelineFile(msgspec.Struct, frozen=True):
    """A pipeline as written, in the file's order, not yet checked against models; `lines` are those of the file."""

    stages: dict[str, StageFile]
    outputs: dict[str, tuple[TensorSource, ...]]
    slo_ms: float | None
    late: Late | None
    weight: float
    percentile: float | None
    client_key: str | None
    lines: Lines


def decode_pipeline(text: str, path: str) -> PipelineFile:
    """Decode the text of a `pipeline.yaml`; raises ConfigError, whose message starts with `path` and the place."""
    value, lines = load_yaml(text, path)
    top = convert(value, PipelineKeys, path, lines=lines)
    read = _Reader(path, lines)
    return PipelineFile(
        stages={name: read.stage(stage, f"stages.{name}") for name, stage in top.stages.items()},
        outputs={name: read.output(output, f"outputs.{name}") for name, output in top.outputs.items()},
        slo_ms=top.slo_ms,
        late=top.late,
        weight=top.weight,
        percentile=top.percentile,
        client_key=top.client_key,
        lines=lines,
    )


class PipelineKeys(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of a file."""

    stages: dict[str, Any]
    outputs: dict[str, Any]
    slo_ms: float | None = None
    late: Late | None = None
    weight: float = 1.0
    percentile: float | None = None
    client_key: str | None = None


class ModelStage(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of a stage that is a model."""

    model: str
    inputs: dict[str, Any]
    version: int | None = None
    when: Any = None
    compete: Any = None


class FamilyStage(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of a stage that is any model of a family."""

    family: str
    inputs: dict[str, Any]
    min_accuracy: float | None = None
    when: Any = None
    compete: Any = None


class CombinerStage(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of a stage that combines answers."""

    combine: Combiner
    of: list[Any]
    weights: tuple[float, ...] = ()
    when: Any = None
    on_late: OnLate = OnLate.WAIT


class CompeteKeys(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of `compete`; `after` is a number of milliseconds, or a percentile such as p90."""

    copies: int = 2
    after: float | str = 0.0


class OutputKeys(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of an output that is not a text."""

    sources: str | list[Any] = msgspec.field(name="from")


class _Reader:
    """Reads the parts of a file, each with its place for errors."""

    def __init__(self, path: str, lines: Lines) -> None:
        self._path = path
        self._lines = lines

    def stage(self, value: object, at: str) -> StageFile:
        """A stage of any kind."""
        if isinstance(value, dict) and "combine" in value:
            combiner = self._convert(value, CombinerStage, at)
            of = tuple(self._source(source, f"{at}.of.{index}") for index, source in enumerate(combiner.of))
            when = self._when(combiner.when, at)
            return StageFile(
                combine=combiner.combine, of=of, weights=combiner.weights, when=when, on_late=combiner.on_late
            )
        if isinstance(value, dict) and "family" in value:
            family = self._convert(value, FamilyStage, at)
            return StageFile(
                family=family.family,
                min_accuracy=family.min_accuracy,
                inputs=self._inputs(family.inputs, at),
                when=self._when(family.when, at),
                compete=self._compete(family.compete, at),
            )
        if isinstance(value, dict) and "model" not in value:
            raise self._error(at, _no_kind(value))
        model = self._convert(value, ModelStage, at)
        return StageFile(
            model=model.model,
            version=model.version,
            inputs=self._inputs(model.inputs, at),
            when=self._when(model.when, at),
            compete=self._compete(model.compete, at),
        )

    def output(self, value: object, at: str) -> tuple[TensorSource, ...]:
        """The sources of an output."""
        sources = value if isinstance(value, str) else self._convert(value, OutputKeys, at).sources
        if isinstance(sources, str):
            return (self._source(sources, at),)
        return tuple(self._source(source, f"{at}.from.{index}") for index, source in enumerate(sources))

    def _inputs(self, values: dict[str, Any], at: str) -> dict[str, TensorSource]:
        return {name: self._source(source, f"{at}.inputs.{name}") for name, source in values.items()}

    def _when(self, value: object, at: str) -> When | None:
        return None if value is None else self._convert(value, When, f"{at}.when")

    def _compete(self, value: object, at: str) -> Compete | None:
        if value is None:
            return None
        keys = self._convert(value, CompeteKeys, f"{at}.compete")
        if not 2 <= keys.copies <= MOST_COPIES:
            raise self._error(f"{at}.compete.copies", f"expected 2 to {MOST_COPIES}, got {keys.copies}")
        after = keys.after
        if isinstance(after, str):
            found = _PERCENTILE.fullmatch(after)
            if found is not None and float(found[1]) > 0:
                return Compete(keys.copies, percentile=float(found[1]))
        elif 0 <= after <= MAX_SLO_MS:
            return Compete(keys.copies, after)
        expected = f"0, a number of milliseconds up to {MAX_SLO_MS:.0f} or a percentile such as p90"
        raise self._error(f"{at}.compete.after", f"expected {expected}, got {after!r:.80}")

    def _source(self, value: object, at: str) -> TensorSource:
        stage, _, tensor = value.partition(".") if isinstance(value, str) else ("", "", "")
        if not stage or not tensor:
            raise self._error(at, f"expected STAGE.TENSOR or request.TENSOR, got {value!r:.80}")
        return TensorSource(stage, tensor)

    def _convert(self, value: object, form: type[_T], at: str) -> _T:
        return convert(value, form, self._path, at, lines=self._lines)

    def _error(self, at: str, what: str) -> ConfigError:
        return self._lines.error(self._path, at, what)


def _no_kind(stage: dict[Any, Any]) -> str:
    """The error for a stage of no kind, with the key that was probably meant to tell it."""
    similar = {str(key): found for key in stage if (found := closest(str(key), _KINDS))}
    hint = "".join(f"; did you mean '{found}' by '{key}'?" for key, found in list(similar.items())[:1])
    return f"expected 'model', 'family' or 'combine'{hint}"
