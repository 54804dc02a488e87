"""A model repository for a real Triton whose Python backend runs ONNX files."""

import shutil
from pathlib import Path

from sluice.models.tensors.spec import DataType, TensorSpec
from tests.support.models.onnx_models import read_spec

_MODEL = """\
import json
import os

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        path = os.path.join(args["model_repository"], args["model_version"], "model.onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.inputs = [each.name for each in self.session.get_inputs()]
        self.outputs = [each.name for each in self.session.get_outputs()]
        self.batched = json.loads(args["model_config"])["max_batch_size"] > 0

    def execute(self, requests):
        parts = [self.arrays(each) for each in requests]
        if not self.batched:
            return [self.answer(self.run(part)) for part in parts]
        outputs = self.run([np.concatenate(columns) for columns in zip(*parts)])
        ends = np.cumsum([part[0].shape[0] for part in parts])[:-1]
        return [self.answer(rows) for rows in zip(*(np.split(output, ends) for output in outputs))]

    def arrays(self, request):
        return [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs]

    def run(self, inputs):
        return self.session.run(self.outputs, dict(zip(self.inputs, inputs)))

    def answer(self, arrays):
        return pb_utils.InferenceResponse([pb_utils.Tensor(*each) for each in zip(self.outputs, arrays)])
"""


def add_model(repository: Path, name: str, onnx: Path, max_batch_size: int = 8, config: str = "") -> None:
    """Add version 1 of a model to a Triton repository; `config` is appended to its config.pbtxt."""
    spec = read_spec(onnx, name, 1, max_batch_size)
    version = repository / name / "1"
    version.mkdir(parents=True)
    shutil.copy(onnx, version / "model.onnx")
    (version / "model.py").write_text(_MODEL)
    lines = [
        f'name: "{name}"',
        'backend: "python"',
        f"max_batch_size: {spec.max_batch_size}",
        *(f"input [{_tensor(each)}]" for each in spec.inputs),
        *(f"output [{_tensor(each)}]" for each in spec.outputs),
        "instance_group [{ count: 1 kind: KIND_CPU }]",
        'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value: { string_value: "yes" } }',
        config,
    ]
    (repository / name / "config.pbtxt").write_text("\n".join(lines))


def _tensor(spec: TensorSpec) -> str:
    datatype = "STRING" if spec.datatype is DataType.BYTES else spec.datatype
    return f'{{ name: "{spec.name}" data_type: TYPE_{datatype} dims: {list(spec.shape)} }}'
