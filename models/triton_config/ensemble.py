"""Ensembles: turns Triton's `ensemble_scheduling` into a pipeline."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from sluice.models.errors import ConfigError
from sluice.models.pipelines.graph import find_cycle, reachable, topological_order
from sluice.models.pipelines.model_reference import expected_one_of, find_model
from sluice.models.pipelines.pipeline import REQUEST, Pipeline, Stage, TensorSource
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import TensorSpec, describe, joined_shape
from sluice.models.triton_config.ensemble_nesting import MAX_STAGES, inline_ensemble
from sluice.models.triton_config.model_config import ENSEMBLE, EnsembleStep, TensorConfig, TritonModelConfig


class _Made(NamedTuple):
    """A tensor of the ensemble that a step writes: `tensor` is that of its model, or inner ensemble."""

    step: int
    tensor: TensorSpec


class EnsembleCheck:
    """One check of an ensemble; each step of `pipeline` relies on the results of the steps before it.

    `ensembles` are those that may be its steps, by name; None is one that cannot be served.
    """

    def __init__(
        self,
        config: TritonModelConfig,
        models: Mapping[str, ModelSpec],
        ensembles: Mapping[str, Pipeline | None],
        path: Path,
    ) -> None:
        self._config = config
        self._models = models
        self._ensembles = ensembles
        self._path = path
        self._steps = () if config.ensemble_scheduling is None else config.ensemble_scheduling.step
        self._rows = config.max_batch_size or 0
        self._specs: list[ModelSpec | Pipeline] = []
        self._made: dict[str, _Made] = {}
        self._inputs: dict[str, TensorSpec] = {}

    def pipeline(self, name: str, version: int, labels: Mapping[str, tuple[str, ...]], config: str) -> Pipeline:
        """The checked pipeline; `labels` are those of its own outputs, `config` is its configuration in JSON."""
        self._check_fields()
        for index, step in enumerate(self._steps):
            self._check_step(index, step)
        self._note_outputs()
        self._check_order()
        for index, step in enumerate(self._steps):
            self._check_inputs(index, step)
        self._check_used()
        outputs = tuple(self._output(tensor, labels.get(tensor.name, ())) for tensor in self._config.output)
        names = self._names()
        stages = self._stages(names)
        sources: dict[str, tuple[TensorSource, ...]] = {
            each.name: (self._source(each.name, names),) for each in outputs
        }
        return Pipeline(
            name=name,
            version=version,
            inputs=tuple(self._inputs.values()),
            outputs=outputs,
            stages=_needed(stages, sources),
            sources=sources,
            max_batch_size=1 if self._rows and any(map(self._takes_one_row, self._specs)) else self._rows,
            platform=ENSEMBLE,
            config=config,
            response_cache=self._config.response_cache is not None and self._config.response_cache.enable,
        ).with_text_inputs(self._models)

    def _check_fields(self) -> None:
        config = self._config
        if config.platform != ENSEMBLE:
            self._fail("platform", f"expected '{ENSEMBLE}' with ensemble_scheduling, got '{config.platform}'")
        for field in ("instance_group", "model_warmup", "default_model_filename", "parameters", "optimization"):
            if getattr(config, field):
                self._fail(field, "an ensemble has no instances of its own; expected it in the models of its steps")
        if config.is_decoupled:
            self._fail("model_transaction_policy.decoupled", "expected it in models only: an ensemble has one answer")
        if not self._steps:
            self._fail("ensemble_scheduling", "expected at least one step")
        for what, tensors in (("input", config.input), ("output", config.output)):
            if not tensors:
                self._fail(what, f"expected at least one {what}")
            for tensor in tensors:
                if tensor.datatype is None or not tensor.dims:
                    self._fail(f"{what} '{tensor.name}'", "expected data_type and dims")
                if tensor.reshape is not None:
                    self._fail(f"{what} '{tensor.name}'", "reshape: expected it in the models of the steps")

    def _check_step(self, index: int, step: EnsembleStep) -> None:
        """Find the model of a step; check that it can take the ensemble's rows and that the maps name its tensors."""
        at = f"step {index}"
        if not step.model_name:
            self._fail(at, "model_name: expected the name of a model")
        if step.model_version < -1:
            self._fail(self._at(index), f"model_version: expected a version or -1, got {step.model_version}")
        version = step.model_version if step.model_version > 0 else None
        spec = self._spec(index, step.model_name, version)
        self._specs.append(spec)
        self._check_rows(index, spec)
        for field, given, tensors in (
            ("input", step.input_map, spec.inputs),
            ("output", step.output_map, spec.outputs),
        ):
            if not given:
                self._fail(self._at(index), f"{field}_map: expected at least one tensor")
            names = {tensor.name for tensor in tensors}
            for name, to in given.items():
                if name not in names:
                    self._fail(
                        self._at(index), f"{field}_map: the model has no {field} '{name}'; {expected_one_of(names)}"
                    )
                if not to:
                    self._fail(self._at(index), f"{field}_map: {field} '{name}': expected the name of a tensor")
        for tensor in spec.inputs:
            if tensor.name not in step.input_map and not tensor.optional:
                self._fail(self._at(index), f"input_map: input '{tensor.name}' of the model is missing")

    def _spec(self, index: int, name: str, version: int | None) -> ModelSpec | Pipeline:
        """The model, or the ensemble, that a step runs."""
        if name not in self._ensembles:
            return find_model(self._models, name, version, str(self._path), f"step {index}")
        inner = self._ensembles[name]
        if inner is None:
            self._fail(self._at(index), "the ensemble of this step cannot be served")
        if version not in (None, inner.version):
            self._fail(self._at(index), f"model_version: the ensemble has version {inner.version}, not {version}")
        return inner

    def _check_rows(self, index: int, spec: ModelSpec | Pipeline) -> None:
        if self._rows > spec.max_batch_size > 0 and not self._takes_one_row(spec):
            self._fail(
                self._at(index),
                f"max_batch_size of the ensemble is {self._rows}, but {spec.max_batch_size} of the model",
            )

    def _takes_one_row(self, spec: ModelSpec | Pipeline) -> bool:
        """Return whether it, or some model in it, has no batch dimension."""
        if isinstance(spec, ModelSpec):
            return not spec.batchable
        return not all(self._models[key].batchable for stage in spec.stages for key in stage.models)

    def _note_outputs(self) -> None:
        inputs = {tensor.name for tensor in self._config.input}
        for index, step in enumerate(self._steps):
            tensors = {tensor.name: tensor for tensor in self._specs[index].outputs}
            for name, to in step.output_map.items():
                if to in inputs:
                    self._fail(
                        self._at(index), f"output_map: '{to}' is an input of the ensemble, which no step may write"
                    )
                if to in self._made:
                    other = self._at(self._made[to].step)
                    self._fail(self._at(index), f"output_map: '{to}' is already written by {other}")
                self._made[to] = _Made(index, tensors[name])

    def _needs(self) -> dict[str, list[str]]:
        return {
            str(index): [str(made.step) for to in step.input_map.values() if (made := self._made.get(to)) is not None]
            for index, step in enumerate(self._steps)
        }

    def _order(self) -> list[int]:
        return [int(index) for index in topological_order(self._needs())]

    def _check_order(self) -> None:
        if cycle := find_cycle(self._needs()):
            self._fail(
                "ensemble_scheduling",
                f"cycle {' -> '.join(self._at(int(index)) for index in cycle)}; expected steps that need earlier ones",
            )

    def _check_inputs(self, index: int, step: EnsembleStep) -> None:
        declared = {tensor.name: tensor for tensor in self._config.input}
        optional = [tensor.name for tensor in self._config.input if tensor.optional]
        if set(step.input_map.values()).issubset(optional):
            self._fail(self._at(index), "input_map: expected at least one input that is not optional in the ensemble")
        for sink in self._specs[index].inputs:
            if (name := step.input_map.get(sink.name)) is None:
                continue
            at = f"{self._at(index)}: input '{sink.name}'"
            if name in optional and not sink.optional:
                self._fail(at, f"'{name}' is optional in the ensemble, but not in the model")
            if name in declared:
                known = self._inputs.get(name, declared[name].spec())
                batched, giver = self._rows > 0, "the ensemble's input"
            elif name in self._made:
                known = self._made[name].tensor
                batched = self._specs[self._made[name].step].batchable
                giver = f"output '{known.name}' of {self._at(self._made[name].step)}"
            else:
                self._fail(at, f"'{name}' is written by no step and is no input of the ensemble")
            shape = joined_shape(known, batched, sink, self._specs[index].batchable)
            if known.datatype != sink.datatype or shape is None:
                self._fail(at, f"expected {describe(sink)}, but '{name}', {giver}, is {describe(known)}")
            if name in declared:
                self._inputs[name] = TensorSpec(name, sink.datatype, shape, optional=declared[name].optional)

    def _check_used(self) -> None:
        taken = {name for step in self._steps for name in step.input_map.values()}
        for tensor in self._config.input:
            if tensor.name not in taken:
                self._fail(f"input '{tensor.name}'", "used by no step")
        outputs = {tensor.name for tensor in self._config.output}
        for name, made in self._made.items():
            if name not in taken and name not in outputs:
                self._fail(self._at(made.step), f"output_map: '{name}' is used by no step and is no output")

    def _output(self, declared: TensorConfig, labels: tuple[str, ...]) -> TensorSpec:
        at = f"output '{declared.name}'"
        made = self._made.get(declared.name)
        if made is None:
            self._fail(at, "written by no step")
        spec = declared.spec(labels or made.tensor.labels)
        shape = joined_shape(made.tensor, self._specs[made.step].batchable, spec, self._rows > 0)
        if spec.datatype != made.tensor.datatype or shape is None:
            self._fail(at, f"{describe(spec)}, but {self._at(made.step)} makes {describe(made.tensor)}")
        return spec

    def _names(self) -> list[dict[str, str]]:
        """The names of the stages of every step: of the stage of a model (""), or of those of an inner ensemble."""
        inner = [[stage.name for stage in spec.stages] if isinstance(spec, Pipeline) else [""] for spec in self._specs]
        if (count := sum(map(len, inner))) > MAX_STAGES:
            self._fail("ensemble_scheduling", f"{count} steps with those of inner ensembles; expected {MAX_STAGES}")
        wanted = [
            f"{step.model_name}-{name}" if name else step.model_name
            for step, names in zip(self._steps, inner, strict=True)
            for name in names
        ]
        unique = iter(_stage_names(wanted))
        return [{name: next(unique) for name in names} for names in inner]

    def _stages(self, names: Sequence[Mapping[str, str]]) -> list[Stage]:
        """All stages, each after those that it needs."""
        stages: list[Stage] = []
        for index in self._order():
            step, spec = self._steps[index], self._specs[index]
            inputs = {
                tensor.name: self._source(step.input_map[tensor.name], names)
                for tensor in spec.inputs
                if tensor.name in step.input_map
            }
            if isinstance(spec, Pipeline):
                stages += inline_ensemble(spec, inputs, names[index])
            else:
                stages.append(Stage(names[index][""], inputs, model=spec.key))
        return stages

    def _source(self, name: str, names: Sequence[Mapping[str, str]]) -> TensorSource:
        """The source of a tensor of the ensemble."""
        made = self._made.get(name)
        if made is None:
            return TensorSource(REQUEST, name)
        spec = self._specs[made.step]
        if isinstance(spec, Pipeline):
            (inner,) = spec.sources[made.tensor.name]
            return TensorSource(names[made.step][inner.stage], inner.tensor)
        return TensorSource(names[made.step][""], made.tensor.name)

    def _at(self, index: int) -> str:
        return f"step {index} ('{self._steps[index].model_name}')"

    def _fail(self, at: str, what: str) -> NoReturn:
        raise ConfigError(f"{self._path}: {at}: {what}")


def _needed(stages: Sequence[Stage], sources: Mapping[str, Sequence[TensorSource]]) -> tuple[Stage, ...]:
    """The stages that lead to an output: some outputs of an inner ensemble may be unused."""
    needs = {
        stage.name: [source.stage for source in stage.inputs.values() if source.stage != REQUEST] for stage in stages
    }
    needed = reachable(needs, (source.stage for each in sources.values() for source in each))
    return tuple(stage for stage in stages if stage.name in needed)


def _stage_names(wanted: Iterable[str]) -> list[str]:
    """Return a name for every stage: its model's, as far as possible, with a number from the second use on."""
    taken: dict[str, None] = {}
    for each in wanted:
        base = name = each.replace(".", "_")
        number = 1
        while name in taken:
            number += 1
            name = f"{base}__{number}"
        taken[name] = None
    return list(taken)
