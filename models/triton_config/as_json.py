"""The configuration of a served model or pipeline as Triton prints it, with or without a `config.pbtxt`."""

import json
from typing import Any

import msgspec

from sluice.models.pipelines.pipeline import REQUEST, Pipeline, Stage
from sluice.models.spec import public_key
from sluice.models.tensors.spec import TensorSpec
from sluice.models.triton_config.instance_groups import completed_groups
from sluice.models.triton_config.model_config import DATA_TYPE
from sluice.models.triton_config.pbtxt import full_json


def model_config_json(pipeline: Pipeline) -> dict[str, Any]:
    """The `ModelConfig` of a pipeline (a model alone is one): defaults included, 64-bit integers as numbers.

    A pipeline of several stages is shown as an ensemble as far as possible: combiners and conditions have no place in
    that form, and are left out.
    """
    if pipeline.config:
        config: dict[str, Any] = json.loads(pipeline.config)
        return config
    return full_json(
        {
            "name": pipeline.name,
            "platform": pipeline.platform,
            "version_policy": {"all": {}},
            "max_batch_size": pipeline.max_batch_size,
            "input": [_tensor(tensor) for tensor in pipeline.inputs],
            "output": [_tensor(tensor) for tensor in pipeline.outputs],
        }
        | _origin(pipeline)
    )


def _origin(pipeline: Pipeline) -> dict[str, Any]:
    """The part about the origin of answers: a backend, or steps."""
    if pipeline.platform == "onnxruntime_onnx":
        groups = msgspec.to_builtins(completed_groups((), pipeline.name, "onnxruntime"))
        return {"backend": "onnxruntime", "default_model_filename": "model.onnx", "instance_group": groups}
    steps = [_step(stage, pipeline) for stage in pipeline.stages if stage.model is not None]
    return {"ensemble_scheduling": {"step": steps}} if len(pipeline.stages) > 1 else {}


def _step(stage: Stage, pipeline: Pipeline) -> dict[str, Any]:
    assert stage.model is not None
    name, _, version = public_key(stage.model).rpartition(":")
    taken = {source for other in pipeline.stages for source in other.inputs.values()}
    taken |= {source for sources in pipeline.sources.values() for source in sources}
    return {
        "model_name": name,
        "model_version": version,
        "input_map": {
            tensor: source.tensor if source.stage == REQUEST else str(source) for tensor, source in stage.inputs.items()
        },
        "output_map": {source.tensor: str(source) for source in taken if source.stage == stage.name},
    }


def _tensor(tensor: TensorSpec) -> dict[str, Any]:
    return {"name": tensor.name, "data_type": DATA_TYPE[tensor.datatype], "dims": list(tensor.shape)}
