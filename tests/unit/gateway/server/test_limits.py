"""The limits of a machine or a container are compared with what a server needs."""

import os
import resource
from collections.abc import Mapping

import msgspec
import pytest

from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.server import limits
from sluice.gateway.server.limits import HostMemory, Severity, host_memory
from sluice.mps.partitions.partition import CpuPartition, MpsPartition

ONE = CpuPartition("cpu0", (0,))
TWO = CpuPartition("cpu1", (1,))
NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def found(which: str, config: ServerConfig | None = None, *partitions: CpuPartition | MpsPartition) -> tuple[str, str]:
    """The severity and the text of the finding that begins so."""
    findings = limits.check_limits(config or ServerConfig(), partitions, 0)
    return next((each.severity.value, each.text) for each in findings if each.text.startswith(which))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "available_cores", lambda: (0, 1, 2, 3))
    monkeypatch.setattr(limits, "cpu_quota", lambda: 1.5)
    monkeypatch.setattr(limits, "process_limit", lambda: None)


def set_limits(monkeypatch: pytest.MonkeyPatch, values: Mapping[int, tuple[int, int]]) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: values.get(which, NO_LIMIT))


def test_open_files_that_cannot_be_raised_bound_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, {resource.RLIMIT_NOFILE: (1024, 4000)})
    assert found("open files", None, ONE) == (
        "note",
        "open files: 1024, which a server raises to 4000; expected 5384 (ulimit -Hn), so that only 2802 connections "
        "over HTTP and 934 over gRPC are accepted",
    )
    assert found("open files", None, MpsPartition("mps0", "GPU-1", 50))[0] == "wrong"
    set_limits(monkeypatch, {resource.RLIMIT_NOFILE: (1024, 8192)})
    assert found("open files", None, ONE) == ("ok", "open files: 1024, which a server raises to 5384")
    set_limits(monkeypatch, {})
    assert found("open files") == ("ok", "open files: no limit")


def test_less_time_than_cores_is_wrong_unless_there_is_one_core_only() -> None:
    text = "cores: {}, but the cgroup allows the time of {}: batches stall when it is used"
    assert found("cores", None, ONE, TWO) == ("wrong", text.format(2, 1.5))
    assert found("cores", None, ONE) == ("ok", "cores: 1 of 4, since the cgroup allows the time of 1.5")


def test_half_a_core_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "cpu_quota", lambda: 0.5)
    assert found("cores", None, ONE)[0] == "note"


def test_what_a_server_takes_is_its_processes_their_models_and_the_bounds_of_buffers() -> None:
    config = msgspec.convert({"front_ends": 2, "cache_bytes": 1 << 20, "spare_worker": False}, ServerConfig)
    assert host_memory(config, [ONE, TWO], 5 << 20) == HostMemory(60 + 2 * 28 + 2 * 45, 5, 3 * 128 + 2 * 64 + 256 + 1)


@pytest.mark.parametrize(
    ("limit_mib", "severity", "part"),
    [
        (99, Severity.WRONG, "memory: 99 MiB, but a server takes 100 MiB: 60 MiB for processes and 40 MiB for models"),
        (100, Severity.NOTE, "memory: 100 MiB, but a server may take 400 MiB under load: "),
        (400, Severity.OK, "memory: 400 MiB, of which a server takes 400 MiB at most"),
    ],
)
def test_memory_is_weighed_against_the_limit(
    monkeypatch: pytest.MonkeyPatch, limit_mib: int, severity: Severity, part: str
) -> None:
    monkeypatch.setattr(limits, "memory_limit_bytes", lambda: limit_mib << 20)
    finding = limits.check_memory(HostMemory(60, 40, 300))
    assert finding.severity is severity
    assert finding.text.startswith(part)


def test_few_processes_and_a_small_address_space_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "process_limit", lambda: 9)
    assert found("processes", None, ONE) == (
        "wrong",
        "processes and threads: 9 (pids.max of the cgroup), expected at least 10 for these partitions",
    )
    config = msgspec.convert({"front_ends": 2}, ServerConfig)
    assert found("processes", config, ONE)[1].endswith("expected at least 19 for these partitions")
    set_limits(monkeypatch, {resource.RLIMIT_AS: (512 << 20, 512 << 20), resource.RLIMIT_FSIZE: (128 << 20, 0)})
    assert found("address space", None, ONE) == (
        "wrong",
        "address space of each process: 512 MiB (ulimit -v); expected at least 576 MiB, or no limit",
    )
    assert found("size of a file") == ("note", "size of a file, or of memory that is shared: 128 MiB (ulimit -f)")


@pytest.mark.parametrize(("user", "texts"), [(0, []), (1000, ["processes and threads: 5 (ulimit -u), "])])
def test_the_kernel_holds_root_to_no_number_of_processes(
    monkeypatch: pytest.MonkeyPatch, user: int, texts: list[str]
) -> None:
    set_limits(monkeypatch, {resource.RLIMIT_NPROC: (5, 5)})
    monkeypatch.setattr(os, "getuid", lambda: user)
    findings = [each.text for each in limits.check_processes(ServerConfig(), [ONE])]
    assert findings == [text + "expected at least 10 for these partitions" for text in texts]
