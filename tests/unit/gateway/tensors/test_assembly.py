import re
import weakref
from collections.abc import Sequence

import numpy as np
import pytest

from sluice.batcher.interface.decisions import Member
from sluice.gateway.tensors import layout
from sluice.gateway.tensors.request_tensors import BatchOutputs
from sluice.gateway.tensors.rows import row_slice
from sluice.models.errors import PartitionError
from sluice.models.pipelines.memory import OutputMemory
from sluice.models.tensors.arrays import Array, WireBytes, encode_bytes
from sluice.models.tensors.spec import DataType
from sluice.mps.ipc.messages import Segment
from tests.support.gateway.assembly_bench import Bench, rows, take


def test_the_rows_of_a_batch_lie_side_by_side_in_one_segment() -> None:
    bench = Bench()
    bench.admit(1, "small:1", x=rows(1, 2))
    bench.admit(2, "small:1", x=rows(3))
    (tensor,) = bench.begin(10, "small:1", Member(1, 0, 2), Member(2, 0, 1))
    assert (tensor.name, tensor.datatype, tensor.shape, len(tensor.segments)) == ("x", DataType.FP32, (3, 2), 1)
    np.testing.assert_array_equal(bench.regions.array(tensor), rows(1, 2, 3))


def test_each_request_gets_its_own_rows_of_the_output_as_a_view() -> None:
    bench = Bench()
    bench.admit(1, "small:1", x=rows(1, 2))
    bench.admit(2, "small:1", x=rows(3))
    bench.begin(10, "small:1", Member(1, 0, 2), Member(2, 0, 1))
    bench.complete(10, "probs", rows(7, 8, 9))
    answer, _ = take(bench, 2)
    assert isinstance(answer, np.ndarray)
    np.testing.assert_array_equal(answer, rows(9))
    memory = np.frombuffer(bench.regions.regions[bench.output].view, np.uint8)
    assert np.shares_memory(answer, memory)


def test_a_padded_batch_repeats_its_last_row_and_answers_only_its_requests() -> None:
    bench = Bench()
    bench.admit(1, "small:1", x=rows(1, 2))
    bench.admit(2, "small:1", x=rows(3, 4))
    (tensor,) = bench.begin(10, "small:1", Member(1, 0, 2), Member(2, 0, 2), padded_rows=8)
    assert (tensor.shape, len(tensor.segments)) == ((8, 2), 1)
    np.testing.assert_array_equal(bench.regions.array(tensor), rows(1, 2, 3, 4, 4, 4, 4, 4))
    bench.complete(10, "probs", rows(10, 20, 30, 40, 0, 0, 0, 0))
    np.testing.assert_array_equal(take(bench, 1)[0], rows(10, 20))
    np.testing.assert_array_equal(take(bench, 2)[0], rows(30, 40))


def test_padding_of_a_later_stage_repeats_the_last_row_that_goes_on() -> None:
    bench = Bench()
    bench.admit(1, "chain:1", x=rows(1, 2, 3))
    bench.begin(10, "small:1", Member(1, 0, 3), padded_rows=4)
    bench.complete(10, "probs", rows(10, 20, 30, 0))
    copied, referred = bench.begin(11, "chained:1", Member(1, 1, 2, (0, 1)), padded_rows=4)
    np.testing.assert_array_equal(bench.regions.array(copied), rows(1, 2, 2, 2))
    np.testing.assert_array_equal(bench.regions.array(referred), rows(10, 20, 20, 20))


def test_padding_repeats_strings() -> None:
    bench = Bench()
    wire, offsets = encode_bytes(np.array([[b"one"], [b"three"]], np.object_), None)
    bench.admit(1, "words:1", text=WireBytes(wire, (2, 1), offsets))
    (tensor,) = bench.begin(10, "words:1", Member(1, 0, 2), padded_rows=4)
    assert tensor.shape == (4, 1)
    assert bench.regions.read(tensor) == bytes(wire) + 2 * (b"\x05\0\0\0three")


