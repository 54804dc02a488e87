"""The memory that a worker measures for its models, which are real."""

import random
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from sluice.models.backends.base import Backend
from sluice.models.measuring.memory_meter import HostMemoryMeter, share_one_arena
from sluice.mps.ipc.channel import Channel
from sluice.mps.ipc.messages import AddModel, DropModel, LoadResult, ModelAdded, ModelFile, ToWorker
from sluice.mps.nvidia.device_memory import load_meter
from sluice.mps.partitions.partition import CpuPartition, MpsPartition
from sluice.mps.worker.loader import Loader
from sluice.mps.worker.runner import Runner
from sluice.mps.worker.tensors import WorkerTensors
from tests.support.models.onnx_models import save_growing, save_mlp

MIB = 1 << 20
MENU = (1, 16, 64)
HEAVY = [2048, 2048, 2048]
"""Layers whose weights take 32 MiB."""


def file(path: Path, *, memory_measured: bool = False) -> ModelFile:
    return ModelFile(path.stem, str(path), "onnxruntime", MENU, batchable=True, memory_measured=memory_measured)


def runner() -> Runner:
    return Runner(WorkerTensors(1, 4096), 1, meter=HostMemoryMeter)


def weights_mib(model: LoadResult) -> float:
    assert model.error == ""
    assert model.memory is not None
    return model.memory.rest_bytes / MIB


def weigh(paths: Mapping[str, Path]) -> dict[str, LoadResult]:
    """The results of loading models one after the other; "again" is loaded once another one has gone."""
    models, said = runner(), {}
    for name, path in paths.items():
        if name == "again":
            models.unload(paths["heavy"].stem)
        (said[name],) = models.load([file(path)])
    return said


@pytest.fixture(scope="module")
def weighed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadResult]:
    """Of a process of their own, which is as a worker is: nothing of other tests comes or goes there."""
    folder = tmp_path_factory.mktemp("models")
    paths = {
        "least": save_mlp(folder / "least.onnx", [4, 4]),
        "heavy": save_mlp(folder / "heavy.onnx", HEAVY, 1),
        "wide": save_mlp(folder / "wide.onnx", [4, 50_000, 4]),
        "growing": save_growing(folder / "growing.onnx", 24),
        "again": save_mlp(folder / "again.onnx", HEAVY, 2),
    }
    assert paths["growing"].stat().st_size < 1000
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        return processes.submit(weigh, paths).result(60)


def test_the_library_is_no_part_of_the_first_model(weighed: dict[str, LoadResult]) -> None:
    assert weights_mib(weighed["least"]) < 6


def test_a_model_takes_its_weights_and_what_an_allocator_adds(weighed: dict[str, LoadResult]) -> None:
    assert 28 < weights_mib(weighed["heavy"]) < 56


def test_a_model_takes_what_the_rows_of_a_batch_add(weighed: dict[str, LoadResult]) -> None:
    memory = weighed["wide"].memory
    assert memory is not None
    # A row has 50 000 numbers between the layers, once or twice.
    assert 150_000 < memory.row_bytes < 600_000
    assert 9 < memory.of(64) / MIB < 50


def test_a_model_may_take_far_more_than_its_file(weighed: dict[str, LoadResult]) -> None:
    assert 20 < weights_mib(weighed["growing"]) < 60


def test_a_model_that_is_loaded_when_another_one_has_gone_seems_to_take_no_less(
    weighed: dict[str, LoadResult],
) -> None:
    assert 28 < weights_mib(weighed["again"]) < 56


class Workplace:
    """A loader, which is what a worker gives its orders to, and what it says of them."""

    def __init__(self, models: Runner) -> None:
        self.loader = Loader(models)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sockets = ours, theirs
        self._channel: Channel[ToWorker] = Channel(ours, ToWorker)

    def load(self, *files: ModelFile) -> dict[str, LoadResult]:
        for each in files:
            self.loader.submit(AddModel(each))
        answers: dict[str, LoadResult] = {}
        while self.loader.busy:
            self.loader.wait(self._channel)
            answer = self.loader.step(set())
            if isinstance(answer, ModelAdded):
                answers[answer.model.key] = answer.model
        return answers

    def unload(self, key: str) -> None:
        self.loader.submit(DropModel(key))
        while self.loader.busy:
            self.loader.step(set())

    def close(self) -> None:
        for each in self._sockets:
            each.close()


