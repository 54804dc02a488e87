"""The forms of requests: the V2 protocol where a server speaks it, and else the form that its documentation shows."""

import base64
import http.client
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import orjson
from tritonclient import grpc as v2_grpc
from tritonclient import http as v2_http

from benchmarks.peers.workload import Answers, Rows

TIMEOUT_S = 20.0


class Form(NamedTuple):
    """A form of requests to a path, posted as prepared bodies; `{model}` in the path is the model's name."""

    about: str
    path: str
    content_type: str
    body: Callable[[str, str, Rows], bytes]
    """body(input, datatype, rows)"""
    answer: Callable[[bytes], Answers]


def _tensor(content: bytes) -> Answers:
    return np.frombuffer(content, np.float32).reshape(-1, 10)


def _list(content: bytes) -> Answers:
    return np.array(orjson.loads(content), np.float32).reshape(-1, 10)


def _v2_json(content: bytes) -> Answers:
    return np.array(orjson.loads(content)["outputs"][0]["data"], np.float32).reshape(-1, 10)


def _v2_body(input_name: str, datatype: str, rows: Rows) -> bytes:
    data = rows.ravel().tolist()
    return orjson.dumps({"inputs": [{"name": input_name, "datatype": datatype, "shape": rows.shape, "data": data}]})


def _v2_base64(input_name: str, datatype: str, rows: Rows) -> bytes:
    text = base64.b64encode(rows.tobytes()).decode()
    tensor = {"name": input_name, "datatype": "BYTES", "shape": [len(rows), 1], "data": [text]}
    return orjson.dumps({"inputs": [tensor | {"parameters": {"content_type": "base64"}}]})


_OCTETS, _JSON = "application/octet-stream", "application/json"
TENSOR = Form("the bytes of the tensor", "/{model}", _OCTETS, lambda _, __, rows: rows.tobytes(), _tensor)
LIT_LIST = Form(
    "JSON with a list",
    "/{model}",
    _JSON,
    lambda _, __, rows: orjson.dumps({"x": rows[0].tolist()}),
    lambda content: np.array(orjson.loads(content)["y"], np.float32).reshape(-1, 10),
)
LIT_BASE64 = Form(
    "JSON with base64",
    "/{model}",
    _JSON,
    lambda _, __, rows: orjson.dumps({"bytes": base64.b64encode(rows.tobytes()).decode()}),
    LIT_LIST.answer,
)
BENTO_LIST = Form("JSON with a list", "/predict", _JSON, lambda _, __, rows: orjson.dumps({"x": rows.tolist()}), _list)
BENTO_FILE = Form("a file as the body", "/predict", _OCTETS, lambda _, __, rows: rows.tobytes(), _list)
V2_LIST = Form("V2 in JSON", "/v2/models/{model}/infer", _JSON, _v2_body, _v2_json)
V2_BASE64 = Form("V2 in JSON with base64", "/v2/models/{model}/infer", _JSON, _v2_base64, _v2_json)


def ask(port: int, form: Form, model: str, body: bytes) -> Answers:
    """The answer to a request; raises OSError or HTTPException where there is none, and ValueError for a refusal."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", form.path.format(model=model), body, {"content-type": form.content_type})
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise ValueError(f"HTTP {response.status}: {content[:200]!r}")
    return form.answer(content)


def ask_v2(port: int, model: str, input_name: str, datatype: str, rows: Rows) -> Answers:
    """The answer to a request of V2 over HTTP with binary tensors."""
    with v2_http.InferenceServerClient(
        f"127.0.0.1:{port}", connection_timeout=TIMEOUT_S, network_timeout=TIMEOUT_S
    ) as client:
        tensor = v2_http.InferInput(input_name, rows.shape, datatype)
        tensor.set_data_from_numpy(rows)
        return _first_output(client.infer(model, [tensor]))


def ask_v2_grpc(port: int, model: str, input_name: str, datatype: str, rows: Rows, headers: dict[str, str]) -> Answers:
    """The answer to a call of V2 over gRPC."""
    with v2_grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
        tensor = v2_grpc.InferInput(input_name, rows.shape, datatype)
        tensor.set_data_from_numpy(rows)
        return _first_output(client.infer(model, [tensor], headers=headers, client_timeout=TIMEOUT_S))


def _first_output(result: v2_http.InferResult | v2_grpc.InferResult) -> Answers:
    response = result.get_response()
    outputs = response["outputs"] if isinstance(response, dict) else response.outputs
    first = outputs[0]
    answers: Answers = result.as_numpy(first["name"] if isinstance(first, dict) else first.name)
    return answers
