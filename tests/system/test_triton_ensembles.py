"""Ensembles give the answers that a real Triton gives: nested ones, and of models that differ in batch dimensions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.support.gateway.server import gateway_server
from tests.support.triton.server import triton_server
from tests.support.triton.setup import TritonUnavailable, set_up

MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            factor = pb_utils.get_input_tensor_by_name(request, "factor")
            y = x + 1 if factor is None else x * factor.as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return responses
"""
FACTOR = 'input { name: "factor" data_type: TYPE_FP32 dims: 1 optional: true }'
MODELS = {
    "batch": (8, "[ 3 ]", FACTOR),
    "whole": (0, "[ 3 ]", "instance_group [ { count: 2 }, { name: 'b' kind: KIND_MODEL } ]"),
    "lead": (0, "[ 1, 3 ]", ""),
}
ENSEMBLES = {
    "unbatched": (0, "[ 3 ]", "[ 3 ]", ["batch", "whole"]),
    "batched": (8, "[ 3 ]", "[ 3 ]", ["batch", "whole", "batch"]),
    "of_one": (8, "[ 3 ]", "[ 1, 3 ]", ["batch", "lead"]),
    "whole_batches": (0, "[ 1, 3 ]", "[ 1, 3 ]", ["batch", "lead"]),
    "nested": (8, "[ 3 ]", "[ 3 ]", ["batched", "batch"]),
    "nested_unbatched": (0, "[ 3 ]", "[ 3 ]", ["batched", "unbatched"]),
}
ASKED = [(name, shape) for name in ENSEMBLES for shape in ([3], [1, 3], [2, 3])]


def write(repository: Path) -> None:
    for name, (rows, dims, more) in MODELS.items():
        tensors = " ".join(f'{kind} {{ name: "{n}" data_type: TYPE_FP32 dims: {dims} }}' for kind, n in PUTS)
        add(repository / name, f'backend: "python" max_batch_size: {rows} {tensors} {more}')
        (repository / name / "1" / "model.py").write_text(MODEL)
    for name, (rows, inputs, outputs, steps) in ENSEMBLES.items():
        names = ["x", *(f"t{number}" for number in range(len(steps) - 1)), "y"]
        text = f'platform: "ensemble" max_batch_size: {rows} '
        text += f'input {{ name: "x" data_type: TYPE_FP32 dims: {inputs} }} '
        text += f'output {{ name: "y" data_type: TYPE_FP32 dims: {outputs} }} ensemble_scheduling {{ '
        for step, taken, made in zip(steps, names[:-1], names[1:], strict=True):
            text += f'step {{ model_name: "{step}" model_version: -1 input_map {{ key: "x" value: "{taken}" }} '
            text += f'output_map {{ key: "y" value: "{made}" }} }} '
        add(repository / name, text + "}")


PUTS = [("input", "x"), ("output", "y")]


def add(entry: Path, config: str) -> None:
    (entry / "1").mkdir(parents=True)
    (entry / "config.pbtxt").write_text(config)


def tensor(name: str, values: Any) -> Any:
    given = tritonclient.grpc.InferInput(name, list(values.shape), "FP32")
    given.set_data_from_numpy(values.astype(np.float32))
    return given


def answers(url: str) -> dict[str, object]:
    """A server's answer, and its text of instance groups; for an error its status."""
    found: dict[str, object] = {}
    with tritonclient.grpc.InferenceServerClient(url) as client:
        for name, shape in ASKED:
            values = np.arange(np.prod(shape)).reshape(shape)
            try:
                found[f"{name} {shape}"] = client.infer(name, [tensor("x", values)]).as_numpy("y").tolist()
            except InferenceServerException as error:
                found[f"{name} {shape}"] = error.status()
        twice = [tensor("x", np.ones((2, 3))), tensor("factor", np.full((2, 1), 5))]
        found["factor"] = client.infer("batch", twice).as_numpy("y").tolist()
        found["no factor"] = client.infer("batch", twice[:1]).as_numpy("y").tolist()
        for name in MODELS:
            found[f"groups of {name}"] = client.get_model_config(name, as_json=True)["config"]["instance_group"]
    return found


@pytest.mark.behaviour(
    "L0_simple_ensemble",
    "ensembles of a Triton repository answer as a real Triton does, bit for bit",
    through="http grpc",
)
def test_the_answers_are_those_of_triton(tmp_path: Path) -> None:
    try:
        directory = set_up()
    except TritonUnavailable as error:
        pytest.skip(str(error))
    repository = tmp_path / "models"
    write(repository)
    with triton_server(directory, repository, tmp_path) as triton:
        expected = answers(triton.url)
    with gateway_server(repository, tmp_path, {"partitions": 1}) as gateway:
        got = answers(gateway.grpc_url)
    assert got == expected
    assert sum(isinstance(each, str) for each in got.values()) == 12
