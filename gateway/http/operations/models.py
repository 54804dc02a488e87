"""Models: their health, metadata, configuration and statistics, and the repository."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sluice.gateway.http.operations.operation import Body, Example, Operation, answers, done

_NAME = "digits-cascade"
_RAW = {"name": "raw", "datatype": "UINT8", "shape": [-1, 1, 8, 8]}
_PROBS = {"name": "probs", "datatype": "FP32", "shape": [-1, 10]}
_NO_NAMES = "Triton has this route for repositories with names, which Sluice has not: it is always refused with 501."
_REFUSED = (Example(Body({"error": "'repository_name' specification is not supported"}), Body({}), 501),)
_EXPLICIT = "Only a server with `--control explicit` allows it; others answer 503."


def _times(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}


def _step(model: str, inputs: dict[str, str], outputs: dict[str, str]) -> dict[str, Any]:
    return {
        "model_name": model,
        "model_version": 1,
        "input_map": inputs,
        "output_map": outputs,
        "model_namespace": "",
    }


_BATCH = {"compute_input": _times(2, 3_000_000), "compute_infer": _times(2, 800_000)}
_STATISTICS = {
    "model_stats": [
        {
            "name": _NAME,
            "version": "1",
            "last_inference": 1_767_225_600_000,
            "inference_count": 2,
            "execution_count": 2,
            "inference_stats": {
                "success": _times(2, 5_000_000),
                "fail": _times(0, 0),
                "queue": _times(2, 200_000),
                **_BATCH,
                "compute_output": _times(2, 1_000_000),
                "cache_hit": _times(0, 0),
                "cache_miss": _times(0, 0),
            },
            "response_stats": {},
            "batch_stats": [{"batch_size": 1, **_BATCH, "compute_output": _times(2, 1_000_000)}],
            "memory_usage": [],
        }
    ]
}
_CONFIG = {
    "name": _NAME,
    "platform": "sluice_pipeline",
    "backend": "",
    "runtime": "",
    "version_policy": {"all": {}},
    "max_batch_size": 64,
    "input": [
        {
            "name": "raw",
            "data_type": "TYPE_UINT8",
            "format": "FORMAT_NONE",
            "dims": [1, 8, 8],
            "is_shape_tensor": False,
            "allow_ragged_batch": False,
            "optional": False,
            "is_non_linear_format_io": False,
        }
    ],
    "output": [
        {
            "name": "probs",
            "data_type": "TYPE_FP32",
            "dims": [10],
            "label_filename": "",
            "is_shape_tensor": False,
            "is_non_linear_format_io": False,
        }
    ],
    "batch_input": [],
    "batch_output": [],
    "ensemble_scheduling": {
        "step": [
            _step("prep", {"raw": "raw"}, {"x": "prep.x"}),
            _step("logreg", {"x": "prep.x"}, {"probs": "small.probs"}),
            _step("rf1024", {"x": "prep.x"}, {"probs": "large.probs"}),
        ],
        "max_inflight_requests": 0,
    },
    "instance_group": [],
    "default_model_filename": "",
    "cc_model_filenames": {},
    "metric_tags": {},
    "parameters": {},
    "model_warmup": [],
}
_READY = answers({"name": _NAME, "ready": True})

MODELS: Mapping[str, Operation] = MappingProxyType(
    {
        "GET /v2/models/{name}/ready": Operation(
            "Is a model ready?",
            "Answers 200 while requests for the model or pipeline are served, and 503 with the reason while they are "
            "not.",
            _READY,
        ),
        "GET /v1/models/{name}": Operation(
            "Is a model ready? (V1)",
            "Answers 200 while requests for the model or pipeline are served, and 503 with the reason while they are "
            "not.",
            _READY,
        ),
        "GET /v1/models": Operation(
            "List the models (V1)",
            "Lists the models and pipelines that get requests.",
            answers({"models": [_NAME, "digits-ensemble", "logreg", "prep"]}),
        ),
        "GET /v2/models/{name}": Operation(
            "Metadata of a model",
            "Names the inputs and outputs of a model or pipeline with their datatypes and shapes. A -1 in a shape is "
            "any size; the first one is the rows of a batch. `properties.batching` says why a model has no batches.",
            answers(
                {
                    "name": _NAME,
                    "versions": ["1"],
                    "platform": "sluice_pipeline",
                    "inputs": [_RAW],
                    "outputs": [_PROBS],
                }
            ),
        ),
        "GET /v2/models/{name}/config": Operation(
            "Configuration of a model",
            "Shows the configuration that is in force, as Triton writes it. A pipeline looks like an ensemble of its "
            "stages.",
            answers(_CONFIG),
        ),
        "GET /v2/models/{name}/stats": Operation(
            "Statistics of a model",
            "Counts the requests and batches of a model or pipeline since it was loaded, and sums up their times in "
            "nanoseconds: `queue` until a worker was free, `compute_input` for the hand-off to the worker, "
            "`compute_infer` in the model, `compute_output` for the return.",
            answers(_STATISTICS),
        ),
        "GET /v2/models/stats": Operation(
            "Statistics of all models",
            "Has the statistics of every model and pipeline that is ready.",
            answers(_STATISTICS),
        ),
        "POST /v2/repository/index": Operation(
            "List the repository",
            "Lists every version of every model and pipeline, with its state and the reason if it is not served. With "
            "`ready`, only those are listed that are served. The body may be empty.",
            answers([{"name": _NAME, "version": "1", "state": "READY"}], {"ready": True}),
        ),
        "POST /v2/repository/models/{name}/load": Operation(
            "Load a model",
            "Loads a model or pipeline from the repository, or loads it again; it is served all the time. The answer "
            "comes when it is ready. The parameters may bring a configuration in JSON (`config`) and files in base 64 "
            f"(`file:1/model.onnx`) in place of those in the repository. {_EXPLICIT}",
            done({}),
        ),
        "POST /v2/repository/models/{name}/unload": Operation(
            "Unload a model",
            "Unloads a model or pipeline, after its open requests. With `unload_dependents`, the models that nothing "
            f"else needs are unloaded as well. {_EXPLICIT}",
            done({"parameters": {"unload_dependents": False}}),
        ),
        "POST /v2/repository/{repository_name}/index": Operation("List a repository by name", _NO_NAMES, _REFUSED),
        "POST /v2/repository/{repository_name}/models/{name}/load": Operation(
            "Load a model of a repository by name", _NO_NAMES, _REFUSED
        ),
        "POST /v2/repository/{repository_name}/models/{name}/unload": Operation(
            "Unload a model of a repository by name", _NO_NAMES, _REFUSED
        ),
    }
)
