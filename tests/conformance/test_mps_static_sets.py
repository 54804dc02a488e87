"""Static sets of multiprocessors, and workers that join them, on the fake."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.models.errors import ControlFailed, PartitionError
from sluice.mps.daemon.daemon import MpsDaemon
from sluice.mps.isolation.mps_environment import await_daemon, static_set
from sluice.mps.partitions.partition import MpsPartition, ShareMode
from tests.support.gateway.processes import until
from tests.support.gpu import fake_mps
from tests.support.gpu.cuda_process import CudaProcess
from tests.support.gpu.fake_mps import GPU

Clients = Callable[..., CudaProcess]


@pytest.mark.parametrize("protocol", [2, 3])
def test_shares_can_have_multiprocessors_of_their_own(
    root: Path, program: str, protocol: int, clients: Clients
) -> None:
    shares = [MpsPartition(name, GPU, percent, mode=ShareMode.STATIC) for name, percent in (("a", 25), ("b/c", 75))]
    sets = {each.name: each.share_percent for each in shares}
    daemon = MpsDaemon(GPU, root, sets=sets, program=program, protocol=protocol)
    with pytest.raises(
        PartitionError,
        match="partition a: no static set of multiprocessors; expected a running server that has made it",
    ):
        static_set(shares[0], root)
    daemon.start()
    assert daemon.control.free_chunks() == 0
    names = [static_set(share, root) for share in shares]
    assert [clients(daemon, CUDA_MPS_SM_PARTITION=name).hello["sms"] for name in names] == [32, 96]
    daemon.stop()
    with pytest.raises(PartitionError, match="no static set of multiprocessors"):
        static_set(shares[0], root)


def test_a_driver_without_static_sets_is_reported(root: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MPS", '{"without": ["static"]}')
    daemon = MpsDaemon(GPU, root, sets={"a": 50}, program=program)
    with pytest.raises(
        ControlFailed, match=f"the driver of {GPU} has no static sets of multiprocessors; expected mode"
    ):
        daemon.start()
    assert daemon.pid is None


def test_a_share_that_is_not_a_whole_chunk_is_refused(root: Path, program: str) -> None:
    daemon = MpsDaemon(GPU, root, sets={"a": 50, "b": 6}, program=program)
    with pytest.raises(
        ControlFailed, match=f"partition b: 6 % of the 16 chunks of multiprocessors of {GPU} .* at least 7 %"
    ):
        daemon.start()
    assert daemon.pid is None


def test_a_daemon_that_is_started_again_makes_its_sets_again(
    root: Path, program: str, monkeypatch: pytest.MonkeyPatch, clients: Clients
) -> None:
    share = MpsPartition("a", GPU, 50, mode=ShareMode.STATIC)
    daemon = MpsDaemon(GPU, root, sets={"a": 50}, program=program)
    daemon.start()
    os.kill(daemon.pid or 0, signal.SIGKILL)
    until(lambda: daemon.pid is None)
    with monkeypatch.context() as patch:
        patch.setenv("FAKE_MPS", '{"start": "die"}')
        with pytest.raises(ControlFailed, match="Failed to start"):
            daemon.start()
    daemon.start()
    assert daemon.control.free_chunks() == 8
    assert clients(daemon, CUDA_MPS_SM_PARTITION=static_set(share, root)).hello["sms"] == 64
    daemon.stop()


def test_a_worker_waits_for_its_daemon_and_finds_its_set(
    root: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = MpsPartition("a", GPU, 50, mode=ShareMode.STATIC)
    daemon = MpsDaemon(GPU, root, sets={"a": 50}, program=program)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(daemon.pipes))
    monkeypatch.setenv("CUDA_MPS_SM_PARTITION", "")
    joining = threading.Thread(target=await_daemon, args=(share, 60))
    joining.start()
    daemon.start()
    joining.join()
    assert os.environ["CUDA_MPS_SM_PARTITION"] == static_set(share, root)
    cuda = fake_mps.FakeCuda(os.environ)
    assert cuda.multiprocessors == 64
    cuda.close()
    daemon.stop()


def test_a_worker_does_not_start_without_its_daemon(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(root))
    started = time.monotonic()
    with pytest.raises(PartitionError, match=rf"partition a: no MPS daemon listens in {root} \(No such file"):
        await_daemon(MpsPartition("a", GPU, 50), timeout_s=0.1)
    assert 0.1 <= time.monotonic() - started < 5
