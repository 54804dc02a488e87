import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

from sluice.models.backends import onnxruntime, timed
from sluice.models.backends.base import GpuOptions
from sluice.models.errors import BackendFailed, ConfigError, PartitionError
from sluice.models.repository.scan import Repository
from sluice.models.tensors.arrays import Array, numpy_dtype
from sluice.models.tensors.spec import DataType, TensorSpec
from sluice.models.triton_config.timed_file import read_tensors
from tests.support.models.onnx_models import (
    save_external,
    save_fixed_batch,
    save_identity,
    save_mlp,
    save_model,
    save_spin,
    save_variable,
    value,
)

TIMED = """{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2]}],
 "outputs": [{"name": "y", "datatype": "FP32", "shape": [2]}],
 "max_batch_size": 4, "latency_ms": {"1": 1.5, "4": 3}}"""


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    times: list[float] = []
    monkeypatch.setattr("sluice.models.backends.timed.time.sleep", times.append)
    return times


@pytest.mark.parametrize("datatype", [datatype for datatype in DataType if datatype is not DataType.BYTES])
def test_every_numeric_datatype_goes_through(tmp_path: Path, datatype: DataType) -> None:
    backend = onnxruntime.load(str(save_identity(tmp_path / "m.onnx", datatype, [2])), 1)
    assert backend.inputs == (TensorSpec("x", datatype, (-1, 2)),)
    x = np.array([[0, 1], [1, 1]]).astype(numpy_dtype(datatype))
    y = backend.run({"x": x})["y"]
    assert y.dtype == x.dtype
    assert y.tolist() == x.tolist()


def test_strings_go_in_as_bytes_or_text_and_come_out_as_text(tmp_path: Path) -> None:
    backend = onnxruntime.load(str(save_identity(tmp_path / "m.onnx", DataType.BYTES, [2])), 1)
    x = np.array([[b"a", "b"], ["\u00e9".encode(), b""]], np.object_)
    assert backend.run({"x": x})["y"].tolist() == [["a", "b"], ["\u00e9", ""]]


def test_bytes_that_are_no_text_are_refused_by_name(tmp_path: Path) -> None:
    backend = onnxruntime.load(str(save_identity(tmp_path / "m.onnx", DataType.BYTES)), 1)
    with pytest.raises(BackendFailed, match=r"^input 'x': element 1 is not UTF-8"):
        backend.run({"x": np.array([b"a", b"\xff"], np.object_)})


def test_shapes_of_whole_arrays(tmp_path: Path) -> None:
    fixed = onnxruntime.load(str(save_fixed_batch(tmp_path / "fixed.onnx")), 1)
    variable = onnxruntime.load(str(save_variable(tmp_path / "variable.onnx")), 1)
    assert fixed.inputs == (TensorSpec("x", DataType.FP32, (1, 4)),)
    assert variable.outputs == (TensorSpec("y", DataType.FP32, (-1, -1)),)


def test_a_failure_is_one_line_and_leaves_the_backend_usable(tmp_path: Path) -> None:
    backend = onnxruntime.load(str(save_mlp(tmp_path / "m.onnx", [4, 3])), 1)
    with pytest.raises(BackendFailed, match="Got invalid dimensions for input: x") as failed:
        backend.run({"x": np.zeros((1, 5), np.float32)})
    assert "\n" not in str(failed.value)
    assert backend.run({"x": np.zeros((2, 4), np.float32)})["y"].shape == (2, 3)


def test_a_row_that_breaks_its_batch_fails_alone(tmp_path: Path) -> None:
    ends = [value("x", DataType.INT64, ["N"])], [value("y", DataType.FP32, ["N"])]
    node = helper.make_node("Gather", ["table", "x"], ["y"])
    path = save_model(tmp_path / "m.onnx", [node], *ends, {"table": np.arange(3, dtype=np.float32)})
    backend = onnxruntime.load(str(path), 1)
    with pytest.raises(BackendFailed, match="indices element out of data bounds"):
        backend.run({"x": np.array([0, 9])})
    assert backend.run({"x": np.array([0, 2])})["y"].tolist() == [0.0, 2.0]


def test_a_file_that_is_no_model_is_refused_by_path(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"garbage")
    with pytest.raises(BackendFailed, match=r"m\.onnx: ONNX Runtime cannot load the model: "):
        onnxruntime.load(str(path), 1)


