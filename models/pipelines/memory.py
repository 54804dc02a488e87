"""The memory of a request's tensors on its way through a pipeline."""

from collections.abc import Mapping
from typing import NamedTuple

from sluice.models.pipelines.combiners import combined
from sluice.models.pipelines.pipeline import REQUEST, Pipeline
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import TensorSpec


class OutputMemory(NamedTuple):
    """The memory of all stages' outputs: `row_bytes` for one row, without the `variable` outputs of unknown size."""

    row_bytes: int
    variable: int

    def output_bytes(self, rows: int, input_bytes: int) -> int:
        """Bytes of all outputs of a request; one of variable size is assumed to be as large as the inputs."""
        return rows * self.row_bytes + self.variable * input_bytes


def output_memory(pipeline: Pipeline, models: Mapping[str, ModelSpec]) -> OutputMemory:
    """Return the memory of a checked pipeline's outputs; `models` are the specs by key."""
    made = _stage_outputs(pipeline, models)
    outputs = [tensor for stage in pipeline.stages for tensor in made[stage.name]]
    sized = [tensor for tensor in outputs if tensor.fixed and tensor.datatype.itemsize > 0]
    return OutputMemory(sum(tensor.item_bytes for tensor in sized), len(outputs) - len(sized))


def _stage_outputs(pipeline: Pipeline, models: Mapping[str, ModelSpec]) -> dict[str, tuple[TensorSpec, ...]]:
    made = {REQUEST: pipeline.inputs}
    for stage in pipeline.stages:
        if stage.model is not None:
            made[stage.name] = models[stage.model].outputs
        elif stage.combine is not None:
            sources = list(stage.inputs.values())
            tensors = [next(each for each in made[of.stage] if each.name == of.tensor) for of in sources]
            made[stage.name] = (combined(stage.combine, tensors, list(map(str, sources))),)
    return made
