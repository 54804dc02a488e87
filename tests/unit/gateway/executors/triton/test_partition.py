"""A Triton server as a partition: batches, the circuit breaker, and models that come and go."""

import asyncio
import re
import sys
from typing import Any

import grpc
import numpy as np
import pytest

from sluice.batcher.interface.events import (
    AnyEvent,
    BatchCompleted,
    BatchFailed,
    BatchRevoked,
    FailureCause,
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    PartitionLost,
    PartitionReady,
)
from sluice.gateway.config.triton_settings import TritonSettings
from sluice.gateway.executors.triton import partition as triton_partition
from sluice.gateway.executors.triton.partition import Breaker
from sluice.gateway.executors.triton.process import TritonProcess
from sluice.gateway.executors.triton.statistics import ModelCounts
from sluice.gateway.partitions.inventory import NO_DETAILS
from sluice.models.errors import PartitionError
from tests.support.triton.fake_server import NOT_HEALTHY, FakeTriton, M, N, Refusal, answer_of, double, serving_fake
from tests.support.triton.partition_bench import Bench, answers, benched, hang, refusing, saying
from tests.support.triton.server import free_ports


@benched()
async def test_a_server_is_ready_with_a_table_of_every_batch_size(bench: Bench) -> None:
    ready = await bench.ready()
    assert [size for size, _ in ready.tables["m:1"].cells] == [1, 2, 4]
    assert bench.reported == ["t ready m:1"]
    assert bench.partition.breaker is Breaker.CLOSED
    assert bench.fake.calls == []


@benched()
async def test_a_model_that_the_server_does_not_hold_is_loaded(bench: Bench) -> None:
    bench.fake.ready.clear()
    await bench.ready()
    assert bench.fake.calls == ["load m"]


@benched()
async def test_a_batch_is_one_call_with_the_rows_side_by_side(bench: Bench) -> None:
    await bench.ready()
    bench.fake.batches.clear()
    batch = bench.send(0.25, 0.5)
    event = await bench.event()
    assert isinstance(event, BatchCompleted)
    assert (event.batch, event.confidences, event.batch_key) == (batch, ((0.5, 1.0),), "")
    assert event.started_ns < event.ended_ns
    assert (bench.taken(batch), bench.taken(batch, 1)) == ([[0.5, 0.5]], [[1.0, 1.0]])
    (request,) = bench.fake.batches
    assert (request.model_name, request.model_version) == ("m", "1")
    assert [(each.name, each.datatype, list(each.shape)) for each in request.inputs] == [("x", "FP32", [2, 2])]
    assert [each.name for each in request.outputs] == ["y"]


@benched()
async def test_what_the_model_refuses_fails_the_batch_and_nothing_else(bench: Bench) -> None:
    await bench.ready()
    bench.fake.answer = answers(refusing(grpc.StatusCode.INVALID_ARGUMENT, "bad row"))
    batch = bench.send(1)
    assert await bench.event() == BatchFailed(batch, FailureCause.BACKEND, "m:1: bad row")
    batch = bench.send(1)
    assert isinstance(await bench.event(), BatchCompleted)


@benched()
async def test_a_batch_that_had_no_memory_on_the_server_is_distinguished_from_one_that_it_refused(bench: Bench) -> None:
    await bench.ready()
    bench.fake.answer = answers(refusing(grpc.StatusCode.INTERNAL, "onnx runtime error 2: CUDA error 2: out of memory"))
    batch = bench.send(1)
    event = await bench.event()
    assert isinstance(event, BatchFailed)
    assert (event.batch, event.cause) == (batch, FailureCause.OUT_OF_MEMORY)


@benched(timeout_s=0.1)
async def test_a_batch_that_is_not_answered_opens_the_breaker_until_the_server_is_well(bench: Bench) -> None:
    await bench.ready()
    bench.fake.answer = answers(hang)
    batch = bench.send(1)
    lost = await bench.event()
    assert isinstance(lost, PartitionLost)
    # Of a server that was slow when it was measured, more is waited for.
    limit = re.fullmatch(r"no answer within ([\d.]+) s", reason := lost.reason)
    assert limit
    assert float(limit[1]) >= 0.1
    assert await bench.event() == BatchFailed(batch, FailureCause.WORKER_LOST, reason)
    with pytest.raises(PartitionError, match="t is not in service"):
        bench.send(1)
    assert isinstance(await bench.event(), PartitionReady)
    assert bench.reported == ["t ready m:1", f"t lost: {reason}", "t ready m:1"]


@benched()
async def test_an_answer_that_makes_no_sense_opens_the_breaker(bench: Bench) -> None:
    await bench.ready()
    bench.fake.answer = answers(saying(answer_of(np.zeros(2, np.float32), [1, 2], "z")))
    batch = bench.send(1)
    assert await bench.event() == PartitionLost("t", "m:1: the answer has no output 'y'")
    assert await bench.event() == BatchFailed(batch, FailureCause.WORKER_LOST, "m:1: the answer has no output 'y'")
    assert isinstance(await bench.event(), PartitionReady)


@benched()
async def test_all_batches_of_a_lost_server_fail_in_their_order(bench: Bench) -> None:
    await bench.ready()
    bench.fake.answer = answers(hang, refusing(grpc.StatusCode.UNAVAILABLE, "Socket closed"))
    first, second = bench.send(1), bench.send(1)
    assert await bench.event() == PartitionLost("t", "Socket closed")
    failed = [await bench.event(), await bench.event()]
    assert failed == [BatchFailed(batch, FailureCause.WORKER_LOST, "Socket closed") for batch in (first, second)]


