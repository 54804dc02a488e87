"""The tensors of open requests: their inputs and the outputs of their stages."""

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from sluice.batcher.interface.decisions import Member
from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.tensors.pipeline_wiring import REQUEST_STAGE, PipelineWiring, TensorRef
from sluice.gateway.tensors.response_cache import CacheKey
from sluice.gateway.tensors.rows import contiguous_runs, merge_rows, reshaped, row_positions, row_slice
from sluice.models.tensors.arrays import Array, WireBytes
from sluice.models.tensors.spec import TensorSpec
from sluice.mps.ipc.messages import OutputTensor


class BatchOutputs:
    """The outputs of one batch or combiner, with a count of the requests and running batches that refer to them.

    `located` is the place of each output in shared memory, empty for outputs that the gateway computed. `free` is
    called when the last reference is released. Inputs of a request that a front end wrote to shared memory are the
    outputs of that front end.
    """

    __slots__ = ("_free", "located", "references", "tensors")

    def __init__(
        self, tensors: Mapping[str, Tensor], located: Mapping[str, OutputTensor], free: Callable[[], None]
    ) -> None:
        self.tensors = tensors
        self.located = located
        self.references = 0
        self._free = free

    def as_row(self) -> None:
        """Add a batch dimension of one row to the outputs of a model without one."""
        self.tensors = {name: reshaped(tensor, (1, *tensor.shape)) for name, tensor in self.tensors.items()}
        self.located = {
            name: msgspec.structs.replace(each, shape=(1, *each.shape)) for name, each in self.located.items()
        }

    def release_reference(self) -> None:
        """Release one reference."""
        self.references -= 1
        if self.references == 0:
            self._free()


class StageOutput:
    """The output of a stage for one request: rows `first` to `first + rows` of `outputs`, for the rows `row_index`."""

    __slots__ = ("first", "outputs", "row_index", "rows")

    def __init__(self, outputs: BatchOutputs, first: int, rows: int, row_index: tuple[int, ...] | None) -> None:
        self.outputs = outputs
        self.first = first
        self.rows = rows
        self.row_index = row_index


class RequestTensors:
    """The tensors of one open request.

    `stage_outputs` has one entry per stage, None until it has run. `cache_misses` has, by stage, the cache key of a
    look-up that found nothing and the time it took. `shared` are the inputs if they lie in shared memory.
    """

    __slots__ = ("cache_misses", "inputs", "rows", "shared", "stage_outputs", "wiring")

    def __init__(
        self, wiring: PipelineWiring, inputs: Mapping[str, Tensor], rows: int, shared: BatchOutputs | None = None
    ) -> None:
        self.wiring = wiring
        self.inputs = inputs
        self.rows = rows
        self.shared = shared
        self.stage_outputs: list[StageOutput | None] = [None] * len(wiring.stages)
        self.cache_misses: dict[int, tuple[CacheKey, int]] = {}


def item_shape(sample: tuple[int, ...], tensor: TensorSpec, rows: int | None) -> tuple[int, ...]:
    """The shape of an input of `rows` rows (None: no batch dimension), from the shape of one request's tensor.

    Only one of the two may have a batch dimension, of one row.
    """
    item = sample[len(sample) - len(tensor.shape) :]
    return item if rows is None else (rows, *item)


def locate_rows(
    request_tensors: RequestTensors, ref: TensorRef, row_index: tuple[int, ...] | None
) -> tuple[Tensor, OutputTensor | None, list[tuple[int, int]]]:
    """The tensor that holds the rows `row_index` of a request.

    Returns it with its place in shared memory, if any, and the runs of the rows in it.
    """
    if ref.stage == REQUEST_STAGE:
        wanted = range(request_tensors.rows) if row_index is None else row_index
        shared = request_tensors.shared
        located = None if shared is None else shared.located.get(ref.tensor)
        return request_tensors.inputs[ref.tensor], located, list(contiguous_runs(wanted))
    source = request_tensors.stage_outputs[ref.stage]
    assert source is not None, "a stage runs after its sources"
    where = row_positions(row_index, source.row_index, request_tensors.rows)
    outputs, base = source.outputs, source.first
    spans = [(base + first, base + end) for first, end in contiguous_runs(where)]
    return outputs.tensors[ref.tensor], outputs.located.get(ref.tensor), spans


class RowRun:
    """Rows `first` to `end` of one tensor of `outputs`."""

    __slots__ = ("end", "first", "outputs", "tensor")

    def __init__(self, outputs: BatchOutputs, tensor: str, first: int, end: int) -> None:
        self.outputs = outputs
        self.tensor = tensor
        self.first = first
        self.end = end


def side_by_side(requests: Mapping[int, RequestTensors], members: Sequence[Member], name: str) -> RowRun | None:
    """The rows of an input of all members, where the stage before had the same members in one batch; else None."""
    outputs: BatchOutputs | None = None
    tensor = ""
    first = end = 0
    for member in members:
        request_tensors = requests[member.request]
        ref = request_tensors.wiring.stages[member.stage].inputs[name]
        if ref.stage == REQUEST_STAGE:
            return None
        source = request_tensors.stage_outputs[ref.stage]
        if source is None or source.row_index != member.row_index:
            return None
        if outputs is None:
            outputs, tensor, first = source.outputs, ref.tensor, source.first
        elif source.outputs is not outputs or source.first != end or ref.tensor != tensor:
            return None
        end = source.first + source.rows
    return None if outputs is None else RowRun(outputs, tensor, first, end)


def select_rows(request_tensors: RequestTensors, ref: TensorRef, row_index: tuple[int, ...] | None) -> Array:
    """The rows `row_index` of a fixed-width tensor; a view if they are contiguous."""
    tensor, _, spans = locate_rows(request_tensors, ref, row_index)
    assert not isinstance(tensor, WireBytes), "combiners take numbers"
    selected = [tensor[first:end] for first, end in spans]
    return selected[0] if len(selected) == 1 else np.concatenate(selected)


def pipeline_output(request_tensors: RequestTensors, refs: Sequence[TensorRef]) -> Tensor:
    """An output of the pipeline: a view if one stage produced all rows, else merged into new memory."""
    held: list[tuple[Tensor, Sequence[int]]] = []
    for ref in refs:
        source = request_tensors.stage_outputs[ref.stage]
        if source is None:
            continue
        tensor = source.outputs.tensors[ref.tensor]
        rows = row_slice(tensor, source.first, source.first + source.rows)
        index = source.row_index
        if not held and (index is None or len(index) == request_tensors.rows):
            return rows
        held.append((rows, range(request_tensors.rows) if index is None else index))
    return merge_rows(held, request_tensors.rows)


def drop_references(stage_outputs: Sequence[StageOutput | None]) -> None:
    """Release the references to the outputs of all stages."""
    for held in stage_outputs:
        if held is not None:
            held.outputs.release_reference()


def no_release() -> None:
    """Frees nothing: for outputs that the gateway computed or cached."""
