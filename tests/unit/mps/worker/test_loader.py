"""The order in which a worker loads and unloads models."""

import socket
import threading
from pathlib import Path

from sluice.models.backends.base import Backend
from sluice.mps.ipc.channel import Channel
from sluice.mps.ipc.messages import AddModel, DropModel, ModelAdded, ModelDropped, ModelFile, ToWorker
from sluice.mps.worker.loader import Loader
from sluice.mps.worker.runner import Runner
from sluice.mps.worker.tensors import WorkerTensors
from tests.support.models.onnx_models import save_mlp

TIMEOUT_S = 60


class Waiting(Runner):
    """Creates the model `slow` once `go` is set."""

    def __init__(self) -> None:
        super().__init__(WorkerTensors(1, 4096), 1)
        self.go = threading.Event()

    def backend(self, file: ModelFile) -> Backend:
        if file.key == "slow":
            self.go.wait(TIMEOUT_S)
        return super().backend(file)


def answered(loader: Loader, channel: Channel[ToWorker], count: int) -> list[str]:
    """The next answers: keys of models, with a minus for those that were unloaded."""
    keys: list[str] = []
    while len(keys) < count:
        loader.wait(channel)
        match loader.step(set()):
            case ModelAdded(model):
                assert model.error == ""
                keys.append(model.key)
            case ModelDropped(key):
                keys.append(f"-{key}")
            case None:
                pass
    return keys


def test_a_model_that_is_created_sooner_overtakes_other_loads_and_no_unload(tmp_path: Path) -> None:
    path = str(save_mlp(tmp_path / "mlp.onnx", [4, 4]))
    files = {
        key: ModelFile(key, path, "onnxruntime", (1, 2), batchable=True, memory_measured=True)
        for key in ("slow", "a", "b", "c")
    }
    runner = Waiting()
    loader = Loader(runner)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel: Channel[ToWorker] = Channel(ours, ToWorker)
    with ours, theirs:
        for key in ("slow", "a", "b"):
            loader.submit(AddModel(files[key]))
        loader.submit(DropModel("a"))
        loader.submit(AddModel(files["c"]))
        assert answered(loader, channel, 2) == ["a", "b"]
        assert loader.step(set()) is None
        runner.go.set()
        assert answered(loader, channel, 3) == ["slow", "-a", "c"]
        assert not loader.busy
