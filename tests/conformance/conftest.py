"""Fixtures of the tests of MPS: programs that stand for NVIDIA's, a daemon on them, processes with CUDA."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.mps.daemon.daemon import MpsDaemon
from sluice.mps.isolation.mps_environment import mps_environment
from sluice.mps.partitions.partition import MpsPartition
from tests.support.gpu import fake_mps
from tests.support.gpu.cuda_process import CudaProcess


@pytest.fixture
def root() -> Iterator[Path]:
    """A short one: pytest's own directories are too long for sockets."""
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture
def program(root: Path) -> str:
    return fake_mps.install(root / "bin")


@pytest.fixture
def fake(root: Path, program: str) -> Iterator[MpsDaemon]:
    """A daemon with which things go wrong."""
    found = MpsDaemon(fake_mps.GPU, root, program=program)
    found.start()
    yield found
    found.stop()


@pytest.fixture
def clients() -> Iterator[Callable[..., CudaProcess]]:
    """Starts clients of a daemon, and ends them."""
    started = []

    def start(daemon: MpsDaemon, share: int = 100, memory_mb: float | None = None, **more: str) -> CudaProcess:
        partition = MpsPartition("p", daemon.device, share, memory_mb)
        environment = mps_environment(partition, daemon.pipes) | more
        started.append(CudaProcess(environment, real=daemon.device != fake_mps.GPU))
        return started[-1]

    yield start
    for each in started:
        each.close()
