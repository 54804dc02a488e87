"""An assembly with the pipelines and models of its tests, and a stand-in for the worker."""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sluice.batcher.interface.config import ConfidenceSpec
from sluice.batcher.interface.decisions import DispatchBatch, Member, ReleaseReason
from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.tensors.assembly import Assembly
from sluice.gateway.tensors.input_slots import InputSlots
from sluice.gateway.tensors.pipeline_wiring import REQUEST_STAGE, PipelineWiring, StageWiring, TensorRef
from sluice.gateway.tensors.request_tensors import BatchOutputs
from sluice.models.pipelines.memory import OutputMemory
from sluice.models.pipelines.pipeline import Combiner, Confidence
from sluice.models.spec import ModelSpec
from sluice.models.tensors.arrays import Array, numpy_dtype
from sluice.models.tensors.spec import DataType, TensorSpec
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.messages import InputTensor, OutputTensor

X = TensorSpec("x", DataType.FP32, (2,))
PROBS = TensorSpec("probs", DataType.FP32, (2,))
TEXT = TensorSpec("text", DataType.BYTES, (1,))
MODELS = {
    "small:1": ModelSpec("small", 1, (X,), (PROBS,), 8),
    "large:1": ModelSpec("large", 1, (X,), (PROBS,), 8),
    "chained:1": ModelSpec("chained", 1, (X, PROBS), (PROBS,), 8),
    "turned:1": ModelSpec("turned", 1, (PROBS, X), (PROBS,), 8),
    "words:1": ModelSpec("words", 1, (TEXT,), (TEXT,), 8),
    "some:1": ModelSpec("some", 1, (X, TensorSpec("k", DataType.FP32, (2,), optional=True)), (PROBS,), 8),
    "whole:1": ModelSpec("whole", 1, (X,), (TensorSpec("y", DataType.FP32, (1, 2)),), 0),
    "single:1": ModelSpec("single", 1, (TensorSpec("x", DataType.FP32, ()),), (X,), 0),
}
FROM_REQUEST = TensorRef(REQUEST_STAGE, "x")
FIRST_PROBS = (TensorRef(0, "probs"),)


def stage(**inputs: TensorRef) -> StageWiring:
    return StageWiring(inputs, None, "", ())


def plan(
    stages: Sequence[StageWiring],
    outputs: dict[str, tuple[TensorRef, ...]],
    batchable: bool = True,
    ranks: Mapping[str, int] | None = None,
) -> PipelineWiring:
    return PipelineWiring(batchable, tuple(stages), outputs, OutputMemory(8, 0), ranks or {})


PLANS = {
    "small:1": plan([stage(x=FROM_REQUEST)], {"probs": FIRST_PROBS}),
    "cascade:1": plan(
        [stage(x=FROM_REQUEST), stage(x=FROM_REQUEST)], {"probs": (TensorRef(1, "probs"), TensorRef(0, "probs"))}
    ),
    "chain:1": plan(
        [stage(x=FROM_REQUEST), stage(x=FROM_REQUEST, probs=TensorRef(0, "probs"))], {"probs": (TensorRef(1, "probs"),)}
    ),
    "ensemble:1": plan(
        [
            stage(x=FROM_REQUEST),
            stage(x=FROM_REQUEST),
            StageWiring(
                {"0": TensorRef(0, "probs"), "1": TensorRef(1, "probs")},
                Combiner.MEAN,
                "probs",
                (ConfidenceSpec("probs", Confidence.MAX),),
            ),
        ],
        {"probs": (TensorRef(2, "probs"),)},
    ),
    "words:1": plan([stage(text=TensorRef(REQUEST_STAGE, "text"))], {"text": (TensorRef(0, "text"),)}),
    "some:1": plan([stage(x=FROM_REQUEST, k=TensorRef(REQUEST_STAGE, "k"))], {"probs": FIRST_PROBS}),
    "without:1": plan([stage(x=FROM_REQUEST)], {"probs": FIRST_PROBS}),
    "single:1": plan([stage(x=FROM_REQUEST)], {"x": (TensorRef(0, "x"),)}, False, {"x": 1}),
    "to-rows:1": plan(
        [stage(x=FROM_REQUEST), stage(x=TensorRef(0, "y"))], {"probs": (TensorRef(1, "probs"),)}, False, {"probs": 1}
    ),
    "from-rows:1": plan(
        [stage(x=FROM_REQUEST), stage(x=TensorRef(0, "probs"))],
        {"y": (TensorRef(1, "y"),), "probs": FIRST_PROBS},
        ranks={"y": 2, "probs": 1},
    ),
}


class LocalRegions:
    """Shared regions in one process; `read` gives what a worker would see through its own mapping."""

    def __init__(self) -> None:
        self.regions: dict[int, Region] = {}
        self._numbers = itertools.count(1)

    def share_region(self, region: Region) -> int:
        number = next(self._numbers)
        self.regions[number] = region
        return number

    def drop_region(self, number: int) -> None:
        self.regions.pop(number).close()

    def read(self, tensor: InputTensor) -> bytes:
        return b"".join(
            bytes(self.regions[part.region].view[part.offset : part.offset + part.nbytes]) for part in tensor.segments
        )

    def array(self, tensor: InputTensor) -> Array:
        return np.frombuffer(self.read(tensor), numpy_dtype(tensor.datatype)).reshape(tensor.shape)


class Bench:
    """An assembly and the worker's side of it, whose output region is number `output`."""

    def __init__(self, input_bytes: int = 1 << 16) -> None:
        self.regions = LocalRegions()
        self.slots = InputSlots(self.regions, input_bytes)
        self.assembly = Assembly(PLANS, MODELS, self.slots)
        self.output = self.regions.share_region(Region.create("test-outputs", 1 << 16))
        self.freed: list[int] = []
        self._next_offset = 0

    def admit(self, request: int, pipeline: str, **inputs: Tensor) -> int:
        rows = next(iter(inputs.values())).shape[0] if PLANS[pipeline].batchable else 1
        return self.assembly.admit(request, pipeline, inputs, rows, sum(each.nbytes for each in inputs.values()))

    def begin(self, batch: int, model: str, *members: Member, padded_rows: int = 0) -> tuple[InputTensor, ...]:
        rows = sum(member.rows for member in members)
        order = DispatchBatch(batch, "cpu0", model, rows, members, ReleaseReason.IDLE, padded_rows=padded_rows)
        return self.assembly.begin(order)

    def complete(self, batch: int, name: str, array: Array) -> None:
        """Complete a batch whose one output is in the output region."""
        view = self.regions.regions[self.output].view
        offset = self._next_offset
        self._next_offset += array.nbytes
        target = np.ndarray(array.shape, array.dtype, view, offset)
        target[...] = array
        located = OutputTensor(name, DataType.FP32, array.shape, self.output, offset, array.nbytes)
        self.assembly.complete(batch, BatchOutputs({name: target}, {name: located}, lambda: self.freed.append(batch)))


def rows(*values: float) -> Array:
    """One row `[value, value + 0.5]` for each value."""
    return np.array([[value, value + 0.5] for value in values], np.float32)


def take(bench: Bench, request: int, name: str = "probs") -> tuple[Tensor, Callable[[], None]]:
    tensors, release = bench.assembly.take_outputs(request)
    return tensors[name], release
