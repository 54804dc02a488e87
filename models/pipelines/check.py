"""Checks a pipeline as written against the known models, and builds the pipeline that is served."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from sluice.models.errors import ConfigError
from sluice.models.pipelines.combiners import FLOATS, check_weights, combined
from sluice.models.pipelines.family import Family, Variant
from sluice.models.pipelines.file import PipelineFile, StageFile
from sluice.models.pipelines.graph import find_cycle, reachable, topological_order
from sluice.models.pipelines.model_reference import expected_one_of, find_model
from sluice.models.pipelines.pipeline import (
    PLATFORM,
    REQUEST,
    Combiner,
    Compete,
    OnLate,
    Pipeline,
    Stage,
    TensorSource,
    When,
    check_client_key,
    check_percentile,
)
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import TensorSpec, describe, merged_shape

MAX_STAGES = 256
"""A request to a pipeline of more stages would keep the gateway from others for longer than some 10 ms."""
MAX_PLANNED_STAGES = 64
"""A pipeline of more stages takes longer to plan than the 10 ms that a plan of one with an objective may take."""
_STAGE_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_VERSION = 1
_T = TypeVar("_T")


def single_model(spec: ModelSpec) -> Pipeline:
    """The one-stage pipeline that serves a single model."""
    stage = Stage(
        spec.name, {tensor.name: TensorSource(REQUEST, tensor.name) for tensor in spec.inputs}, model=spec.key
    )
    pipeline = Pipeline(
        name=spec.name,
        version=spec.version,
        inputs=spec.inputs,
        outputs=spec.outputs,
        stages=(stage,),
        sources={tensor.name: (TensorSource(spec.name, tensor.name),) for tensor in spec.outputs},
        max_batch_size=spec.max_batch_size,
        platform=spec.platform,
        config=spec.config,
        revision=spec.revision,
        response_cache=spec.response_cache,
        batching_note=spec.batching_note,
        decoupled=spec.decoupled,
    )
    return pipeline.with_text_inputs({spec.key: spec})


def single_family(family: Family, models: Mapping[str, ModelSpec]) -> Pipeline:
    """The one-stage pipeline that serves a single family; any of its variants, all in `models`, runs the stage."""
    specs = [models[variant.model] for variant in family.variants]
    seen = msgspec.structs.replace(
        specs[0],
        name=family.name,
        version=_VERSION,
        max_batch_size=min(spec.max_batch_size for spec in specs),
        platform=PLATFORM,
        config="",
        response_cache=False,
        batching_note="",
        inputs=tuple(msgspec.structs.replace(tensor, optional=False) for tensor in specs[0].inputs),
    )
    pipeline = single_model(seen)
    accuracies = [variant.accuracy for variant in family.variants]
    stage = _model_stage(family.name, pipeline.stages[0].inputs, specs, accuracies)
    return msgspec.structs.replace(pipeline, stages=(stage,)).with_text_inputs(models)


def check_pipeline(
    file: PipelineFile,
    models: Mapping[str, ModelSpec],
    families: Mapping[str, Family] | None = None,
    *,
    name: str,
    path: str,
) -> Pipeline:
    """Return the pipeline `name`, checked against `models` (by key) and `families` (by name).

    Its inputs are those that its stages take from the request; its version is 1. Raises ConfigError, whose message
    starts with the place.
    """
    return _Check(file, models, families or {}, name, path).pipeline()


class _Check:
    """One check; each step of `pipeline` relies on the results of the steps before it."""

    def __init__(
        self,
        file: PipelineFile,
        models: Mapping[str, ModelSpec],
        families: Mapping[str, Family],
        name: str,
        path: str,
    ) -> None:
        self._stages = file.stages
        self._file = file
        self._models = models
        self._families = families
        self._name = name
        self._path = path
        # The first of a stage's variants stands for all: they agree in everything that is checked.
        self._specs: dict[str, tuple[ModelSpec, ...]] = {}
        self._accuracies: dict[str, tuple[float, ...]] = {}
        self._produced: dict[str, dict[str, TensorSpec]] = {}
        self._inputs: dict[str, TensorSpec] = {}

    def pipeline(self) -> Pipeline:
        self._check_file()
        self._find_models()
        needs = self._find_needs()
        order = topological_order(needs)
        for name in order:
            self._check_stage(name, self._stages[name])
        outputs = tuple(self._check_output(name, sources) for name, sources in self._file.outputs.items())
        self._check_reached(needs)
        self._check_partial(needs)
        self._check_conditions(order, needs)
        return Pipeline(
            name=self._name,
            version=_VERSION,
            inputs=tuple(self._inputs.values()),
            outputs=outputs,
            stages=tuple(self._checked_stage(name) for name in order),
            sources=dict(self._file.outputs),
            max_batch_size=min(spec.max_batch_size for specs in self._specs.values() for spec in specs),
            slo_ms=self._file.slo_ms,
            late=self._file.late,
            weight=self._file.weight,
            percentile=self._file.percentile,
            client_key=self._file.client_key,
        ).with_text_inputs(self._models)

    def _check_file(self) -> None:
        """Check the entries that need no models, and the names."""
        if any(spec.name == self._name for spec in self._models.values()):
            raise self._error("", f"there is already a model named '{self._name}'; expected another name")
        if self._file.slo_ms is not None and not 0 < self._file.slo_ms < math.inf:
            raise self._error("slo_ms", f"expected a finite number above 0, got {self._file.slo_ms}")
        if not 0 < self._file.weight < math.inf:
            raise self._error("weight", f"expected a finite number above 0, got {self._file.weight}")
        if self._file.percentile is not None:
            self._check_value("percentile", check_percentile, self._file.percentile)
        if self._file.client_key is not None:
            self._check_value("client_key", check_client_key, self._file.client_key)
        if not self._stages:
            raise self._error("stages", "expected at least one stage")
        most, where = (MAX_STAGES, "") if self._file.slo_ms is None else (MAX_PLANNED_STAGES, " beside slo_ms")
        if len(self._stages) > most:
            raise self._error("stages", f"expected at most {most} stages{where}, got {len(self._stages)}")
        if not self._file.outputs:
            raise self._error("outputs", "expected at least one output")
        for name in self._stages:
            if not name or not _STAGE_NAME.issuperset(name) or name == REQUEST:
                raise self._error(
                    f"stages.{name}",
                    f"not a stage name; expected letters, digits, '_' and '-', and not '{REQUEST}'",
                )

    def _check_value(self, key: str, check: Callable[[_T], None], value: _T) -> None:
        """Run a check that raises ValueError on the value of a key."""
        try:
            check(value)
        except ValueError as error:
            raise self._error(key, str(error)) from error

    def _find_models(self) -> None:
        for name, stage in self._stages.items():
            if stage.model is not None:
                self._specs[name] = (self._find_model(name, stage.model, stage.version),)
            elif stage.family is not None:
                variants = self._find_variants(f"stages.{name}", stage.family, stage.min_accuracy)
                self._specs[name] = tuple(self._models[variant.model] for variant in variants)
                self._accuracies[name] = tuple(variant.accuracy for variant in variants)
            else:
                continue
            spec = self._specs[name][0]
            if len(self._stages) > 1 and not spec.batchable:
                raise self._error(
                    f"stages.{name}.{'family' if stage.model is None else 'model'}",
                    f"model '{spec.key}' has no batch dimension; expected a model with one, since the "
                    "rows of a request may take different paths through several stages",
                )
            stateful = next((each.key for each in self._specs[name] if each.sequence_batching is not None), None)
            if stage.compete is not None and stateful is not None:
                raise self._error(
                    f"stages.{name}.compete",
                    f"model '{stateful}' keeps states of sequences, which no other partition has; expected a model "
                    "without them",
                )
        if not self._specs:
            raise self._error("stages", "expected at least one stage with a model")

    def _find_model(self, stage: str, name: str, version: int | None) -> ModelSpec:
        return find_model(self._models, name, version, self._path, f"stages.{stage}", self._file.lines)

    def _find_variants(self, at: str, name: str, min_accuracy: float | None) -> tuple[Variant, ...]:
        """The models of a family that are accurate enough, the most accurate first."""
        if name not in self._families:
            raise self._error(f"{at}.family", f"no family '{name}'; {expected_one_of(sorted(self._families), name)}")
        variants = self._families[name].variants
        if min_accuracy is not None:
            if not 0 <= min_accuracy <= 1:
                raise self._error(f"{at}.min_accuracy", f"expected a number from 0 to 1, got {min_accuracy}")
            best = variants[0]
            variants = tuple(variant for variant in variants if variant.accuracy >= min_accuracy)
            if not variants:
                raise self._error(
                    f"{at}.min_accuracy",
                    f"no model of family '{name}' reaches {min_accuracy}; the best, {best.model}, has {best.accuracy}",
                )
        return variants

    def _find_needs(self) -> dict[str, list[str]]:
        """Return the stages that each stage needs; the graph has no cycle."""
        data_needs = {name: [source.stage for _, source in _sources(stage)] for name, stage in self._stages.items()}
        needs: dict[str, list[str]] = {}
        for name, stage in self._stages.items():
            for place, source in _sources(stage):
                if source.stage != REQUEST:
                    self._check_stage_exists(f"stages.{name}.{place}", source.stage, REQUEST)
                elif stage.combine is not None:
                    raise self._error(f"stages.{name}.{place}", "expected a stage's tensor, not the request's")
            data_needs[name] = [stage_name for stage_name in data_needs[name] if stage_name != REQUEST]
        self._refuse_cycle(data_needs)
        for name, stage in self._stages.items():
            needs[name] = list(data_needs[name])
            if stage.when is not None:
                where = f"stages.{name}.when.stage"
                self._check_stage_exists(where, stage.when.stage)
                if stage.when.stage == name:
                    raise self._error(where, "a stage cannot depend on its own confidence; expected an earlier stage")
                if name in reachable(data_needs, [stage.when.stage]):
                    raise self._error(where, f"'{stage.when.stage}' comes after '{name}'; expected an earlier stage")
                needs[name].append(stage.when.stage)
        self._refuse_cycle(needs)
        return needs

    def _check_stage_exists(self, where: str, name: str, *others: str) -> None:
        """Raise ConfigError, with the names of all stages and of what else was possible."""
        if name not in self._stages:
            raise self._error(where, f"no stage '{name}'; {expected_one_of((*self._stages, *others), name)}")

    def _refuse_cycle(self, needs: Mapping[str, list[str]]) -> None:
        if cycle := find_cycle(needs):
            raise self._error("stages", f"cycle {' -> '.join(cycle)}; expected stages that only need earlier ones")

    def _check_stage(self, name: str, stage: StageFile) -> None:
        """Check a stage whose sources have been checked, and record its outputs."""
        if stage.combine is not None:
            self._produced[name] = self._check_combiner(name, stage, stage.combine)
        else:
            spec = self._specs[name][0]
            self._check_model_inputs(name, stage, spec)
            self._produced[name] = {tensor.name: tensor for tensor in spec.outputs}
        if stage.when is not None:
            where = f"stages.{name}.when"
            judged = self._tensor(f"{where}.output", TensorSource(stage.when.stage, stage.when.output))
            if judged.datatype not in FLOATS:
                raise self._error(
                    f"{where}.output", f"expected probabilities ({', '.join(FLOATS)}), got {judged.datatype}"
                )
            if not 0 < stage.when.below <= 1:
                raise self._error(
                    f"{where}.below", f"expected a threshold above 0 and at most 1, got {stage.when.below}"
                )

    def _check_model_inputs(self, name: str, stage: StageFile, spec: ModelSpec) -> None:
        wanted = {tensor.name: tensor for tensor in spec.inputs}
        for tensor_name, source in stage.inputs.items():
            where = f"stages.{name}.inputs.{tensor_name}"
            if tensor_name not in wanted:
                raise self._error(
                    where, f"model '{spec.key}' has no such input; {expected_one_of(wanted, tensor_name)}"
                )
            sink = wanted[tensor_name]
            if source.stage == REQUEST:
                self._take_from_request(where, source.tensor, sink)
                continue
            given = self._tensor(where, source)
            if given.datatype != sink.datatype or merged_shape(given.shape, sink.shape) is None:
                raise self._error(where, f"expected {describe(sink)}, but {source} is {describe(given)}")
        for tensor_name in wanted:
            if tensor_name not in stage.inputs:
                raise self._error(f"stages.{name}.inputs", f"input '{tensor_name}' of model '{spec.key}' is missing")

    def _take_from_request(self, where: str, name: str, sink: TensorSpec) -> None:
        """Infer the spec of a request input; each use narrows its shape."""
        known = self._inputs.get(name)
        if known is None:
            self._inputs[name] = TensorSpec(name, sink.datatype, sink.shape)
            return
        shape = merged_shape(known.shape, sink.shape)
        if known.datatype != sink.datatype or shape is None:
            raise self._error(where, f"expected {describe(sink)}, but request.{name} is {describe(known)} elsewhere")
        self._inputs[name] = TensorSpec(name, sink.datatype, shape)

    def _check_combiner(self, name: str, stage: StageFile, combine: Combiner) -> dict[str, TensorSpec]:
        where = f"stages.{name}.of"
        if len(stage.of) < 2:
            raise self._error(where, f"expected at least two tensors to combine, got {len(stage.of)}")
        self._refuse_twice(where, stage.of)
        try:
            tensor = combined(combine, [self._tensor(where, source) for source in stage.of], list(map(str, stage.of)))
        except ValueError as error:
            raise self._error(where, str(error)) from error
        try:
            check_weights(combine, stage.weights, len(stage.of))
        except ValueError as error:
            raise self._error(f"stages.{name}.weights", str(error)) from error
        return {tensor.name: tensor}

    def _check_output(self, name: str, sources: tuple[TensorSource, ...]) -> TensorSpec:
        where = f"outputs.{name}"
        if not sources:
            raise self._error(where, "expected at least one source")
        for source in sources:
            if source.stage == REQUEST:
                raise self._error(where, f"expected a stage's tensor, got {source}")
        tensor = self._agreeing(where, sources)
        return msgspec.structs.replace(tensor, name=name)

    def _agreeing(self, where: str, sources: tuple[TensorSource, ...]) -> TensorSpec:
        """The one datatype and shape that all of `sources` have."""
        first = self._tensor(where, sources[0])
        for source in sources:
            tensor = self._tensor(where, source)
            if (tensor.datatype, tensor.shape) != (first.datatype, first.shape):
                raise self._error(where, f"{source} is {describe(tensor)}, but {sources[0]} is {describe(first)}")
        self._refuse_twice(where, sources)
        return first

    def _refuse_twice(self, where: str, sources: tuple[TensorSource, ...]) -> None:
        for index, source in enumerate(sources):
            if source in sources[:index]:
                raise self._error(where, f"{source} is given twice")

    def _tensor(self, where: str, source: TensorSource) -> TensorSpec:
        self._check_stage_exists(where, source.stage)
        produced = self._produced[source.stage]
        if source.tensor not in produced:
            raise self._error(
                where,
                f"stage '{source.stage}' has no output '{source.tensor}'; {expected_one_of(produced, source.tensor)}",
            )
        return produced[source.tensor]

    def _check_reached(self, needs: Mapping[str, list[str]]) -> None:
        used = reachable(needs, {source.stage for sources in self._file.outputs.values() for source in sources})
        for name in self._stages:
            if name not in used:
                raise self._error(f"stages.{name}", "unreachable: no output and no other stage that is used needs it")

    def _check_partial(self, needs: Mapping[str, list[str]]) -> None:
        """No output may be of a stage that a combiner may give up, and no such stage may keep states."""
        for name, stage in self._stages.items():
            if stage.on_late is OnLate.WAIT:
                continue
            where = f"stages.{name}.on_late"
            if stage.combine is Combiner.CONCAT:
                raise self._error(where, "concat needs all its members; expected another combiner")
            before = reachable(needs, [source.stage for source in stage.of])
            for output, sources in self._file.outputs.items():
                for source in sources:
                    if source.stage in before:
                        what = f"'{name}' may give up stage '{source.stage}'; expected a stage after '{name}'"
                        raise self._error(f"outputs.{output}", what)
            stateful = [each for each in before if any(spec.sequence_batching for spec in self._specs.get(each, ()))]
            if stateful:
                what = f"stage '{min(stateful)}' keeps states of sequences; expected members without them"
                raise self._error(where, what)

    def _check_conditions(self, order: Iterable[str], needs: Mapping[str, list[str]]) -> None:
        """Every row must have an answer: the last source of an output, and no other, runs for all rows."""
        conditional: set[str] = set()
        for name in order:
            if self._stages[name].when is not None or conditional.intersection(needs[name]):
                conditional.add(name)
        for name, sources in self._file.outputs.items():
            if sources[-1].stage in conditional:
                raise self._error(
                    f"outputs.{name}",
                    f"rows for which '{sources[-1].stage}' does not run would have no answer; expected the last source "
                    "to be a stage that always runs",
                )
            for source in sources[:-1]:
                if source.stage not in conditional:
                    raise self._error(
                        f"outputs.{name}", f"'{source.stage}' always runs, so the sources after {source} are never used"
                    )

    def _checked_stage(self, name: str) -> Stage:
        stage = self._stages[name]
        if stage.combine is not None:
            members = {str(index): source for index, source in enumerate(stage.of)}
            return Stage(
                name, members, combine=stage.combine, when=stage.when, weights=stage.weights, on_late=stage.on_late
            )
        accuracies = self._accuracies.get(name, ())
        return _model_stage(name, dict(stage.inputs), self._specs[name], accuracies, stage.when, stage.compete)

    def _error(self, where: str, what: str) -> ConfigError:
        return self._file.lines.error(self._path, where, what)


def _model_stage(
    name: str,
    inputs: dict[str, TensorSource],
    specs: Sequence[ModelSpec],
    accuracies: Sequence[float] = (),
    when: When | None = None,
    compete: Compete | None = None,
) -> Stage:
    variants = tuple(spec.key for spec in specs) if len(specs) > 1 else ()
    known = tuple(accuracies) if variants else ()
    return Stage(name, inputs, model=specs[0].key, when=when, variants=variants, compete=compete, accuracies=known)


def _sources(stage: StageFile) -> list[tuple[str, TensorSource]]:
    """The source tensors of a stage, each with its place in the stage."""
    if stage.combine is not None:
        return [(f"of.{index}", source) for index, source in enumerate(stage.of)]
    return [(f"inputs.{name}", source) for name, source in stage.inputs.items()]