def weigh_again(small: Sequence[Path], growing: Path) -> list[float]:
    """The measured MiB of `growing` when it takes the place of others, of which many have come and gone."""
    share_one_arena()
    place, generator, found = Workplace(runner()), random.Random(1), []
    held: list[str] = []

    def come_and_go(times: int) -> None:
        for _ in range(times):
            path = generator.choice(small)
            if path.stem not in held:
                if len(held) == 8:
                    place.unload(held.pop(generator.randrange(8)))
                place.load(file(path))
                held.append(path.stem)

    come_and_go(40)
    for _ in range(4):
        for key in held[:5]:
            place.unload(key)
        del held[:5]
        found.append(weights_mib(place.load(file(growing))[growing.stem]))
        place.unload(growing.stem)
        come_and_go(10)
    place.close()
    return found


def test_a_model_takes_as_much_however_many_have_come_and_gone(tmp_path: Path) -> None:
    small = [save_mlp(tmp_path / f"m{seed}.onnx", [256, 1024, 10], seed) for seed in range(12)]
    growing = save_growing(tmp_path / "growing.onnx", 6, 1 << 20)
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        found = processes.submit(weigh_again, small, growing).result(60)
    assert all(5.7 < each < 9 for each in found), found


class Meeting(Runner):
    """Makes two models at a time only: each waits for the other one."""

    def __init__(self) -> None:
        super().__init__(WorkerTensors(1, 4096), 1, meter=HostMemoryMeter)
        self._both = threading.Barrier(2)

    def backend(self, file: ModelFile) -> Backend:
        self._both.wait(60)
        return super().backend(file)


@pytest.fixture
def workplaces() -> Iterator[list[Workplace]]:
    used: list[Workplace] = []
    yield used
    for each in used:
        each.close()


def test_models_that_nobody_has_weighed_are_made_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workplaces: list[Workplace]
) -> None:
    monkeypatch.setattr("sluice.mps.worker.loader.ALONE_S", 3600.0)
    workplaces.append(Workplace(runner()))
    answers = workplaces[0].load(*(file(save_mlp(tmp_path / f"{name}.onnx", [4, 4])) for name in "abc"))
    assert list(answers) == ["a", "b", "c"]
    assert all(each.memory is not None for each in answers.values())


def test_models_that_wait_for_each_other_are_made_together_and_not_weighed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workplaces: list[Workplace]
) -> None:
    monkeypatch.setattr("sluice.mps.worker.loader.ALONE_S", 0.05)
    workplaces.append(Workplace(Meeting()))
    answers = workplaces[0].load(*(file(save_mlp(tmp_path / f"{name}.onnx", [4, 4])) for name in "ab"))
    assert [(each.error, each.memory) for each in answers.values()] == [("", None), ("", None)]


def test_models_that_were_weighed_before_wait_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workplaces: list[Workplace]
) -> None:
    monkeypatch.setattr("sluice.mps.worker.loader.ALONE_S", 3600.0)
    workplaces.append(Workplace(Meeting()))
    paths = [save_mlp(tmp_path / f"{name}.onnx", [4, 4]) for name in "ab"]
    answers = workplaces[0].load(*(file(path, memory_measured=True) for path in paths))
    assert [(each.error, each.memory) for each in answers.values()] == [("", None), ("", None)]


def test_on_a_share_of_a_gpu_nobody_tells_models_apart() -> None:
    assert load_meter(MpsPartition("half", "GPU-1", 50)) is None
    assert isinstance(load_meter(CpuPartition("cpu0", (0,))), HostMemoryMeter)
