"""Statistics of models and pipelines, on a virtual clock."""

import asyncio
from typing import Any

from sluice.batcher.interface.decisions import DispatchBatch, Member, ReleaseReason
from sluice.gateway.observability.statistics import FailureReason, ModelStatistics
from sluice.gateway.observability.traces.trace import BatchTrace
from sluice.models.units import NS_PER_MS
from tests.support.gateway.runtime_bench import Bench, Refusing
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual


def report(bench: Bench, key: str) -> dict[str, Any]:
    name, version = key.split(":")
    return bench.metrics.meters.statistics.of(key).report(name, version, epoch_ns=0)


def milliseconds(entry: dict[str, Any], *names: str) -> list[tuple[int, float]]:
    return [(entry[name]["count"], entry[name]["ns"] / NS_PER_MS) for name in names]


PHASES = ("success", "queue", "compute_input", "compute_infer", "compute_output")


def test_a_batch_counts_its_rows_once_and_its_time_for_every_request() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        await asyncio.gather(*(bench.submit(rows)[1] for rows in (1, 3, 4)))
        entry = report(bench, "mlp:1")
        assert (entry["inference_count"], entry["execution_count"]) == (8, 1)
        assert entry["last_inference"] == 4
        assert milliseconds(entry["inference_stats"], *PHASES) == [(3, 12), (3, 0), (3, 0), (3, 12), (3, 0)]
        assert entry["inference_stats"]["fail"] == {"count": 0, "ns": 0}
        (batch,) = entry["batch_stats"]
        assert batch["batch_size"] == 8
        assert batch["compute_infer"] == {"count": 1, "ns": 4 * NS_PER_MS}

    run_virtual(main)


def test_waiting_counts_from_the_arrival_to_when_the_worker_was_free() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        await asyncio.sleep(0.001)
        first = bench.submit(8)[1]
        await asyncio.sleep(0.001)
        second = bench.submit(8)[1]
        await asyncio.gather(first, second)
        entry = report(bench, "mlp:1")
        assert entry["execution_count"] == 2
        # The second one came 1 ms after the first, which takes 4 ms.
        assert milliseconds(entry["inference_stats"], "success", "queue", "compute_infer") == [(2, 11), (2, 3), (2, 8)]

    run_virtual(main)


def test_a_pipeline_counts_as_an_ensemble_and_its_models_as_well() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        await bench.submit(2, pipeline="ensemble:1")[1]
        pipeline, model = report(bench, "ensemble:1"), report(bench, "mlp:1")
        assert (pipeline["inference_count"], pipeline["execution_count"]) == (2, 1)
        assert pipeline["inference_stats"]["success"]["count"] == 1
        assert [each["batch_size"] for each in pipeline["batch_stats"]] == [2]
        assert (model["inference_count"], model["inference_stats"]["success"]["count"]) == (4, 2)
        assert pipeline["inference_stats"]["compute_infer"]["ns"] == 2 * model["batch_stats"][0]["compute_infer"]["ns"]

    run_virtual(main)


def test_failures_and_cancellations_count_by_reason_and_not_as_success() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, Refusing)
        bench.executor.limit = 3  # type: ignore[attr-defined]
        await bench.submit(4)[1]
        bench.executor.limit = 8  # type: ignore[attr-defined]
        request, cancelled = bench.submit()
        _, other = bench.submit()
        await asyncio.sleep(0.001)
        cancelled.cancel()
        bench.runtime.cancel(request)
        await other
        statistics = bench.metrics.meters.statistics.of("mlp:1")
        assert {reason: count for reason, count in statistics.failures.items() if count} == {
            FailureReason.BACKEND: 1,
            FailureReason.CANCELED: 1,
        }
        assert statistics.requests.count == 1
        assert statistics.inference_count == 1

    run_virtual(main)


def test_a_request_that_no_member_can_join_counts_as_other_for_its_pipeline() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, Refusing)
        bench.executor.unjoined = (1,)  # type: ignore[attr-defined]
        await bench.submit(pipeline="ensemble:1")[1]
        assert bench.metrics.meters.statistics.of("ensemble:1").failures[FailureReason.OTHER] == 1
        assert bench.metrics.meters.statistics.of("mlp:1").requests.count == 2

    run_virtual(main)


def test_phases_follow_each_other_from_readiness_to_the_answer() -> None:
    statistics = ModelStatistics()
    batch = DispatchBatch(1, "cpu0", "m:1", 3, (Member(1, 0, 1), Member(2, 0, 2)), ReleaseReason.FULL)
    run = BatchTrace(batch, dispatched_ns=10, free_ns=20, started_ns=25, ended_ns=45, reported_ns=48)
    statistics.batch_ran(run, 2, 3, ready_ns=6 + 8)
    entry = statistics.report("m", "1", epoch_ns=0)["inference_stats"]
    assert [entry[name]["ns"] for name in PHASES] == [82, 26, 10, 40, 6]
    assert 82 == 26 + 10 + 40 + 6


def test_the_counts_are_metrics_under_the_names_of_triton() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        await asyncio.gather(*(bench.submit(rows)[1] for rows in (1, 3, 4)))
        text = bench.metrics.exposition().decode()
        assert "# TYPE nv_inference_request_success counter\n" in text
        got = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("nv_"))
        mlp = {name.split("{")[0]: float(value) for name, value in got.items() if 'model="mlp",version="1"' in name}
        assert got['nv_inference_request_failure{model="mlp",version="1",reason="CANCELED"}'] == "0"
        assert mlp["nv_inference_request_success"] == 3
        assert mlp["nv_inference_count"] == 8
        assert mlp["nv_inference_exec_count"] == 1
        assert mlp["nv_inference_request_duration_us"] == 12_000
        assert mlp["nv_inference_compute_infer_duration_us"] == 12_000
        assert mlp["nv_inference_queue_duration_us"] == 0
        assert mlp["nv_inference_pending_request_count"] == 0

    run_virtual(main)
