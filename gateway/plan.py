"""What the executors need to know of a pipeline, resolved once when it is loaded."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from batcher.config import Verdict
from models.pipeline import REQUEST, Combiner, Pipeline
from models.spec import ModelSpec
from models.tensor import TensorSpec, element_count

OF_REQUEST = -1
"""The stage index that stands for the request itself."""


class Wire(NamedTuple):
    """Where an input comes from: output `tensor` of stage number `stage`, or a tensor of the request."""

    stage: int
    tensor: str


class StagePlan(NamedTuple):
    """One stage: `inputs` in the order of the model's, or the combiner's; a combiner's output is called `output`."""

    inputs: tuple[Wire, ...]
    combine: Combiner | None
    output: str
    verdicts: tuple[Verdict, ...]


class PipelinePlan(NamedTuple):
    """One pipeline. `outputs` lists for each the stages that may have produced it, the first one that ran counts.

    `row_bytes` is what all its stages' outputs take for one row, without the `variable` outputs of unknown size.
    """

    batchable: bool
    stages: tuple[StagePlan, ...]
    outputs: dict[str, tuple[Wire, ...]]
    row_bytes: int
    variable: int

    def output_bytes(self, rows: int, input_bytes: int) -> int:
        """Bytes that all outputs of a request take; one of variable size is taken to be as large as the inputs."""
        return rows * self.row_bytes + self.variable * input_bytes


def plan_pipeline(
    pipeline: Pipeline, models: Mapping[str, ModelSpec], verdicts: Sequence[tuple[Verdict, ...]]
) -> PipelinePlan:
    """Resolve a checked pipeline; `verdicts` are those of its combiners, one tuple a stage (empty for a model's)."""
    numbers = {stage.name: number for number, stage in enumerate(pipeline.stages)} | {REQUEST: OF_REQUEST}
    made: dict[int, tuple[TensorSpec, ...]] = {OF_REQUEST: pipeline.inputs}
    plans: list[StagePlan] = []
    for number, (stage, reports) in enumerate(zip(pipeline.stages, verdicts, strict=True)):
        wires = {name: Wire(numbers[source.stage], source.tensor) for name, source in stage.inputs.items()}
        if stage.model is not None:
            spec = models[stage.model]
            plans.append(StagePlan(tuple(wires[tensor.name] for tensor in spec.inputs), None, "", ()))
            made[number] = spec.outputs
        else:
            ordered = tuple(wires[str(index)] for index in range(len(wires)))
            plans.append(StagePlan(ordered, stage.combine, ordered[0].tensor, reports))
            made[number] = tuple(each for each in made[ordered[0].stage] if each.name == ordered[0].tensor)
    flat = [tensor for number, tensors in made.items() if number != OF_REQUEST for tensor in tensors]
    return PipelinePlan(
        pipeline.batchable,
        tuple(plans),
        {
            name: tuple(Wire(numbers[source.stage], source.tensor) for source in sources)
            for name, sources in pipeline.sources.items()
        },
        sum(_bytes(tensor) for tensor in flat if _sized(tensor)),
        sum(not _sized(tensor) for tensor in flat),
    )


def _sized(tensor: TensorSpec) -> bool:
    return tensor.fixed and tensor.datatype.itemsize > 0


def _bytes(tensor: TensorSpec) -> int:
    return element_count(tensor.shape) * tensor.datatype.itemsize