def test_a_fixed_width_tensor_is_copied_once_from_body_to_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []

    def counted(arrays: Sequence[Array], memory: memoryview, offset: int, nbytes: int) -> None:
        assert all(np.shares_memory(array, body) for array in arrays)
        copies.append(nbytes)
        copy_rows(arrays, memory, offset, nbytes)

    copy_rows = layout.copy_rows
    monkeypatch.setattr(layout, "copy_rows", counted)
    bench = Bench()
    body = np.frombuffer(rows(1, 2, 3).tobytes(), np.uint8)
    view: Array = np.frombuffer(body, np.float32).reshape(3, 2)
    bench.admit(1, "small:1", x=view)
    (tensor,) = bench.begin(10, "small:1", Member(1, 0, 3))
    # What the backend is given is the memory that was written, by way of the region.
    (segment,) = tensor.segments
    backend: Array = np.ndarray(tensor.shape, np.float32, bench.regions.regions[segment.region].view, segment.offset)
    np.testing.assert_array_equal(backend, rows(1, 2, 3))
    assert copies == [view.nbytes]


def test_a_cascade_sends_the_escalated_rows_and_merges_the_answers() -> None:
    bench = Bench()
    bench.admit(1, "cascade:1", x=rows(1, 2, 3, 4))
    bench.begin(10, "small:1", Member(1, 0, 4))
    bench.complete(10, "probs", rows(10, 20, 30, 40))
    (tensor,) = bench.begin(11, "large:1", Member(1, 1, 3, (0, 2, 3)))
    assert tensor.shape == (3, 2)
    np.testing.assert_array_equal(bench.regions.array(tensor), rows(1, 3, 4))
    bench.complete(11, "probs", rows(100, 300, 400))
    answer, _ = take(bench, 1)
    np.testing.assert_array_equal(answer, rows(100, 20, 300, 400))


def test_a_cascade_that_did_not_escalate_answers_with_a_view_of_the_first_stage() -> None:
    bench = Bench()
    bench.admit(1, "cascade:1", x=rows(1, 2))
    bench.begin(10, "small:1", Member(1, 0, 2))
    bench.complete(10, "probs", rows(10, 20))
    answer, release = take(bench, 1)
    np.testing.assert_array_equal(answer, rows(10, 20))
    assert bench.freed == []
    release()
    assert bench.freed == [10]


def test_outputs_of_a_stage_are_passed_on_by_reference() -> None:
    bench = Bench()
    bench.admit(1, "chain:1", x=rows(1, 2, 3, 4))
    bench.admit(2, "chain:1", x=rows(5))
    bench.begin(10, "small:1", Member(1, 0, 4), Member(2, 0, 1))
    bench.complete(10, "probs", rows(10, 20, 30, 40, 50))
    copied, referred = bench.begin(11, "chained:1", Member(1, 1, 3, (0, 2, 3)), Member(2, 1, 1))
    np.testing.assert_array_equal(bench.regions.array(copied), rows(1, 3, 4, 5))
    # Row 0 by itself; rows 2 and 3 and the next request's row touch.
    assert referred.segments == (Segment(bench.output, 0, 8), Segment(bench.output, 16, 24))
    np.testing.assert_array_equal(bench.regions.array(referred), rows(10, 30, 40, 50))


def test_a_variant_gets_its_inputs_by_name_whatever_their_order() -> None:
    bench = Bench()
    bench.admit(1, "chain:1", x=rows(1, 2))
    bench.begin(10, "small:1", Member(1, 0, 2))
    bench.complete(10, "probs", rows(10, 20))
    tensors = bench.begin(11, "turned:1", Member(1, 1, 2))
    assert [tensor.name for tensor in tensors] == ["probs", "x"]
    np.testing.assert_array_equal(bench.regions.array(tensors[0]), rows(10, 20))
    np.testing.assert_array_equal(bench.regions.array(tensors[1]), rows(1, 2))


