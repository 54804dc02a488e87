"""Real worker processes running real models, driven the way the gateway does it."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from sluice.models.pipelines.pipeline import Confidence
from sluice.models.tensors.spec import DataType
from sluice.mps.ipc.claim import new_claim, take
from sluice.mps.ipc.messages import (
    BatchFinished,
    BatchRefused,
    BatchWithdrawn,
    InputTensor,
    RunBatch,
    Segment,
    WithdrawBatch,
)
from sluice.mps.partitions.cpu import available_cores
from tests.support.gateway.processes import alive, allowed_cores, memory_files, until
from tests.support.gateway.workers import (
    Gateway,
    direct,
    held,
    in_loop,
    model,
    own_memory_files,
    partition,
    rows,
    serving,
    worker,
)
from tests.support.models.onnx_models import save_identity, save_mlp, save_model, save_spin, value

KIB = 1024


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    return save_mlp(tmp_path / "mlp.onnx", (8, 16, 3))


@in_loop
async def test_a_worker_is_pinned_and_has_timed_its_menu(mlp: Path) -> None:
    gateway = Gateway([worker(model(mlp))])
    gateway.supervisor.start()
    ready = await gateway.next()
    core = partition().cores[0]
    assert allowed_cores(ready.pid) == {str(core)}
    assert (ready.cores, ready.threads) == ((core,), 1)
    assert [size for size, _ in ready.models[0].table.cells] == [1, 4]
    await gateway.supervisor.drain()


@in_loop
async def test_a_batch_runs_on_one_segment_and_on_many(mlp: Path) -> None:
    confidences = (("y", Confidence.MAX), ("y", Confidence.MARGIN))
    async with serving(worker(model(mlp, confidences=confidences))) as gateway:
        x = rows(4)
        expected = direct(mlp, x)
        gateway.workers["cpu0"].send(RunBatch(1, "m:1", (gateway.place(x),)))
        whole = await gateway.next()
        gateway.workers["cpu0"].send(RunBatch(2, "m:1", (gateway.place(x, segment_bytes=32),)))
        in_parts = await gateway.next()

        for done in (whole, in_parts):
            (output,) = done.outputs
            assert (output.name, output.datatype, output.shape) == ("y", DataType.FP32, (4, 3))
            assert output.region == gateway.output_regions["cpu0"]
            np.testing.assert_array_equal(gateway.read(output), expected)
            ordered = np.sort(expected, axis=1)
            np.testing.assert_allclose(done.confidences[0], ordered[:, 2], rtol=1e-6)
            np.testing.assert_allclose(done.confidences[1], ordered[:, 2] - ordered[:, 1], rtol=1e-5)
            assert 0 < done.started_ns < done.ended_ns <= time.monotonic_ns()
        assert [whole.batch, in_parts.batch] == [1, 2]
        assert whole.slot != in_parts.slot


@in_loop
async def test_bytes_go_in_and_come_out_in_wire_form(tmp_path: Path) -> None:
    path = save_identity(tmp_path / "text.onnx", DataType.BYTES, (2,))
    async with serving(worker(model(path))) as gateway:
        text = np.array([[b"a", b""], ["größe".encode(), b"longer than the others"]], np.object_)
        gateway.workers["cpu0"].send(RunBatch(1, "m:1", (gateway.place(text, segment_bytes=7),)))
        (output,) = (await gateway.next()).outputs
        assert gateway.read(output).tolist() == text.tolist()
        assert output.row_offsets == (0, 9, 46)
        assert output.nbytes == 46


@in_loop
async def test_a_batch_that_waits_can_be_revoked_and_one_that_runs_cannot(tmp_path: Path) -> None:
    async with serving(worker(held(tmp_path / "held", "m:1"))) as gateway:
        send, x = gateway.workers["cpu0"].send, gateway.place(rows(1))
        send(RunBatch(1, "m:1", (x,)))
        await asyncio.to_thread(until, (tmp_path / "held" / "waiting").exists)
        send(RunBatch(2, "m:1", (x,)))
        send(WithdrawBatch(1))
        send(WithdrawBatch(2))
        send(RunBatch(3, "m:1", (x,)))
        (tmp_path / "held" / "go").touch()
        answers = [await gateway.next() for _ in range(3)]
        assert [(type(answer), answer.batch) for answer in answers] == [
            (BatchFinished, 1),
            (BatchWithdrawn, 2),
            (BatchFinished, 3),
        ]
        assert gateway.reports.empty()


@in_loop
async def test_a_batch_with_a_claim_is_taken_back_while_another_one_runs_unless_it_has_begun(tmp_path: Path) -> None:
    claims = [claim for claim in (new_claim(), new_claim()) if claim is not None]
    async with serving(worker(held(tmp_path / "held", "m:1"))) as gateway:
        send, x = gateway.workers["cpu0"].send, gateway.place(rows(1))
        send(RunBatch(1, "m:1", (x,)))
        await asyncio.to_thread(until, (tmp_path / "held" / "waiting").exists)
        for batch, claim in zip((2, 3), claims, strict=True):
            send(RunBatch(batch, "m:1", (x,)), [claim])
        assert take(claims[0])
        (tmp_path / "held" / "go").touch()
        answers = [await gateway.next() for _ in range(2)]
        assert [(type(answer), answer.batch) for answer in answers] == [(BatchFinished, 1), (BatchFinished, 3)]
        assert not take(claims[1])
        assert gateway.reports.empty()
    for claim in claims:
        os.close(claim)


@in_loop
async def test_outputs_that_do_not_fit_get_a_region_of_their_own(mlp: Path) -> None:
    async with serving(worker(model(mlp), output_bytes=4 * KIB)) as gateway:
        send, x = gateway.workers["cpu0"].send, rows(4)
        send(RunBatch(1, "m:1", (gateway.place(x),)))
        first = await gateway.next()
        send(RunBatch(2, "m:1", (gateway.place(x),)))
        second = await gateway.next()
        assert (first.slot, second.slot) == (0, -1)
        overflow = second.outputs[0].region
        assert overflow < 0
        np.testing.assert_array_equal(gateway.read(second.outputs[0]), direct(mlp, x))

        gateway.supervisor.drop_region(overflow)
        with pytest.raises(KeyError):
            gateway.supervisor.region(overflow)
        send(RunBatch(3, "m:1", (gateway.place(x),), release=(first.slot,)))
        assert (await gateway.next()).slot == 0
        assert memory_files(gateway.workers["cpu0"].pid, "overflow") == []
    assert own_memory_files() == []


@in_loop
async def test_a_broken_model_leaves_the_others_alone(tmp_path: Path, mlp: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"this is no model")
    gateway = Gateway([worker(model(broken, "bad:1"), model(mlp, "good:1"))])
    gateway.supervisor.start()
    bad, good = (await gateway.next()).models
    assert (bad.key, bad.table) == ("bad:1", None)
    assert "ONNX Runtime cannot load the model" in bad.error
    assert (good.key, good.error) == ("good:1", "")
    gateway.workers["cpu0"].send(RunBatch(1, "bad:1", (gateway.place(rows(1)),)))
    gateway.workers["cpu0"].send(RunBatch(2, "good:1", (gateway.place(rows(1)),)))
    assert await gateway.next() == BatchRefused(1, "bad:1: the model is not loaded on this worker")
    assert (await gateway.next()).batch == 2
    await gateway.supervisor.drain()


@in_loop
async def test_a_worker_outlives_a_failing_batch(mlp: Path) -> None:
    async with serving(worker(model(mlp))) as gateway:
        send, pid = gateway.workers["cpu0"].send, gateway.workers["cpu0"].pid
        unmapped = InputTensor("x", DataType.FP32, (1, 8), (Segment(99, 0, 32),))
        send(RunBatch(1, "m:1", (gateway.place(rows(2, 5)),)))
        failed = await gateway.next()
        send(RunBatch(2, "m:1", (unmapped,)))
        assert isinstance(failed, BatchRefused)
        assert failed.message.startswith("m:1: ")
        assert "\n" not in failed.message
        assert await gateway.next() == BatchRefused(2, "m:1: input x: region 99 is not mapped here")
        send(RunBatch(3, "m:1", (gateway.place(rows(2)),)))
        assert (await gateway.next()).batch == 3
        assert gateway.workers["cpu0"].pid == pid


@in_loop
async def test_a_model_that_loses_rows_fails_the_batch(tmp_path: Path) -> None:
    ends = value("x", DataType.FP32, ["N", 8]), value("y", DataType.FP32, ["N", 8])
    nodes = [  # as long as all numbers are zero, as when it is loaded, all rows remain
        helper.make_node("ReduceMax", ["x"], ["most"], axes=[1], keepdims=0),
        helper.make_node("LessOrEqual", ["most", "zero"], ["kept"]),
        helper.make_node("Compress", ["x", "kept"], ["y"], axis=0),
    ]
    path = save_model(tmp_path / "model.onnx", nodes, ends[:1], ends[1:], {"zero": np.array(0, np.float32)})
    async with serving(worker(model(path))) as gateway:
        gateway.workers["cpu0"].send(RunBatch(1, "m:1", (gateway.place(rows(3)),)))
        expected = "m:1: output y has shape [0, 8], expected 3 rows as in the batch"
        assert await gateway.next() == BatchRefused(1, expected)


@in_loop
async def test_draining_leaves_no_process_and_no_memory_file(mlp: Path) -> None:
    async with serving(worker(model(mlp))) as gateway:
        pid = gateway.workers["cpu0"].pid
        gateway.workers["cpu0"].send(RunBatch(1, "m:1", (gateway.place(rows(4)),)))
        await gateway.next()
        descriptors = len(os.listdir("/proc/self/fd"))
        assert own_memory_files() != []
    assert not alive(pid)
    assert own_memory_files() == []
    assert len(os.listdir("/proc/self/fd")) < descriptors
    assert gateway.reports.empty()


@in_loop
async def test_draining_kills_a_worker_that_does_not_end(tmp_path: Path) -> None:
    path = save_spin(tmp_path / "spin.onnx", 1, 20_000)
    async with serving(worker(model(path, menu=(1,)))) as gateway:
        pid = gateway.workers["cpu0"].pid
        gateway.workers["cpu0"].send(RunBatch(1, "m:1", (gateway.place(rows(4000, 64)),)))
        await asyncio.sleep(0.05)
        await gateway.supervisor.drain(timeout_s=0.1)
        assert not alive(pid)


@in_loop
async def test_signals_meant_for_the_gateway_do_not_end_a_worker(mlp: Path) -> None:
    async with serving(worker(model(mlp))) as gateway:
        process = gateway.workers["cpu0"]
        assert os.getsid(process.pid) == process.pid
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(process.pid, number)
        process.send(RunBatch(1, "m:1", (gateway.place(rows(1)),)))
        assert (await gateway.next()).batch == 1


@pytest.mark.skipif(len(available_cores()) < 2, reason="two partitions need two cores")
@in_loop
async def test_a_worker_reads_the_output_of_another_where_it_lies(tmp_path: Path, mlp: Path) -> None:
    wide = save_mlp(tmp_path / "wide.onnx", (8, 8, 8), seed=3)
    async with serving(worker(model(wide)), worker(model(mlp), index=1, output_bytes=4 * KIB)) as gateway:
        x = rows(4)
        gateway.workers["cpu0"].send(RunBatch(1, "m:1", (gateway.place(x),)))
        made = (await gateway.next()).outputs[0]
        segment = Segment(made.region, made.offset + 32, 64)  # Rows 1 and 2 only.
        passed_on = InputTensor("x", DataType.FP32, (2, 8), (segment,))
        expected = direct(mlp, direct(wide, x)[1:3])
        for batch in (2, 3):  # The second one's outputs overflow.
            gateway.workers["cpu1"].send(RunBatch(batch, "m:1", (passed_on,)))
            last = (await gateway.next()).outputs[0]
            np.testing.assert_allclose(gateway.read(last), expected, rtol=1e-5)

        # An overflow region is mapped by the other workers as well.
        assert last.region < 0
        back = InputTensor("x", DataType.FP32, (1, 6), (Segment(last.region, last.offset, 24),))
        gateway.workers["cpu0"].send(RunBatch(4, "m:1", (back,)))
        failed = await gateway.next()
        assert "not mapped" not in failed.message


def test_workers_do_not_outlive_a_gateway_that_is_killed(tmp_path: Path) -> None:
    path = save_spin(tmp_path / "spin.onnx", 1, 20_000)
    gateway = subprocess.Popen(
        [sys.executable, "-c", _GATEWAY_SCRIPT, str(path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert gateway.stdout is not None
    pidfd = os.pidfd_open(int(gateway.stdout.readline()))
    gateway.kill()
    gateway.wait()
    gateway.stdout.close()
    readable, _, _ = select.select([pidfd], [], [], 60)
    os.close(pidfd)
    assert readable


_GATEWAY_SCRIPT = """
import asyncio, sys
from pathlib import Path
from tests.support.gateway.workers import Gateway, model, rows, worker
from sluice.mps.ipc.messages import RunBatch

async def main():
    gateway = Gateway([worker(model(Path(sys.argv[1]), menu=(1,)))])
    gateway.supervisor.start()
    ready = await gateway.next()
    gateway.workers["cpu0"].send(RunBatch(1, "m:1", (gateway.place(rows(4000, 64)),)))
    print(ready.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""
