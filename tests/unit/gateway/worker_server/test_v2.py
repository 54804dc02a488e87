"""The models of a worker server as plain clients see them."""

import asyncio
from typing import Any, cast

from tritonclient.grpc import service_pb2

from sluice.gateway.worker_protocol.messages import RemoteModel
from sluice.gateway.worker_server.host import WorkerHost
from sluice.gateway.worker_server.v2 import V2Service
from sluice.models.tensors.spec import DataType, DeclaredTensors, TensorSpec


class Held:
    """A host that holds revisions of a model; the output of each is named after it."""

    def __init__(self, *revisions: int) -> None:
        self.models = {}
        for revision in revisions:
            key = f"m:1@{revision}" if revision else "m:1"
            tensors = DeclaredTensors(
                (TensorSpec("x", DataType.FP32, (1,)),), (TensorSpec(f"y{revision}", DataType.FP32, (1,)),)
            )
            self.models[key] = RemoteModel(key, "", "onnxruntime", (1,), True, declared=tensors)
        self.loaded = dict.fromkeys(self.models)


def test_the_latest_revision_is_served_while_an_older_one_is_there_still() -> None:
    service = V2Service("w", cast(WorkerHost, Held(10, 9, 0)), lambda: True)
    request: Any = service_pb2.ModelMetadataRequest(name="m")
    metadata = asyncio.run(service.ModelMetadata(request, None))
    assert [each.name for each in metadata.outputs] == ["y10"]