def test_rows_are_found_in_a_stage_that_ran_only_some() -> None:
    bench = Bench()
    bench.admit(1, "chain:1", x=rows(1, 2, 3, 4))
    bench.begin(10, "small:1", Member(1, 0, 3, (0, 2, 3)))
    bench.complete(10, "probs", rows(10, 30, 40))
    _, referred = bench.begin(11, "chained:1", Member(1, 1, 2, (0, 3)))
    np.testing.assert_array_equal(bench.regions.array(referred), rows(10, 40))


def test_an_output_is_kept_until_every_answer_and_every_running_batch_is_done_with_it() -> None:
    bench = Bench()
    bench.admit(1, "chain:1", x=rows(1))
    bench.admit(2, "small:1", x=rows(2))
    bench.begin(10, "small:1", Member(1, 0, 1), Member(2, 0, 1))
    bench.complete(10, "probs", rows(10, 20))
    bench.begin(11, "chained:1", Member(1, 1, 1))
    bench.assembly.discard(1)
    _, release = take(bench, 2)
    release()
    assert bench.freed == []  # the batch still reads it
    bench.complete(11, "probs", rows(100))
    assert sorted(bench.freed) == [10, 11]
    assert bench.slots.used_bytes == 0


def test_outputs_nobody_waits_for_are_freed_at_once() -> None:
    bench = Bench()
    bench.admit(1, "small:1", x=rows(1))
    bench.begin(10, "small:1", Member(1, 0, 1))
    bench.assembly.discard(1)
    bench.complete(10, "probs", rows(10))
    assert bench.freed == [10]


def test_an_abandoned_batch_gives_its_slot_back_and_can_be_repeated() -> None:
    bench = Bench()
    bench.admit(1, "small:1", x=rows(1))
    bench.begin(10, "small:1", Member(1, 0, 1))
    bench.assembly.abandon(10)
    assert bench.slots.used_bytes == 0
    (tensor,) = bench.begin(11, "small:1", Member(1, 0, 1))
    np.testing.assert_array_equal(bench.regions.array(tensor), rows(1))


def test_of_a_stage_that_ran_twice_the_first_outputs_are_kept_and_the_others_freed() -> None:
    bench = Bench()
    bench.admit(1, "chain:1", x=rows(1))
    bench.begin(10, "small:1", Member(1, 0, 1))
    bench.begin(11, "small:1", Member(1, 0, 1))
    bench.complete(11, "probs", rows(20))
    assert bench.slots.used_bytes > 0, "the first worker may still read what it was given"
    bench.complete(10, "probs", rows(10))
    assert bench.freed == [10]
    assert bench.slots.used_bytes == 0
    _, referred = bench.begin(12, "chained:1", Member(1, 1, 1))
    np.testing.assert_array_equal(bench.regions.array(referred), rows(20))
    bench.complete(12, "probs", rows(200))
    bench.assembly.discard(1)
    assert sorted(bench.freed) == [10, 11, 12]


def test_an_ensemble_is_joined_from_members_of_different_batches() -> None:
    bench = Bench()
    bench.admit(1, "ensemble:1", x=rows(1, 2))
    bench.begin(10, "small:1", Member(1, 0, 2))
    bench.begin(11, "large:1", Member(1, 1, 2))
    bench.complete(10, "probs", np.array([[0.2, 0.8], [0.5, 0.5]], np.float32))
    bench.complete(11, "probs", np.array([[0.4, 0.6], [1.0, 0.0]], np.float32))
    [combined] = bench.assembly.combine([Member(1, 2, 2)])
    assert not isinstance(combined, Exception)
    (confidences,), key, joined = combined
    assert joined == 2
    assert confidences == pytest.approx((0.7, 0.75))
    assert key == "probs=2"
    answer, release = take(bench, 1)
    np.testing.assert_allclose(answer, [[0.3, 0.7], [0.75, 0.25]], rtol=1e-6)  # type: ignore[arg-type]
    release()
    assert sorted(bench.freed) == [10, 11]