@benched()
async def test_a_model_that_died_is_unloaded_and_loaded(bench: Bench) -> None:
    await bench.ready()
    bench.fake.answer = answers(refusing(grpc.StatusCode.INTERNAL, NOT_HEALTHY))
    batch = bench.send(1)
    assert await bench.event() == PartitionLost("t", f"m:1: {NOT_HEALTHY}")
    assert await bench.event() == BatchFailed(batch, FailureCause.WORKER_LOST, f"m:1: {NOT_HEALTHY}")
    assert isinstance(await bench.event(), PartitionReady)
    assert bench.fake.calls == ["unload m", "load m"]


@benched()
async def test_a_model_that_is_dead_already_is_found_when_it_is_tried(bench: Bench) -> None:
    bench.fake.answer = answers(refusing(grpc.StatusCode.INTERNAL, NOT_HEALTHY))
    await bench.ready()
    assert bench.fake.calls == ["unload m", "load m"]


@benched({"m:1": M, "n:1": N})
async def test_a_model_that_does_not_come_up_leaves_the_rest_alone_and_is_tried_again(bench: Bench) -> None:
    bench.fake.load_refusal = Refusal(grpc.StatusCode.INTERNAL, "failed to load 'n', no such file")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_partition, "FIRST_RETRY_S", 0.01)
        ready = await bench.ready()
        assert list(ready.tables) == ["m:1"]
        assert bench.reported == ["t ready m:1; n:1: failed to load 'n', no such file"]
        bench.fake.load_refusal = None
        event = await bench.event()
    assert isinstance(event, ModelLoaded)
    assert (event.partition, event.model) == ("t", "n:1")


@benched()
async def test_models_are_loaded_and_unloaded_as_ordered(bench: Bench) -> None:
    await bench.ready()
    bench.partition.unload("m:1")
    assert await bench.event() == ModelUnloaded("t", "m:1")
    bench.fake.load_refusal = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "no room")
    bench.partition.load("m:1")
    assert await bench.event() == ModelLoadFailed("t", "m:1", "no room")
    bench.fake.load_refusal = None
    bench.partition.load("m:1")
    assert isinstance(await bench.event(), ModelLoaded)
    assert bench.fake.calls == ["unload m", "load m", "load m"]


@benched()
async def test_only_a_batch_that_waits_behind_another_is_taken_back(bench: Bench) -> None:
    await bench.ready()
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(request: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await double(request)

    bench.fake.answer = answers(wait, hang)
    first, second = bench.send(1), bench.send(1)
    await begun.wait()
    bench.partition.revoke(first)
    bench.partition.revoke(second)
    assert await bench.event() == BatchRevoked(second)
    go_on.set()
    event = await bench.event()
    assert isinstance(event, BatchCompleted)
    assert event.batch == first


def test_a_server_that_is_not_there_is_reported_once_and_found_when_it_comes() -> None:
    async def main() -> None:
        fake = FakeTriton()
        (port,) = free_ports(1)
        bench = Bench(fake, port, {"m:1": M}, 5.0)
        events: asyncio.Queue[AnyEvent] = asyncio.Queue()
        tried = asyncio.Event()
        tries = [0]
        check = bench.partition._client.check_server

        async def counted() -> None:
            tries[0] += 1
            if tries[0] == 3:
                tried.set()
            await check()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bench.partition._client, "check_server", counted)
            patch.setattr(triton_partition, "LAST_PROBE_S", 0.05)
            bench.partition.start(lambda event, _=NO_DETAILS: events.put_nowait(event))
            async with asyncio.timeout(60):
                assert isinstance(await events.get(), PartitionLost)
                await tried.wait()
                assert events.empty()
                assert bench.partition.breaker is not Breaker.CLOSED
                async with serving_fake(fake, port):
                    assert isinstance(await events.get(), PartitionReady)
                    await bench.partition.drain()

    asyncio.run(main())


@benched()
async def test_a_server_that_is_sent_nothing_is_asked_how_it_is(bench: Bench) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_partition, "IDLE_S", 0.01)
        await bench.ready()
        bench.fake.up = False
        assert await bench.event() == PartitionLost("t", "the server is not ready")
        bench.fake.up = True
        assert isinstance(await bench.event(), PartitionReady)


@benched()
async def test_a_server_that_answers_nothing_but_errors_is_lost_until_it_is_well(bench: Bench) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_partition, "IDLE_S", 0.01)
        await bench.ready()
        bench.fake.health_refusal = Refusal(grpc.StatusCode.PERMISSION_DENIED, "not for you")
        assert await bench.event() == PartitionLost("t", "not for you")
        bench.fake.health_refusal = None
        assert isinstance(await bench.event(), PartitionReady)


@benched()
async def test_a_server_whose_process_cannot_be_started_is_tried_again(bench: Bench) -> None:
    process = TritonProcess(TritonSettings("t", "127.0.0.1:1", command=("sleep", "60")))
    bench.partition._process = process
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", "/no/such/python")
        bench.start()
        assert await bench.event() == PartitionLost("t", "[Errno 2] No such file or directory: '/no/such/python'")
    assert isinstance(await bench.event(), PartitionReady)
    process.unwatch()
    process.end()


@benched()
async def test_what_a_server_counts_is_asked_while_it_is_in_service(bench: Bench) -> None:
    assert await bench.partition.counts() == {}
    bench.fake.ready.add("foreign")
    await bench.ready()
    second = 1_000_000_000
    assert await bench.partition.counts() == {"m:1": ModelCounts(7, 3, second, 2 * second, 3 * second, 4 * second)}
