"""The tensor wiring of pipelines, resolved once when a pipeline is loaded."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sluice.batcher.interface.config import ConfidenceSpec
from sluice.models.pipelines.memory import OutputMemory, output_memory
from sluice.models.pipelines.pipeline import REQUEST, Combiner, Pipeline
from sluice.models.spec import ModelSpec

REQUEST_STAGE = -1
"""The stage index that stands for the request itself."""


class TensorRef(NamedTuple):
    """The source of an input: output `tensor` of stage number `stage`, or a tensor of the request."""

    stage: int
    tensor: str


class StageWiring(NamedTuple):
    """One stage, of a `model` ("" for a combiner): the sources of its inputs by name, in order for a combiner.

    A combiner produces `output`; `names` are the names of its inputs, `weights` their weights, if any.
    """

    inputs: Mapping[str, TensorRef]
    combine: Combiner | None
    output: str
    confidences: tuple[ConfidenceSpec, ...]
    names: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    model: str = ""


class PipelineWiring(NamedTuple):
    """One pipeline. `outputs` lists for each output the stages that may produce it; the first one that ran counts.

    A pipeline of a decoupled model has none: its responses do not pass through its stage.
    `ranks` are the ranks of the items of all outputs, unless every model and the pipeline have a batch dimension.
    """

    batchable: bool
    stages: tuple[StageWiring, ...]
    outputs: dict[str, tuple[TensorRef, ...]]
    memory: OutputMemory
    ranks: Mapping[str, int] = {}


def wire_pipeline(
    pipeline: Pipeline, models: Mapping[str, ModelSpec], confidences: Sequence[tuple[ConfidenceSpec, ...]]
) -> PipelineWiring:
    """Resolve a checked pipeline.

    `confidences` are the confidences that its combiners report, one tuple per stage (empty for a model's stage).
    """
    numbers = {stage.name: number for number, stage in enumerate(pipeline.stages)} | {REQUEST: REQUEST_STAGE}
    wirings: list[StageWiring] = []
    for stage, reports in zip(pipeline.stages, confidences, strict=True):
        refs = {name: TensorRef(numbers[source.stage], source.tensor) for name, source in stage.inputs.items()}
        if stage.model is not None:
            wirings.append(StageWiring(refs, None, "", (), model=stage.model))
        else:
            names = tuple(map(str, stage.inputs.values()))
            wirings.append(StageWiring(refs, stage.combine, refs["0"].tensor, reports, names, stage.weights))
    keys = {key for stage in pipeline.stages for key in stage.models}
    batched = pipeline.batchable and all(models[key].batchable for key in keys)
    if pipeline.decoupled:  # its outputs are sent while it runs
        return PipelineWiring(pipeline.batchable, tuple(wirings), {}, output_memory(pipeline, models))
    return PipelineWiring(
        pipeline.batchable,
        tuple(wirings),
        {
            name: tuple(TensorRef(numbers[source.stage], source.tensor) for source in sources)
            for name, sources in pipeline.sources.items()
        },
        output_memory(pipeline, models),
        {} if batched else {tensor.name: len(tensor.shape) for tensor in pipeline.outputs},
    )