def test_answers_of_different_shapes_are_not_joined_and_are_freed_with_the_request() -> None:
    bench = Bench()
    bench.admit(1, "ensemble:1", x=rows(1))
    bench.begin(10, "small:1", Member(1, 0, 1))
    bench.begin(11, "large:1", Member(1, 1, 1))
    bench.complete(10, "probs", np.zeros((1, 2), np.float32))
    bench.complete(11, "probs", np.zeros((1, 3), np.float32))
    [error] = bench.assembly.combine([Member(1, 2, 1)])
    assert isinstance(error, ValueError)
    assert str(error) == "answers of the shapes [1, 2], [1, 3] cannot be joined; expected equal shapes"
    bench.assembly.discard(1)
    assert sorted(bench.freed) == [10, 11]


def test_requests_of_one_batch_are_joined_together_and_each_gets_its_own_rows() -> None:
    bench = Bench()
    for request, values in ((1, (1, 2)), (2, (3,)), (3, (4,)), (4, (5,))):
        bench.admit(request, "ensemble:1", x=rows(*values))
    bench.begin(10, "small:1", Member(1, 0, 2), Member(2, 0, 1), Member(3, 0, 1), Member(4, 0, 1))
    bench.begin(11, "large:1", Member(1, 1, 2), Member(2, 1, 1))
    bench.begin(12, "large:1", Member(4, 1, 1))
    bench.begin(13, "large:1", Member(3, 1, 1))
    bench.complete(10, "probs", np.array([[0.5, 0.5], [0, 1], [1, 0], [0.5, 0.5], [0, 1]], np.float32))
    bench.complete(11, "probs", np.array([[1, 0], [0, 1], [0.5, 0.5]], np.float32))
    bench.complete(12, "probs", np.zeros((1, 3), np.float32))
    bench.complete(13, "probs", np.array([[0, 1]], np.float32))
    first, second, failed, third = bench.assembly.combine(
        [Member(1, 2, 2), Member(2, 2, 1), Member(4, 2, 1), Member(3, 2, 1)]
    )
    assert isinstance(failed, ValueError)
    assert [each for each in (first, second, third) if not isinstance(each, Exception)] == [
        (((0.75, 1.0),), "probs=2", 2),
        (((0.75,),), "probs=2", 2),
        (((0.75,),), "probs=2", 2),
    ]
    expected = {1: [[0.75, 0.25], [0, 1]], 2: [[0.75, 0.25]], 3: [[0.25, 0.75]]}
    answers = {request: take(bench, request) for request in expected}
    bench.assembly.discard(4)
    memory = {request: answer.base for request, (answer, _) in answers.items() if isinstance(answer, np.ndarray)}
    assert memory[1] is memory[2]
    assert memory[1] is not memory[3]
    for request, (answer, release) in answers.items():
        np.testing.assert_array_equal(answer, expected[request])
        release()
    assert sorted(bench.freed) == [10, 11, 12, 13]


def test_a_batch_with_the_members_of_the_stage_before_reads_its_outputs_as_one_segment() -> None:
    bench = Bench()
    bench.admit(1, "chain:1", x=rows(1, 2))
    bench.admit(2, "chain:1", x=rows(3))
    bench.begin(10, "small:1", Member(1, 0, 2), Member(2, 0, 1))
    bench.complete(10, "probs", rows(10, 20, 30))
    _, together = bench.begin(11, "chained:1", Member(1, 1, 2), Member(2, 1, 1))
    _, swapped = bench.begin(12, "chained:1", Member(2, 1, 1), Member(1, 1, 2))
    assert (len(together.segments), len(swapped.segments)) == (1, 2)
    np.testing.assert_array_equal(bench.regions.array(together), rows(10, 20, 30))
    np.testing.assert_array_equal(bench.regions.array(swapped), rows(30, 10, 20))


