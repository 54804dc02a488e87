import json
from typing import Any

import pytest

from sluice.loadgen.records.model_statistics import ModelActivity, activity_between, read_counts


def duration(count: int, ms: float) -> dict[str, int]:
    return {"count": count, "ns": round(ms * 1e6)}


def entry(name: str, requests: int, scale: float, sizes: dict[int, int], failures: int = 0) -> dict[str, Any]:
    return {
        "name": name,
        "version": "1",
        "last_inference": 1,
        "inference_count": sum(size * count for size, count in sizes.items()),
        "execution_count": sum(sizes.values()),
        "inference_stats": {
            "success": duration(requests, 0),
            "fail": duration(failures, 0),
            "queue": duration(requests, requests * 2 * scale),
            "compute_input": duration(requests, requests * 0.5 * scale),
            "compute_infer": duration(requests, requests * 4 * scale),
            "compute_output": duration(requests, requests * 0.25 * scale),
        },
        "batch_stats": [{"batch_size": size, "compute_infer": duration(count, 1)} for size, count in sizes.items()],
    }


def body(*entries: dict[str, Any]) -> bytes:
    return json.dumps({"model_stats": entries}).encode()


def test_the_difference_of_two_readings() -> None:
    before = read_counts(body(entry("mlp", 10, 1, {1: 10}), entry("idle", 5, 1, {1: 5})))
    mlp, idle, cascade = entry("mlp", 110, 1, {1: 50, 4: 15}), entry("idle", 5, 1, {1: 5}), entry("c", 3, 2, {1: 3})
    after = read_counts(body(mlp, idle, cascade))
    pipeline, used = activity_between(before, after, pipelines=["c"])
    assert used == ModelActivity("mlp:1", 100, 0, 100, 55, 2.0, 0.5, 4.0, 0.25, ((1, 40), (4, 15)))
    assert used.mean_batch == pytest.approx(100 / 55)
    assert used.met_batch == pytest.approx((40 + 16 * 15) / 100)
    assert (pipeline.model, pipeline.is_pipeline, pipeline.queue_ms) == ("c:1", True, 4.0)


def test_failures_alone_are_activity_too() -> None:
    after = read_counts(body(entry("mlp", 0, 1, {}, failures=3)))
    (mlp,) = activity_between({}, after)
    assert (mlp.requests, mlp.failures, mlp.mean_batch, mlp.met_batch, mlp.queue_ms) == (0, 3, 0, 0, 0)


def test_a_server_that_was_restarted_has_no_figures() -> None:
    before, after = (read_counts(body(entry("mlp", n, 1, {1: n}))) for n in (100, 10))
    assert activity_between(before, after) == ()


def test_numbers_may_be_texts_as_protobuf_writes_them_and_fields_may_be_missing() -> None:
    text = b'{"model_stats": [{"name": "m", "inference_count": "8", "execution_count": "2", "batch_stats": []}]}'
    (model,) = activity_between({}, read_counts(text))
    assert (model.model, model.rows, model.batches, model.mean_batch) == ("m", 8, 2, 4.0)


@pytest.mark.parametrize("text", [b"", b"<html>", b"[]", b'{"error": "no such path"}'])
def test_what_is_not_statistics_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_counts(text)