def test_another_provider_is_never_taken_silently(tmp_path: Path) -> None:
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this ONNX Runtime may well have a GPU")
    path = save_mlp(tmp_path / "m.onnx", [4, 3])
    with pytest.raises(PartitionError, match=r"a build with CUDAExecutionProvider, got .*CPUExec"):
        onnxruntime.load(str(path), 1, gpu=GpuOptions())


def test_cuda_libraries_of_packages_are_loaded_once_before_sessions_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(ort, "preload_dlls", lambda: loaded.append("CUDA"), raising=False)
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    onnxruntime._load_cuda_libraries.cache_clear()
    path = str(save_mlp(tmp_path / "m.onnx", [4, 3]))
    onnxruntime.load(path, 1)
    assert loaded == []
    for _ in range(2):
        with pytest.raises(PartitionError, match="a build with CUDAExecutionProvider"):
            onnxruntime.load(path, 1, gpu=GpuOptions())
    assert loaded == ["CUDA"]
    onnxruntime._load_cuda_libraries.cache_clear()


def test_a_session_that_fell_back_to_cores_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ONNX Runtime for CUDA does where its libraries or the driver are missing: it lists it all the same."""
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this ONNX Runtime may well have a GPU")
    path = save_mlp(tmp_path / "m.onnx", [4, 3])
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    expected = r"m\.onnx: ONNX Runtime: expected CUDAExecutionProvider, but it runs on CPUExecutionProvider"
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"), pytest.raises(PartitionError, match=expected):
        onnxruntime.load(str(path), 1, gpu=GpuOptions())


def test_on_a_gpu_a_session_gets_the_memory_of_its_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    class Session:
        def __init__(self, path: str, options: ort.SessionOptions, providers: list[object]) -> None:
            given.append(providers)
            self._options = options

        def get_session_options(self) -> ort.SessionOptions:
            return self._options

        def get_providers(self) -> list[str]:
            return ["CUDAExecutionProvider", "CPUExecutionProvider"]

        def get_inputs(self) -> list[object]:
            return []

        get_outputs = get_inputs

    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr(ort, "InferenceSession", Session)
    assert onnxruntime.load("m.onnx", 1, gpu=GpuOptions(2 << 30)).provider == "CUDAExecutionProvider"
    always = {"device_id": "0", "cudnn_conv_algo_search": "HEURISTIC", "do_copy_in_default_stream": "1"}
    bounded = {"gpu_mem_limit": "2147483648", "arena_extend_strategy": "kSameAsRequested"}
    assert given == [[("CUDAExecutionProvider", always | bounded)]]
    onnxruntime.load("m.onnx", 1, gpu=GpuOptions())
    assert given[1] == [("CUDAExecutionProvider", always)]


def test_spin_gives_its_input_back(tmp_path: Path) -> None:
    backend = onnxruntime.load(str(save_spin(tmp_path / "m.onnx", 3, 2)), 1)
    x = np.random.default_rng(0).standard_normal((3, 64), np.float32)
    assert backend.run({"x": x})["y"].tobytes() == x.tobytes()


def test_timed_echoes_after_the_time_of_its_table(tmp_path: Path, slept: list[float]) -> None:
    path = tmp_path / "model.timed.json"
    path.write_text(TIMED)
    backend = timed.load(str(path), 1)
    x = np.ones((2, 2), np.float32)
    assert backend.run({"x": x})["y"] is x
    assert backend.run({"x": x[:1]})["y"].shape == (1, 2)
    assert slept == [0.003, 0.0015]
    assert backend.inputs == (TensorSpec("x", DataType.FP32, (-1, 2)),)
    with pytest.raises(BackendFailed, match="input 'x' is missing"):
        backend.run({})


def test_a_slowed_backend_takes_a_multiple_of_its_time(monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> None:
    now_ns = 0

    class Echo:
        inputs = (TensorSpec("x", DataType.FP32, (-1, 2)),)
        outputs = (TensorSpec("y", DataType.FP32, (-1, 2)),)
        provider, threads = "", 0

        def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
            nonlocal now_ns
            now_ns += 2_000_000
            if not len(inputs["x"]):
                raise BackendFailed("no rows")
            return {"y": inputs["x"]}

    monkeypatch.setattr("sluice.models.backends.timed.time.monotonic_ns", lambda: now_ns)
    backend = timed.SlowedBackend(Echo(), 3)
    assert (backend.inputs, backend.outputs) == (Echo.inputs, Echo.outputs)
    x = np.ones((2, 2), np.float32)
    assert backend.run({"x": x})["y"] is x
    assert slept == [0.004]
    with pytest.raises(BackendFailed, match="no rows"):
        backend.run({"x": x[:0]})


def test_timed_spec(tmp_path: Path) -> None:
    path = tmp_path / "model.timed.json"
    path.write_text(TIMED)
    spec = read_tensors(path).spec("slow", 3, 64)
    assert (spec.key, spec.max_batch_size, spec.platform) == ("slow:3", 4, "sluice_timed")
    assert spec.inputs == (TensorSpec("x", DataType.FP32, (2,)),)
    assert read_tensors(path).spec("slow", 3, 2).max_batch_size == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("}", "", "JSON is malformed"),
        ('"max_batch_size": 4, ', "", "missing required field `max_batch_size`"),
        ('"1": 1.5', '"one": 1.5', "latency_ms"),
        ('"1": 1.5', '"1": 0', "expected latencies above 0"),
        ('{"1": 1.5, "4": 3}', "{}", "expected ascending batch sizes"),
        ('"y", "datatype": "FP32"', '"y", "datatype": "INT8"', "output 'y': expected an input at 0 of its datatype"),
        ('"max_batch_size": 4', '"max_batch_size": -1', "max_batch_size of 0 or more"),
    ],
)
def test_a_bad_timed_file_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "model.timed.json"
    path.write_text(TIMED.replace(old, new, 1))
    with pytest.raises(ConfigError, match="^" + str(path)) as refused:
        read_tensors(path).spec("slow", 1, 64)
    assert message in str(refused.value)


def test_weights_behind_links_are_loaded_wherever_they_are(tmp_path: Path) -> None:
    save_external(tmp_path / "made" / "model.onnx")
    for layout, (model, data) in {
        "beside": ("store/model", "store/data"),
        "apart": ("store/1/data", "store/2/data"),
        "weights-only": ("", "store/3/data"),
    }.items():
        links = tmp_path / layout
        links.mkdir()
        for name, place in (("model.onnx", model), ("model.onnx_data", data)):
            file = tmp_path / place if place else links / name
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tmp_path / "made" / name, file)
            if place:
                (links / name).symlink_to(file)
        _check_external_model(links / "model.onnx")


def test_weights_are_found_where_any_link_of_the_model_leads(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "snapshots" / "main", tmp_path / "blobs"
    save_external(blobs / "model.onnx")
    snapshot.mkdir(parents=True)
    for name, blob in (("model.onnx", "1" * 40), ("model.onnx_data", "2" * 40)):
        (blobs / name).rename(blobs / blob)
        (snapshot / name).symlink_to(Path("..", "..", "blobs", blob))
    link = tmp_path / "models" / "m" / "1" / "model.onnx"
    link.parent.mkdir(parents=True)
    link.symlink_to(snapshot / "model.onnx")
    assert Repository.scan(tmp_path / "models").broken == ()
    _check_external_model(link)


def _check_external_model(path: Path) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(onnxruntime.load(str(path), 1).run({"x": x})["y"], x)


def test_weights_outside_of_the_directory_of_a_model_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m" / "model.onnx"
    save_external(path, "abcd")
    path.write_bytes(path.read_bytes().replace(b"abcd", b"../w"))
    path.with_name("abcd").rename(tmp_path / "w")
    with pytest.raises(BackendFailed, match="escapes"):
        onnxruntime.load(str(path), 1)


def test_a_model_without_its_locale_names_it(tmp_path: Path) -> None:
    node = helper.make_node("StringNormalizer", ["x"], ["y"], locale="xx_XX.UTF-8", case_change_action="LOWER")
    ends = [value("x", DataType.BYTES, ["N"])], [value("y", DataType.BYTES, ["N"])]
    path = save_model(tmp_path / "m.onnx", [node], *ends)
    with pytest.raises(BackendFailed) as refused:
        onnxruntime.load(str(path), 1)
    assert str(refused.value) == (
        f"{path}: the model needs the locale xx_XX.UTF-8: this machine lacks it; install the locales of the system, "
        "and create it with localedef -i xx_XX -f UTF-8 xx_XX.UTF-8"
    )