def test_outputs_that_do_not_make_an_answer_are_freed_with_the_request() -> None:
    bench = Bench()
    bench.admit(1, "cascade:1", x=rows(1, 2))
    bench.begin(10, "small:1", Member(1, 0, 2))
    bench.complete(10, "probs", rows(10, 20))
    bench.begin(11, "large:1", Member(1, 1, 1, (1,)))
    bench.complete(11, "probs", np.zeros((1, 3), np.float32))
    with pytest.raises(ValueError, match=re.escape("rows of the shapes [2], [3] cannot be merged into one tensor")):
        bench.assembly.take_outputs(1)
    assert bench.freed == []
    bench.assembly.discard(1)
    assert sorted(bench.freed) == [10, 11]


@pytest.mark.parametrize("pipeline", ["small:1", "cascade:1"])
@pytest.mark.parametrize("answered", [True, False])
def test_the_inputs_are_let_go_when_the_request_is_settled(pipeline: str, answered: bool) -> None:
    bench = Bench()
    body = rows(1)
    request_tensors = weakref.ref(body)
    bench.admit(1, pipeline, x=body)
    del body
    bench.begin(10, "small:1", Member(1, 0, 1))
    if answered:
        bench.complete(10, "probs", rows(10))
        _, release = take(bench, 1)
        assert request_tensors() is None  # though the answer has not been released
        release()
    else:
        bench.assembly.discard(1)
        assert request_tensors() is None  # though the batch runs
        bench.complete(10, "probs", rows(10))
    assert bench.freed == [10]


def test_bytes_travel_in_wire_form_and_are_cut_at_rows() -> None:
    bench = Bench()
    for request, words in ((1, [["a"], ["bcd"]]), (2, [[""]])):
        buffer, offsets = encode_bytes(np.array(words, np.object_))
        bench.admit(request, "words:1", text=WireBytes(buffer, (len(words), 1), offsets))
    (tensor,) = bench.begin(10, "words:1", Member(1, 0, 1, (1,)), Member(2, 0, 1))
    assert (tensor.datatype, tensor.shape) == (DataType.BYTES, (2, 1))
    assert bench.regions.read(tensor) == b"\3\0\0\0bcd" + b"\0\0\0\0"


def test_bytes_outputs_of_different_stages_merge_row_by_row() -> None:
    bench = Bench()
    bench.admit(1, "words:1", text=WireBytes(b"\0\0\0\0", (1, 1), np.array([0, 4])))
    bench.begin(10, "words:1", Member(1, 0, 1))
    content = WireBytes(b"\1\0\0\0q", (1, 1), np.array([0, 5]))
    bench.assembly.complete(10, BatchOutputs({"text": content}, {}, lambda: None))
    answer, _ = take(bench, 1, "text")
    assert isinstance(answer, WireBytes)
    assert (bytes(answer.buffer), answer.shape, answer.row_offsets.tolist()) == (b"\1\0\0\0q", (1, 1), [0, 5])


def test_an_unbatchable_model_gets_the_tensor_as_it_is() -> None:
    bench = Bench()
    bench.admit(1, "single:1", x=np.array(4.0, np.float32))
    (tensor,) = bench.begin(10, "single:1", Member(1, 0, 1))
    assert tensor.shape == ()
    assert bench.regions.array(tensor) == np.float32(4.0)
    bench.complete(10, "x", np.array([1, 2], np.float32))
    answer, _ = take(bench, 1, "x")
    np.testing.assert_array_equal(answer, [1, 2])


