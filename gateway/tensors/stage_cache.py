"""The response cache for stages of pipelines."""

from collections.abc import Mapping

from sluice.batcher.interface.decisions import Member
from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.tensors.pipeline_wiring import REQUEST_STAGE
from sluice.gateway.tensors.request_tensors import BatchOutputs, RequestTensors, item_shape, locate_rows, no_release
from sluice.gateway.tensors.response_cache import ResponseCache, request_key
from sluice.gateway.tensors.rows import merge_rows, reshaped, row_slice
from sluice.models.spec import ModelSpec


class StageCache:
    """Looks up stages in the response cache, and stores the outputs of stages that missed it."""

    def __init__(self, cache: ResponseCache) -> None:
        self._cache = cache

    def look_up(self, request_tensors: RequestTensors, member: Member, spec: ModelSpec) -> BatchOutputs | None:
        """The cached outputs of a stage that runs model `spec` for a member's rows; None if there are none."""
        since_ns = self._cache.clock()
        key = request_key(spec.key, _inputs(request_tensors, member, spec))
        known = self._cache.look_up(key, since_ns)
        if known is None:
            request_tensors.cache_misses[member.stage] = key, self._cache.clock() - since_ns
            return None
        outputs = BatchOutputs(known, {}, no_release)
        if not spec.batchable:
            outputs.as_row()
        return outputs

    def store(
        self, request_tensors: RequestTensors, member: Member, spec: ModelSpec, outputs: BatchOutputs, first: int
    ) -> None:
        """Store the outputs, from row `first` on, of a stage that missed the cache."""
        miss = request_tensors.cache_misses.pop(member.stage, None)
        if miss is None:
            return
        rows = {name: row_slice(tensor, first, first + member.rows) for name, tensor in outputs.tensors.items()}
        if not spec.batchable:
            rows = {name: reshaped(tensor, tensor.shape[1:]) for name, tensor in rows.items()}
        self._cache.store(*miss, rows)


def _inputs(request_tensors: RequestTensors, member: Member, spec: ModelSpec) -> Mapping[str, Tensor]:
    """The inputs of a stage as a request to its model alone would give them."""
    inputs: dict[str, Tensor] = {}
    for tensor in spec.inputs:
        ref = request_tensors.wiring.stages[member.stage].inputs.get(tensor.name)
        if ref is None or (ref.stage == REQUEST_STAGE and ref.tensor not in request_tensors.inputs):
            continue
        if ref.stage == REQUEST_STAGE and member.row_index is None:
            given = request_tensors.inputs[ref.tensor]
        else:
            source, _, spans = locate_rows(request_tensors, ref, member.row_index)
            pieces, held = [row_slice(source, begin, end) for begin, end in spans], iter(range(member.rows))
            rows = [[next(held) for _ in range(begin, end)] for begin, end in spans]
            given = pieces[0] if len(pieces) == 1 else merge_rows(list(zip(pieces, rows, strict=True)), member.rows)
        inputs[tensor.name] = reshaped(given, item_shape(given.shape, tensor, member.rows if spec.batchable else None))
    return inputs
