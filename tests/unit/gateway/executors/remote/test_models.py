"""Models of the gateway's machine, as remote workers get them."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from sluice.gateway.executors.remote.models import MOST_PEERS, RemoteModels
from sluice.gateway.worker_protocol.messages import FileWanted, RemoteModel
from sluice.models.distribution.file_set import FileSet
from sluice.models.distribution.local_files import LocalFiles
from sluice.models.errors import ConfigError
from sluice.mps.ipc.messages import ModelFile
from tests.support.models.onnx_models import save_mlp


@pytest.fixture
def file(tmp_path: Path) -> ModelFile:
    path = save_mlp(tmp_path / "mlp" / "1" / "model.onnx", [2, 2])
    return ModelFile("mlp:1", str(path), "onnxruntime", (1, 4), True, config="{}")


def described(models: RemoteModels, file: ModelFile, peer: str = "") -> RemoteModel:
    return asyncio.run(models.describe(file, peer))


def test_a_model_comes_with_its_files_and_everything_else_of_it(file: ModelFile) -> None:
    model = described(RemoteModels(LocalFiles()), file)
    assert (model.key, model.backend, model.menu, model.config) == ("mlp:1", "onnxruntime", (1, 4), "{}")
    assert model.files is not None
    assert [each.path for each in model.files.files] == ["mlp/1/model.onnx"]
    assert model.peers == ()


def test_files_are_read_in_parts(file: ModelFile) -> None:
    models = RemoteModels(LocalFiles())
    files = described(models, file).files
    assert files is not None
    content = Path(file.path).read_bytes()

    async def read(offset: int, path: str = "mlp/1/model.onnx") -> tuple[bytes, str]:
        part = await models.read(FileWanted(1, files.digest, path, offset, 8))
        return part.data, part.error

    assert asyncio.run(read(4)) == (content[4:12], "")
    data, error = asyncio.run(read(0, "mlp/1/other.onnx"))
    assert (data, "there is no file 'mlp/1/other.onnx'" in error) == (b"", True)


def test_workers_hear_of_others_that_have_the_model(file: ModelFile) -> None:
    models = RemoteModels(LocalFiles())
    described(models, file)
    for number in range(6):
        models.held("mlp:1", f"n{number}:9001")
    models.held("mlp:1", "")
    models.held("never-described:1", "n1:9001")
    models.gone("n4:9001")
    assert described(models, file, "n5:9001").peers == ("n3:9001", "n2:9001", "n1:9001", "n0:9001")
    assert len(described(models, file, "n9:9001").peers) == MOST_PEERS
    for number in range(6):
        models.gone(f"n{number}:9001")
    assert described(models, file).peers == ()


def test_nothing_is_known_of_a_model_that_was_forgotten(file: ModelFile) -> None:
    models = RemoteModels(LocalFiles())
    described(models, file)
    models.held("mlp:1", "n1:9001")
    models.forget(["mlp:1", "other:1"])
    models.held("mlp:1", "n2:9001")
    assert described(models, file).peers == ()


def test_nobody_is_sent_for_files_that_have_changed(file: ModelFile, tmp_path: Path) -> None:
    models = RemoteModels(LocalFiles())
    changed = save_mlp(tmp_path / "new" / "mlp" / "1" / "model.onnx", [2, 3])
    described(models, file)
    models.held("mlp:1", "n1:9001")
    assert described(models, msgspec.structs.replace(file, path=str(changed))).peers == ()
    models.held("mlp:1", "n2:9001")
    assert described(models, file).peers == (), "who had these has other ones since"


def test_models_of_the_same_files_are_forgotten_one_by_one(file: ModelFile) -> None:
    models = RemoteModels(LocalFiles())
    other = msgspec.structs.replace(file, key="mlp:1@2")
    for each in (file, other):
        described(models, each)
        models.held(each.key, "n1:9001")
    models.forget(["mlp:1"])
    assert described(models, other).peers == ("n1:9001",)
    models.forget(["mlp:1@2"])
    assert described(models, other).peers == ()


def test_files_that_cannot_be_read_are_an_error_of_the_model(tmp_path: Path) -> None:
    file = ModelFile("mlp:1", str(tmp_path / "mlp" / "1" / "model.onnx"), "onnxruntime", (1,), True)
    with pytest.raises(ConfigError, match="mlp: cannot be read: No such file or directory"):
        described(RemoteModels(LocalFiles()), file)


def test_workers_that_come_together_get_one_description_of_the_files(file: ModelFile) -> None:
    class Counting(LocalFiles):
        described = 0

        def file_set(self, key: str, path: Path, backend: str) -> FileSet:
            self.described += 1
            return super().file_set(key, path, backend)

    local = Counting()
    models = RemoteModels(local)

    async def describe() -> None:
        found = await asyncio.gather(*(models.describe(file, f"n{number}:1") for number in range(8)))
        found.append(await models.describe(file, "n9:1"))
        assert len({each.files.digest for each in found if each.files is not None}) == 1

    asyncio.run(describe())
    assert local.described == 1
