"""A program that calls every method of KServe's clients, run in an environment that has them.

`python kserve_client.py HTTP_URL GRPC_URL` prints one JSON object: what each call returned, or its error. The server
has the models `fp32`, `fp16` and `bytes`, whose output `y` is their input `x` of three elements a row.
"""

import asyncio
import importlib
import json
import sys
from collections.abc import Awaitable
from typing import Any

import numpy as np

VALUES: dict[str, Any] = {
    "fp32": np.array([[1, np.nan, np.inf]], np.float32),
    "fp16": np.array([[1, 2, 3]], np.float16),
    "bytes": np.array([["a", "", "ä"]], np.object_),
}


async def _try(call: Awaitable[Any]) -> object:
    try:
        answer = await call
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if not hasattr(answer, "outputs"):
        return answer
    (output,) = answer.outputs
    values = output.as_numpy().tolist()
    texts = [[each.decode() if isinstance(each, bytes) else str(each) for each in row] for row in values]
    return [answer.model_name, answer.id, output.datatype, output.shape, texts]


async def _call_all(http: str, grpc: str) -> dict[str, object]:
    kserve: Any = importlib.import_module("kserve")
    rest_config: Any = importlib.import_module("kserve.inference_client").RESTConfig

    def request(model: str, *, binary: bool = True, binary_output: bool = False) -> Any:
        array = VALUES[model]
        tensor = kserve.InferInput("x", list(array.shape), model.upper())
        tensor.set_data_from_numpy(array, binary_data=binary)
        parameters = {"binary_data_output": True} if binary_output else None
        return kserve.InferRequest(model, [tensor], request_id="7", parameters=parameters)

    called: dict[str, object] = {}
    async with kserve.InferenceRESTClient(rest_config(protocol="v2")) as rest:
        called["v2 is_server_live"] = await _try(rest.is_server_live(http))
        called["v2 is_server_ready"] = await _try(rest.is_server_ready(http))
        called["v2 is_model_ready"] = await _try(rest.is_model_ready(http, "fp32"))
        called["v2 is_model_ready, unknown"] = await _try(rest.is_model_ready(http, "other"))
        for model in VALUES:
            called[f"v2 infer, {model}"] = await _try(rest.infer(http, request(model, binary_output=True), model))
        called["v2 infer, bytes in JSON"] = await _try(rest.infer(http, request("bytes", binary=False), "bytes"))
        message = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
        called["v2 infer, dict"] = await _try(rest.infer(http, message, "fp32"))
        called["v2 infer, NaN in a JSON answer"] = await _try(rest.infer(http, request("fp32"), "fp32"))
        path = f"{http}/v2/models/fp32/infer"
        called["v2 infer, graph"] = await _try(rest.infer(path, message, is_graph_endpoint=True))
        called["v2 infer, unknown"] = await _try(rest.infer(http, message, "other"))
    async with kserve.InferenceRESTClient(rest_config(protocol="v1")) as rest:
        rows = {"instances": [[1, 2, 3]]}
        called["v1 is_server_live"] = await _try(rest.is_server_live(http))
        called["v1 is_model_ready"] = await _try(rest.is_model_ready(http, "fp32"))
        called["v1 infer"] = await _try(rest.infer(http, rows, "fp32"))
        called["v1 infer, wrong"] = await _try(rest.infer(http, {"instances": [[1]]}, "fp32"))
        called["v1 explain"] = await _try(rest.explain(http, "fp32", rows))
    async with kserve.InferenceGRPCClient(grpc) as rpc:
        called["grpc is_server_live"] = await _try(rpc.is_server_live())
        called["grpc is_server_ready"] = await _try(rpc.is_server_ready())
        called["grpc is_model_ready"] = await _try(rpc.is_model_ready("fp32"))
        called["grpc is_model_ready, unknown"] = await _try(rpc.is_model_ready("other"))
        for model in VALUES:
            called[f"grpc infer, {model}"] = await _try(rpc.infer(request(model)))
        called["grpc infer, bytes in contents"] = await _try(rpc.infer(request("bytes", binary=False)))
    return called


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_call_all(*sys.argv[1:3]))))
