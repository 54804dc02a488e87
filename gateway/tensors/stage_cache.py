"""What stages of pipelines make, in the response cache of their models."""

from collections.abc import Mapping

from sluice.batcher.interface.decisions import Member
from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.tensors.pipeline_wiring import OF_REQUEST
from sluice.gateway.tensors.request_tensors import Outputs, RequestTensors, find, item_shape, nothing
from sluice.gateway.tensors.response_cache import ResponseCache, request_key
from sluice.gateway.tensors.rows import merge, part, shaped
from sluice.models.spec import ModelSpec


class StageCache:
    """Looks stages up in a cache, and keeps there what those have made that were not in it."""

    def __init__(self, cache: ResponseCache) -> None:
        self._cache = cache

    def look_up(self, kept: RequestTensors, member: Member, spec: ModelSpec) -> Outputs | None:
        """The outputs of a stage that runs that model for a member's rows, as of a batch of these rows."""
        since_ns = self._cache.clock()
        key = request_key(spec.key, _inputs(kept, member, spec))
        known = self._cache.look_up(key, since_ns)
        if known is None:
            kept.unknown[member.stage] = key, self._cache.clock() - since_ns
            return None
        outputs = Outputs(known, {}, nothing)
        if not spec.batchable:
            outputs.as_row()
        return outputs

    def keep(self, kept: RequestTensors, member: Member, spec: ModelSpec, outputs: Outputs, first: int) -> None:
        """Keep the outputs, from row `first` on, of a stage that was looked up before it ran."""
        asked = kept.unknown.pop(member.stage, None)
        if asked is None:
            return
        made = {name: part(tensor, first, first + member.rows) for name, tensor in outputs.tensors.items()}
        if not spec.batchable:
            made = {name: shaped(tensor, tensor.shape[1:]) for name, tensor in made.items()}
        self._cache.keep(*asked, made)


def _inputs(kept: RequestTensors, member: Member, spec: ModelSpec) -> Mapping[str, Tensor]:
    """The inputs of a stage as a request to its model alone would give them."""
    inputs: dict[str, Tensor] = {}
    for tensor in spec.inputs:
        wire = kept.plan.stages[member.stage].inputs.get(tensor.name)
        if wire is None or (wire.stage == OF_REQUEST and wire.tensor not in kept.inputs):
            continue
        if wire.stage == OF_REQUEST and member.row_index is None:
            given = kept.inputs[wire.tensor]
        else:
            source, _, spans = find(kept, wire, member.row_index)
            pieces, held = [part(source, begin, end) for begin, end in spans], iter(range(member.rows))
            rows = [[next(held) for _ in range(begin, end)] for begin, end in spans]
            given = pieces[0] if len(pieces) == 1 else merge(list(zip(pieces, rows, strict=True)), member.rows)
        inputs[tensor.name] = shaped(given, item_shape(given.shape, tensor, member.rows if spec.batchable else None))
    return inputs
