"""Inference: V2, generate, V1 and SageMaker. The examples are a handwritten zero and the demo's cascade."""

import json
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sluice.gateway.http.operations.operation import EVENTS, OCTETS, Body, Example, Operation, answers

IMAGE = (
    *(0, 0, 5, 13, 9, 1, 0, 0),
    *(0, 0, 13, 15, 10, 15, 5, 0),
    *(0, 3, 15, 2, 0, 11, 8, 0),
    *(0, 4, 12, 0, 0, 8, 8, 0),
    *(0, 5, 8, 0, 0, 9, 8, 0),
    *(0, 4, 11, 0, 1, 12, 7, 0),
    *(0, 2, 14, 5, 10, 12, 0, 0),
    *(0, 0, 6, 13, 10, 0, 0, 0),
)
"""A zero in 8 by 8 gray levels of 0 to 16, in row-major order."""
PROBABILITIES = (0.98681, 0.00001, 0.00041, 0.00036, 0.00161, 0.00275, 0.00037, 0.00121, 0.00226, 0.0042)
"""The answer of the cascade to it: the probability of each digit."""

_NAME = "digits-cascade"
_ROWS = [list(IMAGE[begin : begin + 8]) for begin in range(0, 64, 8)]
_RAW: dict[str, Any] = {"name": "raw", "shape": [1, 1, 8, 8], "datatype": "UINT8"}
_PROBS: dict[str, Any] = {"name": "probs", "datatype": "FP32", "shape": [1, 10]}
_MODEL = {"model_name": _NAME, "model_version": "1"}
_INFER = {"id": "example-1", "inputs": [{**_RAW, "data": IMAGE}], "parameters": {"slo_ms": 5000}}
_INFERRED = {**_MODEL, "id": "example-1", "outputs": [{**_PROBS, "data": PROBABILITIES}]}
_GENERATED = {**_MODEL, "probs": PROBABILITIES}


def _mixed(head: dict[str, Any], blob: bytes) -> str:
    """A body of JSON and the bytes of binary tensors after it, one character for each byte."""
    return json.dumps(head, separators=(",", ":")) + blob.decode("latin-1")


BINARY_REQUEST = _mixed(
    {
        "inputs": [{**_RAW, "parameters": {"binary_data_size": 64}}],
        "outputs": [{"name": "probs", "parameters": {"binary_data": True}}],
    },
    bytes(IMAGE),
)
BINARY_LENGTH = len(BINARY_REQUEST) - 64
"""The length of the JSON in that body."""
_BINARY_RESPONSE = _mixed(
    {**_MODEL, "outputs": [{**_PROBS, "parameters": {"binary_data_size": 40}}]}, struct.pack("<10f", *PROBABILITIES)
)
_SAGEMAKER = "application/vnd.sagemaker-triton.binary+json"

INFERENCE: Mapping[str, Operation] = MappingProxyType(
    {
        "POST /v2/models/{name}/infer": Operation(
            "Infer",
            "Runs a model or pipeline on the inputs, and answers with its outputs. `data` is in row-major order, flat "
            "or nested. The first dimension is the rows, which are batched with those of other requests.\n\n"
            "The parameter `slo_ms` sets a deadline. A request that cannot meet its deadline is refused at once with "
            "503, a reason and `Retry-After`. A request may be sent ahead of its time: it begins `start_after_ms` "
            "after it came, and its deadline counts from then. With `x-sluice-explain: 1`, the answer says in "
            "headers where the time went.\n\n"
            "**Binary data.** A body may be JSON followed by the bytes of its tensors. "
            "`Inference-Header-Content-Length` is then the length of the JSON, and each binary tensor has the "
            "parameter `binary_data_size`. An output with the parameter `binary_data` comes back in the same way:\n\n"
            "```sh\n"
            f"printf '%s' '{BINARY_REQUEST[:BINARY_LENGTH]}' > body\n"
            "head -c 64 /dev/zero >> body    # an image without ink\n"
            f"curl localhost:8000/v2/models/{_NAME}/infer --data-binary @body \\\n"
            f"  -H 'Inference-Header-Content-Length: {BINARY_LENGTH}' -H 'Content-Type: {OCTETS}' --output answer\n"
            "```",
            (
                Example(Body(_INFERRED), Body(_INFER), name="json"),
                Example(Body(_BINARY_RESPONSE, OCTETS), Body(BINARY_REQUEST, OCTETS), name="binary"),
            ),
        ),
        "POST /v2/models/{name}/generate": Operation(
            "Generate",
            "Runs a model on the fields of one JSON object, as Triton's generate extension does. A field that is named "
            "like an input is its data, and other fields are parameters. The shape of the input must follow from the "
            "number of its elements. The model must give exactly one response.",
            answers({"id": "example-2", **_GENERATED}, {"id": "example-2", "raw": IMAGE}),
        ),
        "POST /v2/models/{name}/generate_stream": Operation(
            "Generate as events",
            "Does the same for any number of responses, each of which comes as a server-sent event as soon as the "
            'model gives it. An error is an event as well: `{"error": "..."}`.',
            (
                Example(
                    Body(f"data: {json.dumps(_GENERATED, separators=(',', ':'))}\n\n", EVENTS), Body({"raw": IMAGE})
                ),
            ),
        ),
        "POST /v1/models/{name}:predict": Operation(
            "Predict (V1)",
            "Runs a model over the protocol of KServe's first version and TensorFlow Serving. `instances` are rows, "
            "and the answer has `predictions` by row. With `inputs` instead, which are tensors, the answer has "
            "`outputs`. The parameters are those of V2.",
            (
                Example(Body({"predictions": [PROBABILITIES]}), Body({"instances": [[_ROWS]]}), name="by row"),
                Example(Body({"outputs": [PROBABILITIES]}), Body({"inputs": {"raw": [[_ROWS]]}}), name="by tensor"),
            ),
        ),
        "POST /invocations": Operation(
            "Infer (SageMaker)",
            "Runs a model on a body of V2 or V1, whichever it looks like. The header names the model; without it, the "
            "server's `default_model` or only model runs. For binary data, the type of the body is "
            f"`{_SAGEMAKER};json-header-size=N`, where N is the length of the JSON.",
            (
                Example(
                    Body({**_MODEL, "outputs": [{**_PROBS, "data": PROBABILITIES}]}),
                    Body({"inputs": [{**_RAW, "data": IMAGE}]}),
                    name="v2",
                ),
                Example(Body({"predictions": [PROBABILITIES]}), Body({"instances": [[_ROWS]]}), name="v1"),
            ),
        ),
    }
)
