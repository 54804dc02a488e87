"""The limits that the kernel and the cgroups set for a server, and whether they suffice for its configuration.

`sluice doctor` prints these findings, and a server logs those that are not in order when it starts.
"""

import os
import resource
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.front_ends.front_ends import front_end_count
from sluice.gateway.server.open_files import open_files
from sluice.mps.partitions.cpu import available_cores, usable_cores
from sluice.mps.partitions.host import cpu_quota, memory_limit_bytes, process_limit
from sluice.mps.partitions.partition import CpuPartition, MpsPartition, Partition

GATEWAY_MIB = 60
"""Memory of its own that a gateway takes, measured when it is idle."""
FRONT_END_MIB = 45
"""The same of a front end."""
WORKER_MIB = 28
"""The same of a worker without models, and of a spare worker."""
PROCESS_SPACE_MIB = 384
"""Address space that a process reserves beside the memory for tensors, most of it for libraries and threads."""
THREADS_EACH = 3
"""Threads of a process of a server, of a worker beside one thread for each core of its partition."""

_MIB = 1 << 20


class Severity(StrEnum):
    """The result of a check."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


class Finding(msgspec.Struct, frozen=True, rename={"severity": "verdict"}):
    """One result of the check `part`; in JSON, the severity is `verdict`."""

    part: str
    severity: Severity
    text: str


class HostMemory(NamedTuple):
    """The memory of the host that a server takes, in MiB: its processes, the models of workers, and what is bounded.

    `buffers` are the arenas, the buffers of the front door and the response cache, which fill with the load.
    """

    processes: float
    models: float
    buffers: float


def host_memory(config: ServerConfig, partitions: Sequence[Partition], model_bytes: int) -> HostMemory:
    """The memory that a server takes whose workers begin with models of that many bytes together."""
    front_ends, limits = front_end_count(config.front_ends), config.limits
    processes = GATEWAY_MIB + WORKER_MIB * (len(partitions) + config.spare_worker)
    processes += FRONT_END_MIB * _front_end_processes(config)
    arenas = limits.input_arena_mb * (1 + front_ends) + limits.output_arena_mb * len(partitions)
    door = config.front_door.buffer_bytes(limits.memory_mb, config.max_body_bytes)
    return HostMemory(processes, model_bytes / _MIB, arenas + (door + config.cache_bytes) / _MIB)


def _front_end_processes(config: ServerConfig) -> int:
    """The processes of front ends, with the spare one if there are any."""
    count = front_end_count(config.front_ends)
    return count + config.spare_worker if count else 0


def check_limits(config: ServerConfig, partitions: Sequence[Partition], model_bytes: int) -> Iterator[Finding]:
    """Check all limits for a server with these partitions; `model_bytes` is as for `host_memory`."""
    yield check_files(config, partitions)
    yield check_memory(host_memory(config, partitions, model_bytes))
    data, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if data != resource.RLIM_INFINITY:
        yield Finding("limits", Severity.NOTE, f"data of each process: {data // _MIB} MiB (ulimit -d)")
    yield from check_sizes(config, partitions)
    yield check_cores(partitions)
    yield from check_processes(config, partitions)
    try:
        os.close(os.memfd_create("sluice-doctor"))
        yield Finding("limits", Severity.OK, "memfd: tensors can be shared with workers")
    except OSError as error:
        yield Finding("limits", Severity.WRONG, f"memfd: memory cannot be shared with workers: {error}")


def check_files(config: ServerConfig, partitions: Sequence[Partition]) -> Finding:
    """Check the limit of open files, which a server raises itself as far as it may."""
    files = open_files(config.front_door, partitions)
    if files.raised == resource.RLIM_INFINITY:
        return Finding("limits", Severity.OK, "open files: no limit")
    text = f"open files: {files.soft}" + (f", which a server raises to {files.raised}" * (files.raised > files.soft))
    if files.raised >= files.needed:
        return Finding("limits", Severity.OK, text)
    text += (
        f"; expected {files.needed} (ulimit -Hn), so that only {files.http} connections over HTTP and {files.grpc} "
        "over gRPC are accepted"
    )
    shared = any(isinstance(each, MpsPartition) for each in partitions)
    return Finding("limits", Severity.WRONG if shared else Severity.NOTE, text)


def check_memory(needed: HostMemory) -> Finding:
    """Check the memory of the machine, or of the cgroup if that is less: what is taken for certain, and at most."""
    limit = memory_limit_bytes() / _MIB
    least, most = needed.processes + needed.models, sum(needed)
    parts = f"{needed.processes:.0f} MiB for processes and {needed.models:.0f} MiB for models"
    if least > limit:
        text = f"memory: {limit:.0f} MiB, but a server takes {least:.0f} MiB: {parts}"
        return Finding("limits", Severity.WRONG, f"{text}; expected fewer partitions, fewer models, or more memory")
    if most > limit:
        text = (
            f"memory: {limit:.0f} MiB, but a server may take {most:.0f} MiB under load: {parts}, up to "
            f"{needed.buffers:.0f} MiB for arenas and buffers; expected less limits.input_arena_mb, "
            "limits.output_arena_mb, limits.memory_mb or cache_bytes, fewer partitions, or more memory"
        )
        return Finding("limits", Severity.NOTE, text)
    return Finding("limits", Severity.OK, f"memory: {limit:.0f} MiB, of which a server takes {most:.0f} MiB at most")


def check_sizes(config: ServerConfig, partitions: Sequence[Partition]) -> Iterator[Finding]:
    """Check the limits, where there are any, of the address space and of files, which memory for tensors counts as."""
    limits = config.limits
    sizes = {
        "address space of each process": (
            *(resource.RLIMIT_AS, "ulimit -v"),
            PROCESS_SPACE_MIB + limits.input_arena_mb + limits.output_arena_mb * max(len(partitions), 1),
        ),
        "size of a file, or of memory that is shared": (
            *(resource.RLIMIT_FSIZE, "ulimit -f"),
            max(limits.input_arena_mb, limits.output_arena_mb),
        ),
    }
    for name, (which, command, needed) in sizes.items():
        limit, _ = resource.getrlimit(which)
        if limit == resource.RLIM_INFINITY:
            continue
        text = f"{name}: {limit // _MIB} MiB ({command})"
        if limit < needed * _MIB:
            yield Finding("limits", Severity.WRONG, f"{text}; expected at least {needed} MiB, or no limit")
        else:
            yield Finding("limits", Severity.NOTE, text)


def check_cores(partitions: Sequence[Partition]) -> Finding:
    """Check that the cgroups allow the time of all cores that partitions have."""
    cores = len({core for each in partitions for core in each.cores} or usable_cores())
    quota = cpu_quota()
    if quota is None or quota >= cores:
        return Finding("limits", Severity.OK, f"cores: {cores}{_of_available(cores, quota)}")
    text = f"cores: {cores}, but the cgroup allows the time of {quota:g}: batches stall when it is used"
    # Nothing can have less than one core.
    return Finding("limits", Severity.NOTE if cores == 1 else Severity.WRONG, text)


def _of_available(cores: int, quota: float | None) -> str:
    available = len(available_cores())
    if quota is None or cores == available:
        return ""
    return f" of {available}, since the cgroup allows the time of {quota:g}"


def check_processes(config: ServerConfig, partitions: Sequence[Partition]) -> Iterator[Finding]:
    """Check the limits of processes and threads, where there are any: of the cgroups, and of the user."""
    cores = sum(len(each.cores) for each in partitions if isinstance(each, CpuPartition))
    processes = 1 + len(partitions) + config.spare_worker + _front_end_processes(config)
    needed = cores + THREADS_EACH * processes
    own, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = {"pids.max of the cgroup": process_limit()}
    if own != resource.RLIM_INFINITY and os.getuid() != 0:  # the kernel holds root to none
        limits["ulimit -u"] = own
    for name, limit in limits.items():
        if limit is not None and limit < needed:
            text = f"processes and threads: {limit} ({name}), expected at least {needed} for these partitions"
            yield Finding("limits", Severity.WRONG, text)
