from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest

from sluice.models.backends import onnxruntime
from sluice.models.backends.base import GpuOptions
from sluice.models.errors import BackendFailed, ConfigError, PartitionError
from sluice.models.triton_config.accelerators import providers
from sluice.models.triton_config.check import check_options
from sluice.models.triton_config.model_config import ExecutionAccelerators
from sluice.models.triton_config.pbtxt import decode_config, encode_config
from tests.support.models.onnx_models import save_mlp

TENSORRT = """
optimization { execution_accelerators { gpu_execution_accelerator {
  name: "tensorrt"
  parameters { key: "precision_mode" value: "FP16" }
  parameters { key: "max_workspace_size_bytes" value: "1073741824" }
  parameters { key: "trt_engine_cache_enable" value: "true" }
} } }
"""
OPENVINO = 'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }'


def asked(text: str) -> ExecutionAccelerators | None:
    optimization = decode_config(text, "m.pbtxt").optimization
    return None if optimization is None else optimization.execution_accelerators


def test_accelerators_are_those_of_the_kind_of_partition() -> None:
    (tensorrt,) = providers(asked(TENSORRT), "m.pbtxt", gpu=True)
    assert tensorrt.name == "TensorrtExecutionProvider"
    assert tensorrt.options == {
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": "1073741824",
        "trt_engine_cache_enable": "1",
    }
    assert providers(asked(TENSORRT), "m.pbtxt", gpu=False) == ()
    assert [each.name for each in providers(asked(OPENVINO), "m.pbtxt", gpu=False)] == ["OpenVINOExecutionProvider"]
    assert providers(asked(OPENVINO), "m.pbtxt", gpu=True) == ()


@pytest.mark.parametrize("name", ["cuda", "gpu_io"])
def test_what_a_partition_of_a_gpu_does_anyway_adds_nothing(name: str) -> None:
    text = f'optimization {{ execution_accelerators {{ gpu_execution_accelerator {{ name: "{name}" }} }} }}'
    assert providers(asked(text), "m.pbtxt", gpu=True) == ()


@pytest.mark.parametrize(
    ("accelerator", "message"),
    [
        (
            'gpu_execution_accelerator { name: "xla" }',
            "'xla': not supported by the backend onnxruntime; expected tensor",
        ),
        ('cpu_execution_accelerator { name: "tensorrt" }', "'tensorrt': not supported by .*; expected openvino"),
        (
            'gpu_execution_accelerator { name: "tensorrt" parameters { key: "a" value: "b" } }',
            "'tensorrt': parameter 'a': expected precision_mode, max_workspace_size_bytes",
        ),
        (
            'gpu_execution_accelerator { name: "tensorrt" parameters { key: "precision_mode" value: "FP8" } }',
            "'tensorrt': parameter 'precision_mode': unexpected value 'FP8'",
        ),
        (
            'gpu_execution_accelerator { name: "cuda" parameters { key: "gpu_mem_limit" value: "1" } }',
            "'cuda': parameter 'gpu_mem_limit': expected none: its options follow from the partition",
        ),
    ],
)
def test_accelerators_that_are_not_known_are_refused_by_name(accelerator: str, message: str) -> None:
    config = decode_config(
        f'backend: "onnxruntime" optimization {{ execution_accelerators {{ {accelerator} }} }}', "m.pbtxt"
    )
    with pytest.raises(ConfigError, match=f"^m.pbtxt: optimization.execution_accelerators {message}"):
        check_options(config, "m.pbtxt")


def test_other_backends_have_no_accelerators() -> None:
    with pytest.raises(ConfigError, match="execution_accelerators: expected them with backend onnxruntime only"):
        check_options(decode_config('backend: "python"' + OPENVINO, "m.pbtxt"), "m.pbtxt")


def test_an_accelerator_that_the_build_lacks_is_refused_by_name(tmp_path: Path) -> None:
    path = save_mlp(tmp_path / "model.onnx", [4, 3])
    expected = "execution_accelerators 'openvino': expected a build of ONNX Runtime with OpenVINOExecutionProvider, got"
    with pytest.raises(BackendFailed, match=expected):
        onnxruntime.load(str(path), 1, encode_config(decode_config(OPENVINO, "")))


@pytest.mark.parametrize("falls_back", [False, True])
def test_a_session_has_to_say_that_it_runs_on_the_accelerator(
    falls_back: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider whose libraries are missing is left out by the runtime without an error."""
    given: list[Any] = []
    session = ort.InferenceSession

    class Session(session):  # type: ignore[misc, valid-type]
        def __init__(self, path: str, options: ort.SessionOptions, providers: list[tuple[str, Any]]) -> None:
            given.extend(providers)
            super().__init__(path, options, providers=[providers[-1]])

        def get_providers(self) -> list[str]:
            names = [name for name, _ in given]
            return names[1:] if falls_back else names

    available = ["OpenVINOExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(ort, "get_available_providers", lambda: available)
    monkeypatch.setattr(ort, "InferenceSession", Session)
    path, config = save_mlp(tmp_path / "model.onnx", [4, 3]), encode_config(decode_config(OPENVINO, ""))
    if falls_back:
        with pytest.raises(PartitionError, match="expected OpenVINOExecutionProvider, but it runs on CPUExecution"):
            onnxruntime.load(str(path), 2, config)
    else:
        assert onnxruntime.load(str(path), 2, config).provider == "OpenVINOExecutionProvider"
    assert given == [("OpenVINOExecutionProvider", {"num_of_threads": "2"}), ("CPUExecutionProvider", {})]
    with pytest.raises(PartitionError, match="expected a build with CUDAExecutionProvider"):
        onnxruntime.load(str(path), 2, config, GpuOptions())
