import socket
import tempfile
from pathlib import Path

import pytest

from sluice.models.errors import PartitionError
from sluice.mps.isolation.mps_environment import (
    await_daemon,
    checked_pipe_directory,
    environment_without_mps,
    format_memory_limit,
    mps_environment,
    pipe_directory,
    pipes_of,
)
from sluice.mps.partitions.partition import MpsPartition, ShareMode

PIPES = Path("/tmp/mps")


def test_a_worker_gets_its_daemon_its_device_its_share_and_its_memory() -> None:
    partition = MpsPartition("a", "GPU-5d1f", share_percent=25, memory_mb=2048)
    assert mps_environment(partition, PIPES) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps",
        "CUDA_VISIBLE_DEVICES": "GPU-5d1f",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
    }


def test_settings_of_mps_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1M")
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "2")
    variables = environment_without_mps()
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in variables
    assert variables["CUDA_DEVICE_MAX_CONNECTIONS"] == "2"


def test_mps_inside_mig_names_the_mig_device() -> None:
    partition = MpsPartition("a", "MIG-77aa", share_percent=50)
    assert mps_environment(partition, PIPES)["CUDA_VISIBLE_DEVICES"] == "MIG-77aa"


@pytest.mark.parametrize("mode", [ShareMode.ELASTIC, ShareMode.UNCAPPED])
def test_only_a_hard_share_is_a_cap(mode: ShareMode) -> None:
    partition = MpsPartition("a", "GPU-5d1f", share_percent=25, mode=mode)
    assert mps_environment(partition, PIPES)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "100"


@pytest.mark.parametrize(
    ("mode", "priority"),
    [(ShareMode.HARD, None), (ShareMode.ELASTIC, None), (ShareMode.STATIC, None), (ShareMode.UNCAPPED, "1")],
)
def test_a_share_that_is_promised_nothing_is_below_the_others(mode: ShareMode, priority: str | None) -> None:
    partition = MpsPartition("a", "GPU-5d1f", share_percent=25, mode=mode)
    assert mps_environment(partition, PIPES).get("CUDA_MPS_CLIENT_PRIORITY") == priority


def test_a_limit_is_rounded_down_to_mebibytes_and_none_is_none() -> None:
    limited = MpsPartition("a", "GPU-5d1f", share_percent=100, memory_mb=2.9)
    assert mps_environment(limited, PIPES)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2M"
    unlimited = MpsPartition("a", "GPU-5d1f", share_percent=100)
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in mps_environment(unlimited, PIPES)
    with pytest.raises(PartitionError, match="memory limit: expected at least 1 MiB, got 1000 bytes"):
        format_memory_limit(1000)


def test_a_directory_is_refused_that_no_socket_fits_in() -> None:
    longest = Path("/" + 98 * "x")
    assert checked_pipe_directory(longest) == longest
    with pytest.raises(PartitionError, match="would have a path of 108 bytes, expected at most 107"):
        checked_pipe_directory(Path("/" + 99 * "x"))
    with pytest.raises(PartitionError, match="expected an absolute path"):
        checked_pipe_directory(Path("mps"))


@pytest.mark.parametrize(
    "device", ["GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65", "MIG-7c9d8a52-4a0a-5a66-a7a6-0a4ef3b41b5f"]
)
def test_each_device_has_a_directory_of_its_own_that_is_short_enough(device: str) -> None:
    directory = pipe_directory(device)
    assert directory.parts[-2:] == (device, "pipe")
    assert checked_pipe_directory(directory) == directory


@pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_STREAM])
def test_a_daemon_is_found_whichever_kind_its_socket_has(
    kind: socket.SocketKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as directory:
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", directory)
        with socket.socket(socket.AF_UNIX, kind) as listener:
            listener.bind(f"{directory}/control")
            with pytest.raises(PartitionError, match=r"no MPS daemon listens in .* \(Connection refused\)"):
                await_daemon(MpsPartition("p", "GPU-1", 50), timeout_s=0)
            listener.listen()
            await_daemon(MpsPartition("p", "GPU-1", 50), timeout_s=0)


def test_a_share_may_name_the_directory_of_its_daemon() -> None:
    assert pipes_of(MpsPartition("a", "GPU-5d1f", 25, pipes="/mps/pipe")) == Path("/mps/pipe")
    assert pipes_of(MpsPartition("a", "GPU-5d1f", 25)) == pipe_directory("GPU-5d1f")


@pytest.mark.parametrize(
    ("pipes", "mode", "message"),
    [
        ("pipe", ShareMode.HARD, "expected an absolute path in pipes, or auto, got 'pipe'"),
        ("auto", ShareMode.ELASTIC, "expected the mode hard beside pipes, since the daemon sets the limits, got elast"),
    ],
)
def test_a_share_of_the_daemon_of_others_is_hard_and_names_it_in_full(
    pipes: str, mode: ShareMode, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        MpsPartition("a", "GPU-5d1f", 25, pipes=pipes, mode=mode)
