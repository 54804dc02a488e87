"""The pipelines of the digits as one writes them for Triton: the ensemble is one of Triton's, the cascade a script."""

from collections.abc import Mapping
from pathlib import Path

from tests.support.triton.models import add_model

BATCHING = "dynamic_batching { }"

_CASCADE = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        parts = [pb_utils.get_input_tensor_by_name(each, "raw").as_numpy() for each in requests]
        x = self.ask("prep", "raw", np.concatenate(parts), "x")
        probs = self.ask("logreg", "x", x, "probs")
        unsure = probs.max(axis=1) < %r
        if unsure.any():
            probs = probs.copy()
            probs[unsure] = self.ask("%s", "x", x[unsure], "probs")
        ends = np.cumsum([len(part) for part in parts])[:-1]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("probs", rows)]) for rows in np.split(probs, ends)
        ]

    def ask(self, model, name, array, output):
        request = pb_utils.InferenceRequest(
            model_name=model, requested_output_names=[output], inputs=[pb_utils.Tensor(name, array)]
        )
        response = request.exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return pb_utils.get_output_tensor_by_name(response, output).as_numpy()
"""

_VOTE = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        names = ("narrow", "broad", "kernel")
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("probs", np.mean(members, axis=0, dtype=np.float32))])
            for members in (
                [pb_utils.get_input_tensor_by_name(each, name).as_numpy() for name in names] for each in requests
            )
        ]
"""


def add_digits(repository: Path, files: Mapping[str, Path], large: str, most_rows: int, below: float = 0.9) -> None:
    """Add the models and both pipelines.

    `files` are the ONNX files of `prep`, `logreg`, `rf256`, `rbf` and of the model `large`. Rows of the cascade whose
    highest probability in `logreg` is less than `below` go on to it.
    """
    for name, file in files.items():
        add_model(repository, name, file, most_rows, BATCHING)
    _add_script(repository, "digits-cascade", _CASCADE % (below, large), most_rows, [_RAW], [_PROBS])
    members = [_PROBS.replace("probs", name) for name in ("narrow", "broad", "kernel")]
    _add_script(repository, "vote", _VOTE, most_rows, members, [_PROBS])
    steps = [
        _step("prep", {"raw": "raw"}, {"x": "image"}),
        _step("rf256", {"x": "image"}, {"probs": "narrow"}),
        _step(large, {"x": "image"}, {"probs": "broad"}),
        _step("rbf", {"x": "image"}, {"probs": "kernel"}),
        _step("vote", {name: name for name in ("narrow", "broad", "kernel")}, {"probs": "probs"}),
    ]
    directory = repository / "digits-ensemble"
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(
        f'name: "digits-ensemble" platform: "ensemble" max_batch_size: {most_rows}\n'
        f"input [{_RAW}] output [{_PROBS}]\nensemble_scheduling {{ step [{', '.join(steps)}] }}\n"
    )


_RAW = '{ name: "raw" data_type: TYPE_UINT8 dims: [1, 8, 8] }'
_PROBS = '{ name: "probs" data_type: TYPE_FP32 dims: [10] }'


def _add_script(
    repository: Path, name: str, script: str, most_rows: int, inputs: list[str], outputs: list[str]
) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(script)
    (repository / name / "config.pbtxt").write_text(
        f'name: "{name}" backend: "python" max_batch_size: {most_rows}\n'
        f"input [{', '.join(inputs)}] output [{', '.join(outputs)}]\n"
        "instance_group [{ count: 1 kind: KIND_CPU }]\n"
        'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value: { string_value: "yes" } }\n' + BATCHING + "\n"
    )


def _step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> str:
    maps = [
        f'{kind} {{ key: "{key}" value: "{value}" }}'
        for kind, pairs in (("input_map", inputs), ("output_map", outputs))
        for key, value in pairs.items()
    ]
    return f'{{ model_name: "{model}" model_version: -1 {" ".join(maps)} }}'
