"""Ensembles: the pipelines that Triton's `ensemble_scheduling` describes, in the form in which Sluice serves any."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

from models.errors import ConfigError
from models.model_config import ENSEMBLE, ModelConfig, Step, TensorConfig
from models.model_reference import find_model, there_are
from models.pipeline import REQUEST, Pipeline, Source, Stage
from models.pipeline_graph import find_cycle, topological_order
from models.spec import ModelSpec
from models.tensor import TensorSpec, kind, merged_shape


class _Made(NamedTuple):
    """A tensor of the ensemble that a step makes: `tensor` is what its model calls it."""

    step: int
    tensor: TensorSpec


class EnsembleCheck:
    """One check of an ensemble; the steps of `pipeline` rely on what the steps before them have established."""

    def __init__(self, config: ModelConfig, models: Mapping[str, ModelSpec], path: Path) -> None:
        self._config = config
        self._models = models
        self._path = path
        self._steps = () if config.ensemble_scheduling is None else config.ensemble_scheduling.step
        self._rows = config.max_batch_size or 0
        self._specs: list[ModelSpec] = []
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
        stages = self._stages()
        return Pipeline(
            name=name,
            version=version,
            inputs=tuple(self._inputs.values()),
            outputs=outputs,
            stages=tuple(stages[index] for index in self._order()),
            sources={output.name: (self._source(output.name, stages),) for output in outputs},
            max_batch_size=self._rows,
            platform=ENSEMBLE,
            config=config,
        )

    def _check_fields(self) -> None:
        config = self._config
        if config.platform != ENSEMBLE:
            self._fail("platform", f"expected '{ENSEMBLE}' with ensemble_scheduling, got '{config.platform}'")
        for field in ("instance_group", "model_warmup", "default_model_filename", "parameters"):
            if getattr(config, field):
                self._fail(field, "an ensemble has no instances of its own; expected it in the models of its steps")
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

    def _check_step(self, index: int, step: Step) -> None:
        """Find the model of a step, and see that it can take the ensemble's rows and the maps name its tensors."""
        at = f"step {index}"
        if not step.model_name:
            self._fail(at, "model_name: expected the name of a model")
        if step.model_version < -1:
            self._fail(self._at(index), f"model_version: expected a version or -1, got {step.model_version}")
        version = step.model_version if step.model_version > 0 else None
        spec = find_model(self._models, step.model_name, version, str(self._path), at)
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
                    self._fail(self._at(index), f"{field}_map: the model has no {field} '{name}'; {there_are(names)}")
                if not to:
                    self._fail(self._at(index), f"{field}_map: {field} '{name}': expected the name of a tensor")
        for tensor in spec.inputs:
            if tensor.name not in step.input_map:
                self._fail(self._at(index), f"input_map: input '{tensor.name}' of the model is missing")

    def _check_rows(self, index: int, spec: ModelSpec) -> None:
        if self._rows > spec.max_batch_size > 0:
            self._fail(
                self._at(index),
                f"max_batch_size of the ensemble is {self._rows}, but {spec.max_batch_size} of the model",
            )
        if spec.batchable != (self._rows > 0):
            which = "the ensemble has a batch dimension, but not the model" if self._rows else "only the model has one"
            self._fail(self._at(index), f"max_batch_size: {which}; expected both to have one, or neither")
        if not self._rows and len(self._steps) > 1:
            self._fail(self._at(index), "max_batch_size: expected at least 1 in an ensemble of several steps")

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
                    self._fail(self._at(index), f"output_map: '{to}' is written by {other} already")
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

    def _check_inputs(self, index: int, step: Step) -> None:
        declared = {tensor.name: tensor for tensor in self._config.input}
        for sink in self._specs[index].inputs:
            name = step.input_map[sink.name]
            at = f"{self._at(index)}: input '{sink.name}'"
            if name in declared:
                known = self._inputs.get(name, declared[name].spec())
                giver = "the ensemble's input"
            elif name in self._made:
                known = self._made[name].tensor
                giver = f"output '{known.name}' of {self._at(self._made[name].step)}"
            else:
                self._fail(at, f"'{name}' is written by no step and is no input of the ensemble")
            shape = merged_shape(known.shape, sink.shape)
            if known.datatype != sink.datatype or shape is None:
                self._fail(at, f"expected {kind(sink)}, but '{name}', {giver}, is {kind(known)}")
            if name in declared:
                self._inputs[name] = TensorSpec(name, sink.datatype, shape)

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
        if spec.datatype != made.tensor.datatype or merged_shape(spec.shape, made.tensor.shape) is None:
            self._fail(at, f"{kind(spec)}, but {self._at(made.step)} makes {kind(made.tensor)}")
        return spec

    def _stages(self) -> list[Stage]:
        names = _stage_names(self._steps)
        return [
            Stage(
                names[index],
                {
                    tensor.name: Source(names[made.step], made.tensor.name)
                    if (made := self._made.get(step.input_map[tensor.name])) is not None
                    else Source(REQUEST, step.input_map[tensor.name])
                    for tensor in spec.inputs
                },
                model=spec.key,
            )
            for index, (step, spec) in enumerate(zip(self._steps, self._specs, strict=True))
        ]

    def _source(self, name: str, stages: list[Stage]) -> Source:
        made = self._made[name]
        return Source(stages[made.step].name, made.tensor.name)

    def _at(self, index: int) -> str:
        return f"step {index} ('{self._steps[index].model_name}')"

    def _fail(self, at: str, what: str) -> NoReturn:
        raise ConfigError(f"{self._path}: {at}: {what}")


def _stage_names(steps: Iterable[Step]) -> list[str]:
    """A name for every step: that of its model, as far as it can be one, and a number from the second use on."""
    names: list[str] = []
    for step in steps:
        name = step.model_name.replace(".", "_")
        uses = sum(each == name or each.startswith(f"{name}__") for each in names)
        names.append(f"{name}__{uses + 1}" if uses else name)
    return names
