"""Keeps the tensors of open requests and lays out the inputs of batches.

Tensors of a request are copied once, side by side into one slot of the gateway's arena for a batch; the outputs of
earlier stages are passed on where they lie, as segments.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from batcher.decisions import DispatchBatch, Member
from gateway.answer import Tensor
from gateway.executors.base import Combined
from gateway.executors.combiner import combine
from gateway.input_slots import InputSlots, Slot
from gateway.layout import Layout
from gateway.plan import OF_REQUEST, PipelinePlan, Wire
from gateway.rows import content, merge, part, positions, runs, shaped
from models.arrays import Array, WireBytes
from models.confidence import confidence
from models.pipeline import batch_key
from models.spec import ModelSpec
from models.tensor import TensorSpec
from mps.messages import InputTensor, OutputTensor, Segment


class Outputs:
    """The outputs of one batch (or combiner), kept as long as requests or running batches refer to them.

    `located` says where in shared memory they lie; it is empty for those that the gateway computed itself. `free` is
    called when the last reference is gone.
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
        """Give the outputs of a model without a batch dimension one: they are one row."""
        self.tensors = {name: shaped(tensor, (1, *tensor.shape)) for name, tensor in self.tensors.items()}
        self.located = {
            name: msgspec.structs.replace(each, shape=(1, *each.shape)) for name, each in self.located.items()
        }

    def drop(self) -> None:
        """Take one reference back."""
        self.references -= 1
        if self.references == 0:
            self._free()


class BatchInput(NamedTuple):
    """An input of a batch where its rows lie: arrays one after the other, which together have `shape`."""

    spec: TensorSpec
    shape: tuple[int, ...]
    pieces: Sequence[Array]


class _Part(NamedTuple):
    """What a stage computed for one request: rows `first` to `first + rows` of `outputs`, for the rows `row_index`."""

    outputs: Outputs
    first: int
    rows: int
    row_index: tuple[int, ...] | None


class _Kept:
    """The tensors of one open request; `parts` has one entry a stage, None as long as (or if) it did not run."""

    __slots__ = ("inputs", "parts", "plan", "rows")

    def __init__(self, plan: PipelinePlan, inputs: Mapping[str, Tensor], rows: int) -> None:
        self.plan = plan
        self.inputs = inputs
        self.rows = rows
        self.parts: list[_Part | None] = [None] * len(plan.stages)


class _Running(NamedTuple):
    """A batch in flight: its slot (None when nothing was copied) and the outputs that it reads."""

    batch: DispatchBatch
    slot: Slot | None
    reads: list[Outputs]


