import json

import numpy as np
import pytest

from sluice.loadgen.target.base import TargetRequest
from sluice.loadgen.target.v2 import decode_metadata, decode_output, encode_request
from sluice.models.errors import ConfigError
from sluice.models.tensors.spec import DataType, TensorSpec


def test_a_request_is_one_complete_http_message() -> None:
    tensors = {"x": np.array([[1.0, 2.0]], np.float32), "name": np.array([b"ab"], "S2")}
    encoded = encode_request("host:8000", TargetRequest("m", tensors, slo_ms=50.0, priority=2, max_cost=0.0))
    head, _, body = encoded.content.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ") for line in lines[1:])
    length = int(headers["Inference-Header-Content-Length"])
    assert lines[0] == "POST /v2/models/m/infer HTTP/1.1"
    assert headers["Host"] == "host:8000"
    assert int(headers["Content-Length"]) == len(body)
    assert json.loads(body[:length]) == {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}},
            {"name": "name", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}},
        ],
        "parameters": {"binary_data_output": True, "slo_ms": 50.0, "priority": 2, "max_cost": 0.0},
    }
    assert body[length:] == b"\x00\x00\x80?\x00\x00\x00@" + b"\x02\x00\x00\x00ab"
    assert encoded.explained() == head + b"\r\nx-sluice-explain: 1\r\n\r\n" + body


def test_binary_outputs_are_found_behind_the_json() -> None:
    header = json.dumps(
        {
            "model_name": "m",
            "outputs": [
                {"name": "a", "datatype": "INT64", "shape": [1], "parameters": {"binary_data_size": 8}},
                {"name": "j", "datatype": "INT32", "shape": [2], "data": [4, 5]},
                {"name": "b", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}},
            ],
        }
    ).encode()
    body = header + (7).to_bytes(8, "little") + np.array([1.5, 2.5], np.float32).tobytes()
    assert decode_output(body, len(header), "a").tolist() == [7]
    assert decode_output(body, len(header), "j").tolist() == [4, 5]
    assert decode_output(body, len(header), "b").tolist() == [[1.5, 2.5]]


def test_an_answer_that_is_all_json() -> None:
    body = b'{"outputs":[{"name":"p","datatype":"FP32","shape":[2,2],"data":[0.25,0.75,0.5,0.5]}]}'
    assert decode_output(body, -1, "p").tolist() == [[0.25, 0.75], [0.5, 0.5]]


def test_a_missing_output_is_named() -> None:
    with pytest.raises(ConfigError, match="--output q: not in the answers"):
        decode_output(b'{"outputs":[]}', -1, "q")


def test_metadata() -> None:
    body = b'{"name":"m","inputs":[{"name":"x","datatype":"FP32","shape":[-1,4]}],"outputs":[],"extra":1}'
    assert decode_metadata(body).inputs == (TensorSpec("x", DataType.FP32, (-1, 4)),)
    with pytest.raises(ConfigError, match="--target: unreadable model metadata"):
        decode_metadata(b"<html>")


def test_metadata_may_have_null_where_a_server_knows_nothing() -> None:
    found = decode_metadata(b'{"name":"m","versions":null,"platform":null,"inputs":[],"outputs":[]}')
    assert (found.platform, found.versions) == ("", ())
