"""Answers that are given again, and what of them is kept."""

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.observability.exposition import exposition
from sluice.gateway.observability.statistics import Statistics
from sluice.gateway.observability.traces.explanation import explain
from sluice.gateway.observability.triton_metrics import triton_groups
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.tensors.response_cache import ENTRY_BYTES, ResponseCache, request_key
from sluice.models.tensors.arrays import Array, WireBytes
from tests.support.gateway.runtime_bench import Bench
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual

X = np.array([[1, 2]], np.float32)
STRINGS = WireBytes(b"....\1\0\0\0a\2\0\0\0bc....", (2,), np.array([4, 9, 15], np.int64))


def wire(*elements: bytes) -> WireBytes:
    data = b"".join(len(each).to_bytes(4, "little") + each for each in elements)
    return WireBytes(data, (len(elements),), np.array([0, len(data)], np.int64))


@pytest.mark.parametrize(
    "other",
    [
        {"x": X + 1},
        {"x": X.reshape(2, 1)},
        {"y": X},
        {"x": X, "y": X},
        {"x": wire(b"ab")},
        {},
    ],
)
def test_other_inputs_have_other_keys(other: Mapping[str, Tensor]) -> None:
    assert request_key("m:1", other) != request_key("m:1", {"x": X})


def test_equal_inputs_have_one_key_in_any_order_and_layout() -> None:
    twice: Array = np.repeat(X, 2, axis=1)[:, ::2]
    assert request_key("m:1", {"a": X, "s": STRINGS}) == request_key("m:1", {"s": wire(b"a", b"bc"), "a": twice})
    assert request_key("m:1", {"a": X}) != request_key("m:2", {"a": X})
    assert request_key("m:1", {"a": X}) != request_key("m:1@3", {"a": X})
    assert request_key("m:1", {"s": wire(b"ab", b"c")}) != request_key("m:1", {"s": wire(b"a", b"bc")})


class Filled:
    """A cache, on a clock that the test moves."""

    def __init__(self, capacity: int) -> None:
        self.now_ns = 0
        self.statistics = Statistics()
        self.cache = ResponseCache(capacity, self.statistics, lambda: self.now_ns)

    def store_answer(self, value: int, outputs: Mapping[str, Tensor], outcome: Outcome = Outcome.COMPLETED) -> None:
        self.cache.store_answer(key(value), 0, Answer(outcome, outputs=outputs))

    def held(self, *values: int) -> list[int]:
        return [value for value in values if self.cache.look_up(key(value), self.now_ns) is not None]


def key(value: int) -> Any:
    return request_key("m:1", {"x": np.array([value])})


def test_answers_are_copies_and_what_was_wanted_last_stays() -> None:
    entry = ENTRY_BYTES + 8
    filled = Filled(3 * entry)
    memory = np.array([[7, 8]], np.float32)
    filled.store_answer(1, {"y": memory})
    memory[:] = 0
    found = filled.cache.look_up(key(1), 0)
    assert found is not None
    assert np.array(found["y"]).tolist() == [[7, 8]]
    for value in (2, 3):
        filled.store_answer(value, {"y": memory})
    assert filled.held(1) == [1]
    filled.store_answer(4, {"y": memory})
    assert filled.held(1, 2, 3, 4) == [1, 3, 4]
    assert filled.cache.used_bytes == 3 * entry
    filled.store_answer(4, {"y": memory})
    assert filled.cache.used_bytes == 3 * entry
    # What is larger than the cache displaces nothing.
    filled.store_answer(5, {"y": np.zeros(entry, np.float32)})
    assert filled.held(1, 3, 4, 5) == [1, 3, 4]


def test_strings_are_kept_without_what_lies_around_them() -> None:
    filled = Filled(1 << 20)
    filled.store_answer(1, {"s": STRINGS})
    found = filled.cache.look_up(key(1), 0)
    assert found is not None
    strings = found["s"]
    assert isinstance(strings, WireBytes)
    assert (strings.buffer, strings.row_offsets.tolist()) == (b"\1\0\0\0a\2\0\0\0bc", [0, 5, 11])
    assert filled.cache.used_bytes == ENTRY_BYTES + 11


def test_what_is_no_answer_is_not_kept() -> None:
    filled = Filled(1 << 20)
    filled.store_answer(1, {}, Outcome.EVICTED_DEADLINE)
    filled.store_answer(2, {"y": X}, Outcome.COMPLETED_LATE)
    assert filled.held(1, 2) == [2]
    assert filled.statistics.of("m:1").cache_misses == 1


def test_hits_and_misses_are_counted_and_timed() -> None:
    filled = Filled(1 << 20)
    assert "nv_cache" not in exposition(triton_groups(filled.statistics, ["m:1"], {})).decode()
    filled.store_answer(1, {"y": X})
    filled.now_ns = 5_000
    filled.cache.look_up(key(1), 2_000)
    filled.cache.look_up(key(1), 1_000)
    entry = filled.statistics.of("m:1").report("m", "1", 0)
    assert entry["inference_stats"]["cache_hit"] == {"count": 2, "ns": 7_000}
    assert entry["inference_stats"]["cache_miss"] == {"count": 1, "ns": 0}
    assert entry["inference_stats"]["success"] == {"count": 2, "ns": 7_000}
    assert entry["inference_stats"]["queue"] == {"count": 2, "ns": 0}
    assert (entry["inference_count"], entry["execution_count"]) == (0, 0)
    metrics = exposition(triton_groups(filled.statistics, ["m:1", "other:1"], {})).decode()
    for line in (
        'nv_cache_num_hits_per_model{model="m",version="1"} 2',
        'nv_cache_num_misses_per_model{model="m",version="1"} 1',
        'nv_cache_hit_duration_per_model{model="m",version="1"} 7',
        'nv_cache_miss_duration_per_model{model="m",version="1"} 0',
        'nv_inference_request_success{model="m",version="1"} 2',
    ):
        assert line in metrics.splitlines()
    assert 'nv_cache_num_hits_per_model{model="other"' not in metrics


@pytest.mark.parametrize("pipeline", ["mlp:1", "ensemble:1"])
def test_a_request_answered_from_the_cache_has_an_outcome_and_a_trace_but_is_not_run(pipeline: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        await asyncio.sleep(0.001)
        options = RequestOptions(("y",), 2, "", 0, 9_000_000)
        submission = bench.runtime.answer_from_cache(pipeline, options, {"y": X}, loop.now_ns)
        answer = await submission.future
        assert (answer.outcome, answer.outputs["y"] is X) == (Outcome.COMPLETED, True)
        assert bench.metrics.meters.pipeline(pipeline).outcomes[Outcome.COMPLETED] == 1
        assert bench.metrics.meters.statistics.of(pipeline).execution_count == 0
        assert bench.steps.batches() == []
        explanation = explain(bench.runtime.traces.find(submission.trace.id), loop.now_ns)
        assert explanation.sentence == (
            "It was answered 9.0 ms before its deadline, after 0.0 ms: it was answered from the cache."
        )
        # The next request is another one.
        request, future = bench.submit()
        assert request == submission.request + 1
        assert (await future).outcome is Outcome.COMPLETED

    run_virtual(main)