class Assembly:
    """Tensors by request and by batch; `plans` are the pipelines by `name:version`, `models` the specs by key."""

    def __init__(self, plans: Mapping[str, PipelinePlan], models: Mapping[str, ModelSpec], slots: InputSlots) -> None:
        self._plans = dict(plans)
        self._models = dict(models)
        self._partial = _partial(models)
        self._slots = slots
        self._kept: dict[int, _Kept] = {}
        self._running: dict[int, _Running] = {}

    def add(self, plans: Mapping[str, PipelinePlan], models: Mapping[str, ModelSpec]) -> None:
        """Know more pipelines and models."""
        self._plans.update(plans)
        self._models.update(models)
        self._partial |= _partial(models)

    def remove(self, pipelines: Iterable[str], models: Iterable[str]) -> None:
        """Know pipelines no more that get no requests, and models that no batch is left of."""
        for pipeline in pipelines:
            self._plans.pop(pipeline, None)
        for model in models:
            self._models.pop(model, None)
            self._partial.discard(model)

    def admit(self, request: int, pipeline: str, inputs: Mapping[str, Tensor], rows: int, input_bytes: int) -> int:
        """Keep a request's inputs; returns the bytes that its stages' outputs will take."""
        plan = self._plans[pipeline]
        self._kept[request] = _Kept(plan, inputs, rows)
        return plan.memory.output_bytes(rows, input_bytes)

    def begin(self, batch: DispatchBatch) -> tuple[InputTensor, ...]:
        """Lay out the inputs of a batch, which then holds its memory until `complete` or `abandon`.

        Raises PartitionError when there is no memory for them.
        """
        reads: list[Outputs] = []
        spec = self._models[batch.model]
        given = self._given(batch, spec) if batch.model in self._partial else spec.inputs
        gathered = [self._gather(batch.members, tensor.name, reads) for tensor in given]
        layouts = [Layout(pieces) for pieces, _ in gathered]
        total = sum(layout.aligned_bytes for layout in layouts)
        slot = self._slots.take(total) if total else None
        try:
            inputs = []
            offset = slot.offset if slot is not None else 0
            for tensor, layout, (_, sample) in zip(given, layouts, gathered, strict=True):
                shape = _shape(sample, tensor, batch.rows if spec.batchable else None)
                inputs.append(InputTensor(tensor.name, tensor.datatype, shape, layout.place(slot, offset)))
                offset += layout.aligned_bytes
        except BaseException:
            if slot is not None:
                self._slots.free(slot)
            raise
        for outputs in reads:
            outputs.references += 1
        self._running[batch.batch] = _Running(batch, slot, reads)
        return tuple(inputs)

    def collect(self, batch: DispatchBatch) -> list[BatchInput]:
        """The inputs of a batch whose rows are copied at once, for somebody who does not share our memory.

        As after `begin`, `complete` or `abandon` has to follow.
        """
        spec = self._models[batch.model]
        inputs = []
        for tensor in self._given(batch, spec) if batch.model in self._partial else spec.inputs:
            pieces, sample = self._arrays(batch.members, tensor.name)
            inputs.append(BatchInput(tensor, _shape(sample, tensor, batch.rows if spec.batchable else None), pieces))
        self._running[batch.batch] = _Running(batch, None, [])
        return inputs

    def complete(self, batch: int, outputs: Outputs) -> None:
        """Take a batch's outputs over for the members that are still open, and free what it read."""
        running = self._end(batch)
        if not self._models[running.batch.model].batchable:
            outputs.as_row()
        first = 0
        outputs.references += 1
        for member in running.batch.members:
            kept = self._kept.get(member.request)
            if kept is not None:
                kept.parts[member.stage] = _Part(outputs, first, member.rows, member.row_index)
                outputs.references += 1
            first += member.rows
        outputs.drop()

    def abandon(self, batch: int) -> None:
        """Free what a batch read that will not complete."""
        self._end(batch)

    def combine(self, member: Member) -> Combined:
        """Run a combiner and keep its output like a stage's.

        Raises ValueError for answers that do not fit together: variable dimensions may differ.
        """
        kept = self._kept[member.request]
        stage = kept.plan.stages[member.stage]
        assert stage.combine is not None
        answers = [_select(kept, wire, member.row_index) for wire in stage.inputs.values()]
        joined = combine(stage.combine, answers, weights=stage.weights, names=stage.names)
        outputs = Outputs({stage.output: joined}, {}, _nothing)
        outputs.references = 1
        kept.parts[member.stage] = _Part(outputs, 0, member.rows, member.row_index)
        verdicts = tuple(tuple(confidence(joined, verdict.confidence).tolist()) for verdict in stage.verdicts)
        return verdicts, batch_key([(stage.output, joined.shape[1:])])

    def take(self, request: int) -> tuple[Mapping[str, Tensor], Callable[[], None]]:
        """A request's output tensors, and what to call when they are no longer looked at; the rest is forgotten.

        Raises ValueError for outputs that cannot be put together; the request then stays until `forget`.
        """
        kept = self._kept[request]
        tensors: dict[str, Tensor] = {}
        for name, wires in kept.plan.outputs.items():
            tensors[name] = _output(kept, wires)
        for name, rank in kept.plan.ranks.items():
            item = tensors[name].shape[len(tensors[name].shape) - rank :]
            tensors[name] = shaped(tensors[name], (kept.rows, *item) if kept.plan.batchable else item)
        del self._kept[request]
        parts = kept.parts
        if len(parts) == 1 and (only := parts[0]) is not None:
            return tensors, only.outputs.drop
        return tensors, lambda: _drop(parts)

    def forget(self, request: int) -> None:
        """Drop a request that will not be answered."""
        kept = self._kept.pop(request, None)
        if kept is not None:
            _drop(kept.parts)

    def _end(self, batch: int) -> _Running:
        running = self._running.pop(batch)
        if running.slot is not None:
            self._slots.free(running.slot)
        for outputs in running.reads:
            outputs.drop()
        return running

    def _given(self, batch: DispatchBatch, spec: ModelSpec) -> Sequence[TensorSpec]:
        """The inputs of a model that the requests of a batch give.

        Raises ValueError where they differ, as the batch keys of pipelines that have other names for them may not.
        """
        given = {tuple(self._gives(member, tensor.name) for tensor in spec.inputs) for member in batch.members}
        if len(given) > 1:
            raise ValueError("the requests of the batch have different inputs")
        return [tensor for tensor, is_given in zip(spec.inputs, *given, strict=True) if is_given]

    def _gives(self, member: Member, name: str) -> bool:
        kept = self._kept[member.request]
        wire = kept.plan.stages[member.stage].inputs.get(name)
        return wire is not None and (wire.stage != OF_REQUEST or wire.tensor in kept.inputs)

    def _gather(
        self, members: Sequence[Member], name: str, reads: list[Outputs]
    ) -> tuple[list[Array | Segment], tuple[int, ...]]:
        """The rows of input `name`, arrays to be copied or segments to be passed on, and one member's shape."""
        pieces: list[Array | Segment] = []
        for member in members:
            kept = self._kept[member.request]
            wire = kept.plan.stages[member.stage].inputs[name]
            if wire.stage == OF_REQUEST and member.row_index is None:
                sample = kept.inputs[wire.tensor]
                pieces.append(content(sample))
                shape = sample.shape
                continue
            tensor, located, spans = _find(kept, wire, member.row_index)
            shape = tensor.shape
            if located is None:
                pieces += [content(part(tensor, first, end)) for first, end in spans]
                continue
            pieces += [_segment(located, first, end) for first, end in spans]
            source = kept.parts[wire.stage]
            if source is not None and source.outputs not in reads:
                reads.append(source.outputs)
        return pieces, shape

    def _arrays(self, members: Sequence[Member], name: str) -> tuple[list[Array], tuple[int, ...]]:
        """As `_gather`, wherever the rows lie."""
        pieces: list[Array] = []
        for member in members:
            kept = self._kept[member.request]
            wire = kept.plan.stages[member.stage].inputs[name]
            if wire.stage == OF_REQUEST and member.row_index is None:
                tensor = kept.inputs[wire.tensor]
                pieces.append(content(tensor))
            else:
                tensor, _, spans = _find(kept, wire, member.row_index)
                pieces += [content(part(tensor, first, end)) for first, end in spans]
        return pieces, tensor.shape


