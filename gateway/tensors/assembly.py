"""Holds the tensors of open requests and assembles the inputs of batches.

A tensor of a request is copied once, next to the others of its batch, into a slot of the gateway's arena. Outputs of
earlier stages are passed on where they lie, as segments.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from sluice.batcher.interface.decisions import DispatchBatch, Member
from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.tensors.body_memory import LARGE_BYTES
from sluice.gateway.tensors.combiner import Combined, combine
from sluice.gateway.tensors.input_slots import InputSlot, InputSlots
from sluice.gateway.tensors.layout import InputLayout
from sluice.gateway.tensors.pipeline_wiring import REQUEST_STAGE, PipelineWiring
from sluice.gateway.tensors.request_tensors import (
    BatchOutputs,
    RequestTensors,
    StageOutput,
    drop_references,
    item_shape,
    locate_rows,
    no_release,
    pipeline_output,
    select_rows,
    side_by_side,
)
from sluice.gateway.tensors.rows import content, reshaped, row_slice
from sluice.gateway.tensors.stage_cache import StageCache
from sluice.models.pipelines.confidence import confidence
from sluice.models.pipelines.pipeline import batch_key
from sluice.models.spec import ModelSpec
from sluice.models.tensors.arrays import Array, WireBytes
from sluice.models.tensors.spec import TensorSpec
from sluice.mps.ipc.messages import InputTensor, OutputTensor, Segment


class BatchInput(NamedTuple):
    """An input of a batch as the arrays of its rows, in order; together they have `shape`."""

    spec: TensorSpec
    shape: tuple[int, ...]
    pieces: Sequence[Array]


class _Running:
    """A batch in flight: its slot (None if nothing was copied) and the outputs that it reads."""

    __slots__ = ("batch", "reads", "slot")

    def __init__(self, batch: DispatchBatch, slot: InputSlot | None, reads: list[BatchOutputs]) -> None:
        self.batch = batch
        self.slot = slot
        self.reads = reads


class Assembly:
    """The tensors of open requests and of running batches.

    `wirings` are the pipelines by `name:version`, `models` the specs by key. `cache` serves stages that are looked up
    before they run; `look_up_cache` needs it.
    """

    def __init__(
        self,
        wirings: Mapping[str, PipelineWiring],
        models: Mapping[str, ModelSpec],
        slots: InputSlots,
        cache: StageCache | None = None,
    ) -> None:
        self._cache = cache
        self._wirings: dict[str, PipelineWiring] = {}
        self._models: dict[str, ModelSpec] = {}
        self._partial: set[str] = set()
        self._slots = slots
        self._requests: dict[int, RequestTensors] = {}
        self._running: dict[int, _Running] = {}
        self.add(wirings, models)

    def add(self, wirings: Mapping[str, PipelineWiring], models: Mapping[str, ModelSpec]) -> None:
        """Add pipelines and models."""
        self._wirings.update(wirings)
        self._slots.join(len(models.keys() - self._models.keys()))
        self._models.update(models)
        self._partial |= _partial(models)

    def remove(self, pipelines: Iterable[str], models: Iterable[str]) -> None:
        """Remove pipelines that get no more requests and models without batches."""
        for pipeline in pipelines:
            self._wirings.pop(pipeline, None)
        for model in models:
            if self._models.pop(model, None) is not None:
                self._slots.leave(1)
            self._partial.discard(model)

    def admit(
        self,
        request: int,
        pipeline: str,
        inputs: Mapping[str, Tensor],
        rows: int,
        input_bytes: int,
        shared: BatchOutputs | None = None,
    ) -> int:
        """Store a request's inputs; returns the bytes that its stages' outputs will take.

        `shared` are the inputs if they lie in shared memory, which are then not copied.
        """
        wiring = self._wirings[pipeline]
        self._requests[request] = RequestTensors(wiring, inputs, rows, shared)
        if shared is not None:
            shared.references += 1
        return wiring.memory.output_bytes(rows, input_bytes)

    def begin(self, batch: DispatchBatch, *, keeps_order: bool = True) -> tuple[InputTensor, ...]:
        """Lay out the inputs of a batch, which holds its memory until `complete` or `abandon`.

        Unless it `keeps_order`, its members may change places, so that large inputs need not be gathered. Raises
        PartitionError if there is no memory for them.
        """
        if not keeps_order and len(batch.members) > 1:
            batch = self._ordered_by_place(batch)
        reads: list[BatchOutputs] = []
        spec = self._models[batch.model]
        given = self._given(batch, spec) if batch.model in self._partial else spec.inputs
        members = self._padded(batch) if batch.padded_rows else batch.members
        gathered = [self._gather(members, tensor.name, reads) for tensor in given]
        layouts = [InputLayout(pieces) for pieces, _ in gathered]
        total = sum(layout.aligned_bytes for layout in layouts)
        slot = self._slots.allocate(batch.model, total) if total else None
        try:
            inputs = []
            offset = slot.offset if slot is not None else 0
            for tensor, layout, (_, sample) in zip(given, layouts, gathered, strict=True):
                shape = item_shape(sample, tensor, batch.run_rows if spec.batchable else None)
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
        """The inputs of a batch for an executor without shared memory; they stay until `complete` or `abandon`.

        One of these must follow, as after `begin`.
        """
        spec = self._models[batch.model]
        inputs = []
        reads: list[BatchOutputs] = []
        members = self._padded(batch) if batch.padded_rows else batch.members
        for tensor in self._given(batch, spec) if batch.model in self._partial else spec.inputs:
            pieces, sample = self._arrays(members, tensor.name, reads)
            shape = item_shape(sample, tensor, batch.run_rows if spec.batchable else None)
            inputs.append(BatchInput(tensor, shape, pieces))
        for outputs in reads:
            outputs.references += 1
        self._running[batch.batch] = _Running(batch, None, reads)
        return inputs

    def complete(self, batch: int, outputs: BatchOutputs) -> None:
        """Store a batch's outputs for the members that are still open, and free its inputs.

        Of a stage that ran twice, since its first worker did not answer, the first outputs are kept.
        """
        running = self._end(batch)
        spec = self._models[running.batch.model]
        if not spec.batchable:
            outputs.as_row()
        first = 0
        outputs.references += 1
        for member in running.batch.members:
            request_tensors = self._requests.get(member.request)
            if request_tensors is not None and request_tensors.stage_outputs[member.stage] is None:
                request_tensors.stage_outputs[member.stage] = StageOutput(outputs, first, member.rows, member.row_index)
                outputs.references += 1
                if request_tensors.cache_misses and self._cache is not None:
                    self._cache.store(request_tensors, member, spec, outputs, first)
            first += member.rows
        outputs.release_reference()

    def abandon(self, batch: int) -> None:
        """Free the inputs of a batch that will not complete."""
        self._end(batch)

    def combine(self, members: Sequence[Member]) -> list[Combined | Exception]:
        """Run a combiner for each member and store its output as a stage's; returns what came of each, in their order.

        Consecutive members whose answers lie in the outputs of the same batches are joined at once. Answers whose
        shapes do not fit give a ValueError: variable dimensions may differ.
        """
        combined: list[Combined | Exception] = []
        for _, alike in groupby(members, self._sources):
            together = list(alike)
            try:
                combined += self._combine(together)
            except Exception as error:  # only the shapes of the answers can be wrong, which are those of all of them
                combined += [error] * len(together)
        return combined

    def _sources(self, member: Member) -> list[int]:
        """Equal for members of one combiner whose answers are in the outputs of the same batches."""
        request_tensors = self._requests[member.request]
        stage = request_tensors.wiring.stages[member.stage]
        sources = [id(stage)]
        for ref in stage.inputs.values():
            source = None if ref.stage == REQUEST_STAGE else request_tensors.stage_outputs[ref.stage]
            sources.append(id(request_tensors if source is None else source.outputs))
        return sources

    def _combine(self, members: Sequence[Member]) -> list[Combined]:
        stage = self._requests[members[0].request].wiring.stages[members[0].stage]
        assert stage.combine is not None
        # Of members that are given up there is no output. The requests share their batches, so the first tells for all.
        outputs = self._requests[members[0].request].stage_outputs
        given = [number for number, ref in enumerate(stage.inputs.values()) if outputs[ref.stage] is not None]
        inputs, refs = list(stage.inputs), list(stage.inputs.values())
        present = {refs[number].stage for number in given}
        joined = combine(
            stage.combine,
            [self._answers(members, inputs[number]) for number in given],
            weights=[stage.weights[number] for number in given] if stage.weights else (),
            names=[stage.names[number] for number in given] if stage.names else (),
        )
        confidences = [tuple(confidence(joined, each.confidence).tolist()) for each in stage.confidences]
        key = batch_key([(stage.output, joined.shape[1:])])
        made = BatchOutputs({stage.output: joined}, {}, no_release)
        made.references = len(members)
        combined: list[Combined] = []
        first = 0
        for member in members:
            end = first + member.rows
            stored = StageOutput(made, first, member.rows, member.row_index)
            self._requests[member.request].stage_outputs[member.stage] = stored
            combined.append((tuple([values[first:end] for values in confidences]), key, len(present)))
            first = end
        return combined

    def _answers(self, members: Sequence[Member], name: str) -> Array:
        """An input of a combiner for all rows of the members; a view if they lie side by side."""
        together = side_by_side(self._requests, members, name)
        if together is not None:
            tensor = together.outputs.tensors[together.tensor]
            assert not isinstance(tensor, WireBytes), "combiners take numbers"
            return tensor[together.first : together.end]
        answers: list[Array] = []
        for member in members:
            request_tensors = self._requests[member.request]
            ref = request_tensors.wiring.stages[member.stage].inputs[name]
            answers.append(select_rows(request_tensors, ref, member.row_index))
        return answers[0] if len(answers) == 1 else np.concatenate(answers)

    def look_up_cache(self, member: Member) -> str | None:
        """Look up a stage in the cache and store what is found as the stage's output.

        Returns the batch key of the outputs, or None if the cache has none.
        """
        assert self._cache is not None
        request_tensors = self._requests[member.request]
        spec = self._models[request_tensors.wiring.stages[member.stage].model]
        outputs = self._cache.look_up(request_tensors, member, spec)
        if outputs is None:
            return None
        outputs.references = 1
        request_tensors.stage_outputs[member.stage] = StageOutput(outputs, 0, member.rows, member.row_index)
        variable = [tensor.name for tensor in spec.outputs if not tensor.fixed]
        return batch_key((name, outputs.tensors[name].shape[1:]) for name in variable) if variable else ""

    def take_outputs(self, request: int) -> tuple[Mapping[str, Tensor], Callable[[], None]]:
        """A request's output tensors and a function that releases them; everything else of the request is dropped.

        Raises ValueError for outputs that cannot be merged; the request then stays until `discard`.
        """
        request_tensors = self._requests[request]
        tensors: dict[str, Tensor] = {}
        for name, refs in request_tensors.wiring.outputs.items():
            tensors[name] = pipeline_output(request_tensors, refs)
        for name, rank in request_tensors.wiring.ranks.items():
            item = tensors[name].shape[len(tensors[name].shape) - rank :]
            tensors[name] = reshaped(
                tensors[name], (request_tensors.rows, *item) if request_tensors.wiring.batchable else item
            )
        del self._requests[request]
        if request_tensors.shared is not None:
            request_tensors.shared.release_reference()
        stage_outputs = request_tensors.stage_outputs
        if len(stage_outputs) == 1 and (only := stage_outputs[0]) is not None:
            return tensors, only.outputs.release_reference
        return tensors, lambda: drop_references(stage_outputs)

    def discard(self, request: int) -> None:
        """Drop a request that will not be answered."""
        request_tensors = self._requests.pop(request, None)
        if request_tensors is not None:
            if request_tensors.shared is not None:
                request_tensors.shared.release_reference()
            drop_references(request_tensors.stage_outputs)

    def _ordered_by_place(self, batch: DispatchBatch) -> DispatchBatch:
        """The batch with its members in another order, if their large inputs are one piece of memory in that."""
        places: list[tuple[int, int, int, Member]] = []
        for member in batch.members:
            request_tensors = self._requests[member.request]
            refs = request_tensors.wiring.stages[member.stage].inputs
            shared = request_tensors.shared
            if shared is None or member.row_index is not None or len(refs) != 1:
                return batch
            (ref,) = refs.values()
            place = shared.located.get(ref.tensor) if ref.stage == REQUEST_STAGE else None
            if place is None or place.nbytes < LARGE_BYTES:
                return batch
            places.append((place.region, place.offset, place.nbytes, member))
        places.sort(key=_by_place)
        for before, after in pairwise(places):
            if before[:2] != (after[0], after[1] - before[2]):
                return batch
        return msgspec.structs.replace(batch, members=tuple([place[3] for place in places]))

    def _padded(self, batch: DispatchBatch) -> tuple[Member, ...]:
        """The members of a batch, and after them its last row as often as the batch is to be padded."""
        last = batch.members[-1]
        row = last.rows - 1 if last.row_index is None else last.row_index[-1]
        padding = Member(last.request, last.stage, 1, (row,))
        return (*batch.members, *(padding,) * (batch.padded_rows - batch.rows))

    def _end(self, batch: int) -> _Running:
        running = self._running.pop(batch)
        if running.slot is not None:
            self._slots.free(running.slot)
        for outputs in running.reads:
            outputs.release_reference()
        return running

    def _given(self, batch: DispatchBatch, spec: ModelSpec) -> Sequence[TensorSpec]:
        """The inputs of a model that the requests of a batch provide.

        Raises ValueError if they differ, which the batch keys of pipelines with other names for the inputs may not
        prevent.
        """
        given = {tuple(self._gives(member, tensor.name) for tensor in spec.inputs) for member in batch.members}
        if len(given) > 1:
            raise ValueError("the requests of the batch have different inputs")
        return [tensor for tensor, is_given in zip(spec.inputs, *given, strict=True) if is_given]

    def _gives(self, member: Member, name: str) -> bool:
        request_tensors = self._requests[member.request]
        ref = request_tensors.wiring.stages[member.stage].inputs.get(name)
        return ref is not None and (ref.stage != REQUEST_STAGE or ref.tensor in request_tensors.inputs)

    def _gather(
        self, members: Sequence[Member], name: str, reads: list[BatchOutputs]
    ) -> tuple[list[Array | Segment], tuple[int, ...]]:
        """The rows of an input, as arrays to copy or segments to pass on, and the shape of one member's tensor."""
        together = side_by_side(self._requests, members, name)
        if together is not None:
            outputs, first, end = together.outputs, together.first, together.end
            tensor, located = outputs.tensors[together.tensor], outputs.located.get(together.tensor)
            if located is None:
                return [content(row_slice(tensor, first, end))], tensor.shape
            if outputs not in reads:
                reads.append(outputs)
            return [_segment(located, first, end)], tensor.shape
        pieces: list[Array | Segment] = []
        for member in members:
            request_tensors = self._requests[member.request]
            ref = request_tensors.wiring.stages[member.stage].inputs[name]
            shared = request_tensors.shared
            if ref.stage == REQUEST_STAGE and member.row_index is None:
                sample = request_tensors.inputs[ref.tensor]
                shape = sample.shape
                whole = None if shared is None else shared.located.get(ref.tensor)
                if whole is None:
                    pieces.append(content(sample))
                    continue
                pieces.append(Segment(whole.region, whole.offset, whole.nbytes))
            else:
                tensor, located, spans = locate_rows(request_tensors, ref, member.row_index)
                shape = tensor.shape
                if located is None:
                    pieces += [content(row_slice(tensor, first, end)) for first, end in spans]
                    continue
                pieces += [_segment(located, first, end) for first, end in spans]
            if ref.stage != REQUEST_STAGE:
                source = request_tensors.stage_outputs[ref.stage]
                shared = None if source is None else source.outputs
            if shared is not None and shared not in reads:
                reads.append(shared)
        return pieces, shape

    def _arrays(
        self, members: Sequence[Member], name: str, reads: list[BatchOutputs]
    ) -> tuple[list[Array], tuple[int, ...]]:
        """The rows of an input as arrays, and the shape of one member's tensor; `reads` gets what they are part of."""
        pieces: list[Array] = []
        for member in members:
            request_tensors = self._requests[member.request]
            ref = request_tensors.wiring.stages[member.stage].inputs[name]
            if ref.stage == REQUEST_STAGE and member.row_index is None:
                tensor = request_tensors.inputs[ref.tensor]
                pieces.append(content(tensor))
            else:
                tensor, _, spans = locate_rows(request_tensors, ref, member.row_index)
                pieces += [content(row_slice(tensor, first, end)) for first, end in spans]
            source = None if ref.stage == REQUEST_STAGE else request_tensors.stage_outputs[ref.stage]
            outputs = request_tensors.shared if source is None else source.outputs
            if outputs is not None and outputs not in reads:
                reads.append(outputs)
        return pieces, tensor.shape


def _by_place(place: tuple[int, int, int, Member]) -> tuple[int, int]:
    return place[:2]


def _segment(located: OutputTensor, first: int, end: int) -> Segment:
    """Rows `first` to `end` of a tensor in shared memory."""
    if located.row_offsets is not None:
        begin, stop = located.row_offsets[first], located.row_offsets[end]
    else:
        row_bytes = located.nbytes // located.shape[0]
        begin, stop = first * row_bytes, end * row_bytes
    return Segment(located.region, located.offset + begin, stop - begin)


def _partial(models: Mapping[str, ModelSpec]) -> set[str]:
    """The models with optional inputs."""
    return {key for key, spec in models.items() if any(tensor.optional for tensor in spec.inputs)}