def test_a_batch_larger_than_the_arena_gets_a_region_of_its_own_within_bounds() -> None:
    bench = Bench(input_bytes=4096)
    wide = np.zeros((300, 2), np.float32)
    for request in (1, 2, 3):
        bench.admit(request, "small:1", x=wide)
    regions = len(bench.regions.regions)
    bench.begin(10, "small:1", Member(1, 0, 300))
    bench.begin(11, "small:1", Member(2, 0, 300))
    assert len(bench.regions.regions) == regions + 1
    with pytest.raises(PartitionError, match=r"a batch needs 2432 bytes for its inputs; of the arena's 4096 bytes"):
        bench.begin(12, "small:1", Member(3, 0, 300))
    bench.assembly.abandon(11)
    assert len(bench.regions.regions) == regions
    bench.begin(13, "small:1", Member(3, 0, 300))


def test_memory_of_outputs_is_counted_by_row_and_variable_ones_like_the_inputs() -> None:
    assert Bench().admit(1, "small:1", x=rows(1, 2, 3)) == 3 * 8
    assert OutputMemory(row_bytes=8, variable=2).output_bytes(3, 100) == 3 * 8 + 2 * 100


def test_a_batch_has_the_optional_inputs_that_its_requests_give() -> None:
    bench = Bench()
    bench.admit(1, "some:1", x=rows(1))
    bench.admit(2, "without:1", x=rows(2))
    bench.admit(3, "some:1", x=rows(3), k=rows(4))
    both = bench.begin(1, "some:1", Member(1, 0, 1), Member(2, 0, 1))
    assert [(tensor.name, bench.regions.array(tensor)[:, 0].tolist()) for tensor in both] == [("x", [1, 2])]
    alone = bench.begin(2, "some:1", Member(3, 0, 1))
    assert [(tensor.name, bench.regions.array(tensor)[:, 0].tolist()) for tensor in alone] == [("x", [3]), ("k", [4])]
    with pytest.raises(ValueError, match="the requests of the batch have different inputs"):
        bench.begin(3, "some:1", Member(1, 0, 1), Member(3, 0, 1))


def test_what_a_model_without_a_batch_dimension_makes_is_a_row_of_a_batch() -> None:
    bench = Bench()
    for request in (1, 2):
        bench.admit(request, "to-rows:1", x=rows(request)[0])
        (tensor,) = bench.begin(request, "whole:1", Member(request, 0, 1))
        assert (tensor.shape, bench.regions.array(tensor).tolist()) == ((2,), [request, request + 0.5])
        bench.complete(request, "y", rows(request + 2))
    (batch,) = bench.begin(3, "small:1", Member(1, 1, 1), Member(2, 1, 1))
    assert (batch.shape, bench.regions.array(batch)[:, 0].tolist()) == ((2, 2), [3, 4])
    bench.complete(3, "probs", rows(5, 6))
    assert [take(bench, request)[0] for request in (1, 2)] == [pytest.approx([5, 5.5]), pytest.approx([6, 6.5])]


def test_a_row_of_a_batch_is_all_that_a_model_without_a_batch_dimension_gets() -> None:
    bench = Bench()
    for request in (1, 2):
        bench.admit(request, "from-rows:1", x=rows(request))
    bench.begin(1, "small:1", Member(1, 0, 1), Member(2, 0, 1))
    bench.complete(1, "probs", rows(3, 4))
    (tensor,) = bench.begin(2, "whole:1", Member(2, 1, 1))
    assert (tensor.shape, bench.regions.array(tensor).tolist()) == ((2,), [4, 4.5])
    bench.complete(2, "y", rows(6))
    tensors, _ = bench.assembly.take_outputs(2)
    assert [(name, tensor.shape) for name, tensor in tensors.items()] == [("y", (1, 1, 2)), ("probs", (1, 2))]


def test_strings_of_a_model_without_a_batch_dimension_go_on_as_a_row() -> None:
    text, offsets = encode_bytes(np.array([[b"a", b"bc"]], np.object_), 1)
    outputs = BatchOutputs({"text": WireBytes(text, (2,), offsets)}, {}, lambda: None)
    outputs.as_row()
    (tensor,) = outputs.tensors.values()
    assert (tensor.shape, row_slice(tensor, 0, 1).shape) == ((1, 2), (1, 2))
