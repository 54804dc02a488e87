"""Tensors in memory that is shared with a Triton server."""

import asyncio
import mmap
import os
import re
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest

from sluice.batcher.interface.events import BatchCompleted, BatchFailed, BatchRevoked, PartitionLost, PartitionReady
from sluice.gateway.executors.triton import client as triton_client
from sluice.gateway.executors.triton.client import TritonClient
from sluice.gateway.executors.triton.memory import MIN_SLOT_BYTES, SLOTS, TritonMemory
from tests.support.triton.fake_server import FakeTriton, double, serving_fake
from tests.support.triton.partition_bench import Bench, answers, benched, refusing

ENDED = 1 << 22
"""No process has this number: it is above the largest one."""
NAMESPACE = Path("/proc/self/ns/pid").stat().st_ino


@benched(memory=True)
async def test_tensors_go_through_shared_memory_and_leave_no_name(bench: Bench) -> None:
    await bench.ready()
    bench.fake.batches.clear()
    batch = bench.send(0.25, 0.5)
    assert isinstance(await bench.event(), BatchCompleted)
    assert (bench.taken(batch), bench.taken(batch, 1)) == ([[0.5, 0.5]], [[1.0, 1.0]])
    assert bench.fake.memory is not None
    assert len(bench.fake.memory) == SLOTS
    (request,) = bench.fake.batches
    (x,), (y,) = request.inputs, request.outputs
    region = x.parameters["shared_memory_region"].string_param
    assert region in bench.fake.memory
    assert region not in os.listdir("/dev/shm")
    assert {name: value.int64_param for name, value in x.parameters.items() if name != "shared_memory_region"} == {
        "shared_memory_offset": 0,
        "shared_memory_byte_size": 16,
    }
    assert y.parameters["shared_memory_offset"].int64_param == 64
    await bench.partition.drain()
    assert bench.fake.memory == {}


@benched(memory=True)
async def test_without_a_free_slot_tensors_go_by_message(bench: Bench) -> None:
    await bench.ready()
    bench.fake.batches.clear()
    kept = []
    for number in range(SLOTS + 1):
        batch = bench.send(number)
        assert isinstance(await bench.event(), BatchCompleted)
        kept.append(bench.assembly.take_outputs(100 * batch))
    assert [len(each.inputs[0].parameters) for each in bench.fake.batches] == [3] * SLOTS + [0]
    assert [tensors["y"].tolist() for tensors, _ in kept] == [[[2.0 * number] * 2] for number in range(SLOTS + 1)]  # type: ignore[union-attr]
    for _, release in kept:
        release()
    bench.send(1)
    assert isinstance(await bench.event(), BatchCompleted)
    assert len(bench.fake.batches[-1].inputs[0].parameters) == 3


@benched(memory=True)
async def test_the_slot_of_a_batch_that_was_taken_back_is_used_again_once_the_server_is_done(bench: Bench) -> None:
    await bench.ready()
    go_on = asyncio.Event()

    async def wait(request: Any) -> Any:
        await go_on.wait()
        return await double(request)

    bench.fake.answer = answers(wait, wait)
    first, second = bench.send(1), bench.send(2)
    bench.partition.revoke(second)
    assert await bench.event() == BatchRevoked(second)
    go_on.set()
    event = await bench.event()
    assert isinstance(event, BatchCompleted)
    assert event.batch == first
    assert bench.taken(first) == [[2.0, 2.0]]
    third = bench.send(3)
    assert isinstance(await bench.event(), BatchCompleted)
    assert bench.taken(third) == [[6.0, 6.0]]


@benched(memory=True)
async def test_a_server_that_does_not_know_the_memory_any_more_is_given_new_one(bench: Bench) -> None:
    await bench.ready()
    assert bench.fake.memory is not None
    bench.fake.memory.clear()
    batch = bench.send(1)
    event = await bench.event()
    assert isinstance(event, PartitionLost)
    assert event.reason.startswith("Unable to find shared memory region: 'sluice-")
    assert isinstance(await bench.event(), BatchFailed)
    assert isinstance(await bench.event(), PartitionReady)
    batch = bench.send(1)
    assert isinstance(await bench.event(), BatchCompleted)
    assert bench.taken(batch) == [[2.0, 2.0]]
    assert bench.fake.calls == []


@benched(memory=True)
async def test_what_a_gateway_that_was_killed_has_registered_is_forgotten(bench: Bench) -> None:
    assert bench.fake.memory is not None
    host = f"sluice-{re.sub('[^A-Za-z0-9]', '_', socket.gethostname())}"
    left = f"{host}-{NAMESPACE}-{ENDED}-1"
    foreign = {"sluice-elsewhere-1-1", f"{host}-{NAMESPACE + 1}-{ENDED}-1"}
    bench.fake.memory |= {name: mmap.mmap(-1, 4096) for name in (left, *foreign)}
    await bench.ready()
    assert left not in bench.fake.memory
    assert foreign <= bench.fake.memory.keys()
    for name in foreign:
        bench.fake.memory.pop(name)


@benched(memory=True)
async def test_what_a_server_has_taken_without_an_answer_is_forgotten(bench: Bench) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_client, "PROBE_TIMEOUT_S", 0.2)
        bench.fake.unanswered_regions = 1
        bench.start()
        assert await bench.event() == PartitionLost("t", "no answer in time")
        assert isinstance(await bench.event(), PartitionReady)
    assert bench.fake.memory is not None
    assert len(bench.fake.memory) == SLOTS


def test_a_server_without_known_models_has_the_smallest_slots() -> None:
    async def main() -> None:
        async with serving_fake(fake := FakeTriton()) as port:
            fake.memory = {}
            client = TritonClient(f"127.0.0.1:{port}")
            memory = TritonMemory(client, "t", [])
            await memory.register()
            assert memory.take(MIN_SLOT_BYTES + 1) is None
            slot = memory.take(MIN_SLOT_BYTES)
            assert slot is not None
            assert slot.nbytes == MIN_SLOT_BYTES
            await memory.unregister()
            await client.close()

    asyncio.run(main())


def test_a_server_that_takes_no_memory_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    @benched()
    async def lose_it(bench: Bench) -> None:
        await bench.ready()
        bench.fake.answer = answers(refusing(grpc.StatusCode.UNAVAILABLE, "gone"))
        bench.send(1)
        while not isinstance(await bench.event(), PartitionReady):
            pass

    with caplog.at_level("INFO"):
        lose_it()
    reported = [record for record in caplog.records if record.message == "triton takes no shared memory"]
    assert [record.fields for record in reported] == [{"partition": "t", "reason": "shared memory is disabled"}]  # type: ignore[attr-defined]