def _shape(sample: tuple[int, ...], tensor: TensorSpec, rows: int | None) -> tuple[int, ...]:
    """The shape of an input of so many rows (None: it has no batch dimension) from that of what one request gives.

    Of the two, one alone may have a batch dimension, of one row.
    """
    item = sample[len(sample) - len(tensor.shape) :]
    return item if rows is None else (rows, *item)


def _find(
    kept: _Kept, wire: Wire, row_index: tuple[int, ...] | None
) -> tuple[Tensor, OutputTensor | None, list[tuple[int, int]]]:
    """The tensor that holds the rows `row_index` of a request, its place in shared memory, and the rows' runs in it."""
    if wire.stage == OF_REQUEST:
        wanted = range(kept.rows) if row_index is None else row_index
        return kept.inputs[wire.tensor], None, list(runs(wanted))
    source = kept.parts[wire.stage]
    assert source is not None, "a stage runs after its sources"
    where = positions(row_index, source.row_index, kept.rows)
    outputs, base = source.outputs, source.first
    spans = [(base + first, base + end) for first, end in runs(where)]
    return outputs.tensors[wire.tensor], outputs.located.get(wire.tensor), spans


def _select(kept: _Kept, wire: Wire, row_index: tuple[int, ...] | None) -> Array:
    """The rows `row_index` of a fixed-width tensor; a view where they are contiguous."""
    tensor, _, spans = _find(kept, wire, row_index)
    assert not isinstance(tensor, WireBytes), "combiners take numbers"
    selected = [tensor[first:end] for first, end in spans]
    return selected[0] if len(selected) == 1 else np.concatenate(selected)


def _segment(located: OutputTensor, first: int, end: int) -> Segment:
    """Rows `first` to `end` of a tensor in shared memory."""
    if located.row_offsets is not None:
        begin, stop = located.row_offsets[first], located.row_offsets[end]
    else:
        row_bytes = located.nbytes // located.shape[0]
        begin, stop = first * row_bytes, end * row_bytes
    return Segment(located.region, located.offset + begin, stop - begin)


def _output(kept: _Kept, wires: Sequence[Wire]) -> Tensor:
    """A pipeline output: a view where one source ran all rows, else merged into new memory."""
    held: list[tuple[Tensor, Sequence[int]]] = []
    for wire in wires:
        source = kept.parts[wire.stage]
        if source is None:
            continue
        tensor = source.outputs.tensors[wire.tensor]
        rows = part(tensor, source.first, source.first + source.rows)
        index = source.row_index
        if not held and (index is None or len(index) == kept.rows):
            return rows
        held.append((rows, range(kept.rows) if index is None else index))
    return merge(held, kept.rows)


def _drop(parts: Sequence[_Part | None]) -> None:
    for held in parts:
        if held is not None:
            held.outputs.drop()


def _partial(models: Mapping[str, ModelSpec]) -> set[str]:
    """Those of which requests may leave out inputs."""
    return {key for key, spec in models.items() if any(tensor.optional for tensor in spec.inputs)}


def _nothing() -> None:
    """What a combiner's output needs to be freed."""
