"""The results of batches that failed, and of loads."""

import threading
from collections.abc import Mapping

import pytest

from sluice.models.backends.base import GpuOptions
from sluice.models.errors import BackendFailed
from sluice.models.measuring.quick import run_to_end
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.tensors.arrays import Array
from sluice.models.tensors.spec import TensorSpec
from sluice.mps.ipc.messages import AskReady, BatchFault, BatchRefused, ModelFile, ReadinessReport, RunBatch
from sluice.mps.worker.runner import ColdBackend, Report, Runner
from sluice.mps.worker.tensors import WorkerTensors

ILLEGAL = "CUDA failure 700: an illegal memory access was encountered ; GPU=0"


class Failing:
    """A backend that has nothing but an error."""

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    provider, threads = "", 0

    def __init__(self, error: Exception) -> None:
        self._error = error

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        raise self._error


def failed(error: Exception, gpu: GpuOptions | None = None) -> BatchRefused:
    file = ModelFile("m:1", "m.onnx", "onnxruntime", (), batchable=False, table=LatencyTable.from_ms({1: 1}))
    runner = Runner(WorkerTensors(1, 4096), 1, gpu=gpu)
    run_to_end(runner.load_steps(file, lambda: ColdBackend(Failing(error))))
    answer, overflow = runner.run(RunBatch(7, "m:1", ()))
    assert overflow is None
    assert isinstance(answer, BatchRefused)
    assert answer.batch == 7
    return answer


@pytest.mark.parametrize(
    ("error", "message", "fault"),
    [
        (BackendFailed("bad row\nsecond line"), "m:1: bad row", BatchFault.BATCH),
        (MemoryError(), "m:1: MemoryError", BatchFault.MEMORY),
        (BackendFailed("Failed to allocate memory for requested buffer of size 8"), None, BatchFault.MEMORY),
        (BackendFailed(ILLEGAL), f"m:1: {ILLEGAL}", BatchFault.DEVICE),
    ],
)
def test_a_batch_that_failed_tells_by_what(error: Exception, message: str | None, fault: BatchFault) -> None:
    answer = failed(error, GpuOptions())
    assert answer.fault is fault
    assert message is None or answer.message == message


def test_models_whose_memory_is_known_are_created_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2, timeout=60)

    def backend(runner: Runner, file: ModelFile) -> Failing:
        if file.memory_measured:
            together.wait()
        return Failing(BackendFailed(f"{file.path} has no first run"))

    monkeypatch.setattr(Runner, "backend", backend)
    names = ("a", "b", "c")
    files = [ModelFile(name, name, "python", (1,), batchable=False, memory_measured=name != "b") for name in names]
    loaded = Runner(WorkerTensors(1, 4096), 1).load(files)
    assert [(each.key, each.error) for each in loaded] == [(name, f"{name} has no first run") for name in names]


def test_on_cores_no_text_ends_a_worker() -> None:
    assert failed(BackendFailed(ILLEGAL)).fault is BatchFault.BATCH


def test_a_model_that_is_not_held_any_more_says_nothing_against_the_others() -> None:
    runner = Runner(WorkerTensors(1, 4096), 1)
    assert runner.pass_on(AskReady(7, "unloaded:1"), ()) == [Report(ReadinessReport(7, True))]
