"""Outputs of stages are cached under the key that a request to their model alone would have."""

from collections.abc import Mapping

import numpy as np

from sluice.batcher.interface.decisions import Member
from sluice.gateway.observability.statistics import Statistics
from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.tensors.pipeline_wiring import REQUEST_STAGE, PipelineWiring, StageWiring, TensorRef
from sluice.gateway.tensors.request_tensors import BatchOutputs, RequestTensors, StageOutput, no_release
from sluice.gateway.tensors.response_cache import ResponseCache, request_key
from sluice.gateway.tensors.stage_cache import StageCache
from sluice.models.pipelines.memory import OutputMemory
from sluice.models.spec import ModelSpec
from sluice.models.tensors.arrays import Array, WireBytes
from sluice.models.tensors.spec import DataType, TensorSpec

X, TEXT = TensorSpec("x", DataType.FP32, (2,)), TensorSpec("text", DataType.BYTES, (1,))
ROWS = ModelSpec("rows", 1, (X,), (X,), 8)
ITEM = ModelSpec("item", 1, (X,), (X,), 0)
WORDS = ModelSpec("words", 1, (TEXT, TensorSpec("k", DataType.FP32, (1,), optional=True)), (TEXT,), 8)
VALUES: Array = np.arange(8, dtype=np.float32).reshape(4, 2)


class Filled:
    """A cache, and a request whose stage 1 is looked up."""

    def __init__(self, inputs: Mapping[str, Tensor], rows: int, **wires: TensorRef) -> None:
        self.statistics = Statistics()
        self.cache = ResponseCache(1 << 20, self.statistics, lambda: 0)
        self.stages = StageCache(self.cache)
        stages = (StageWiring({}, None, "", ()), StageWiring(wires, None, "", ()))
        self.request_tensors = RequestTensors(PipelineWiring(True, stages, {}, OutputMemory(0, 0)), inputs, rows)

    def first(self, tensor: Tensor, first: int, rows: int, row_index: tuple[int, ...] | None = None) -> None:
        """Stage 0 has made a tensor `y`, within a batch."""
        self.request_tensors.stage_outputs[0] = StageOutput(
            BatchOutputs({"y": tensor}, {}, no_release), first, rows, row_index
        )

    def know(self, spec: ModelSpec, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        """A request to the model alone has been answered."""
        self.cache.store(request_key(spec.key, inputs), 0, outputs)


def test_a_stage_finds_the_answer_of_a_request_to_its_model() -> None:
    filled = Filled({"x": VALUES[:2]}, 2, x=TensorRef(REQUEST_STAGE, "x"))
    filled.know(ROWS, {"x": VALUES[:2].copy()}, {"x": VALUES[2:]})
    found = filled.stages.look_up(filled.request_tensors, Member(1, 1, 2), ROWS)
    assert found is not None
    assert found.tensors["x"].tolist() == [[4, 5], [6, 7]]  # type: ignore[union-attr]
    assert filled.statistics.of("rows:1").cache_hits == 1


def test_a_request_to_the_model_finds_what_a_stage_has_made_of_some_rows_of_a_batch() -> None:
    filled = Filled({}, 4, x=TensorRef(0, "y"))
    filled.first(np.concatenate([VALUES[3:], VALUES]), 1, 4)
    member = Member(1, 1, 3, (0, 2, 3))
    assert filled.stages.look_up(filled.request_tensors, member, ROWS) is None
    made = BatchOutputs({"x": np.concatenate([VALUES, VALUES[::-1]])}, {}, no_release)
    filled.stages.store(filled.request_tensors, member, ROWS, made, 4)
    known = filled.cache.look_up(request_key("rows:1", {"x": VALUES[[0, 2, 3]]}), 0)
    assert known is not None
    assert known["x"].tolist() == [[6, 7], [4, 5], [2, 3]]  # type: ignore[union-attr]
    assert (filled.request_tensors.cache_misses, filled.statistics.of("rows:1").cache_misses) == ({}, 1)


def test_a_model_without_a_batch_dimension_is_known_by_its_items() -> None:
    filled = Filled({}, 1, x=TensorRef(0, "y"))
    filled.first(VALUES[:1], 0, 1)
    member = Member(1, 1, 1)
    assert filled.stages.look_up(filled.request_tensors, member, ITEM) is None
    filled.stages.store(filled.request_tensors, member, ITEM, BatchOutputs({"x": VALUES[1:2]}, {}, no_release), 0)
    known = filled.cache.look_up(request_key("item:1", {"x": VALUES[0]}), 0)
    assert known is not None
    assert known["x"].tolist() == [2, 3]  # type: ignore[union-attr]
    found = filled.stages.look_up(filled.request_tensors, member, ITEM)
    assert found is not None
    assert found.tensors["x"].tolist() == [[2, 3]]  # type: ignore[union-attr]


def test_strings_are_known_and_inputs_that_are_left_out_are_no_part_of_the_key() -> None:
    text = WireBytes(b"\1\0\0\0a\2\0\0\0bc", (2, 1), np.array([0, 5, 11], np.int64))
    filled = Filled({"s": text}, 2, text=TensorRef(REQUEST_STAGE, "s"), k=TensorRef(REQUEST_STAGE, "k"))
    last = WireBytes(b"\2\0\0\0bc", (1, 1), np.array([0, 6], np.int64))
    filled.know(WORDS, {"text": last}, {"text": last})
    assert filled.stages.look_up(filled.request_tensors, Member(1, 1, 1, (1,)), WORDS) is not None
    assert filled.stages.look_up(filled.request_tensors, Member(1, 1, 1, (0,)), WORDS) is None
