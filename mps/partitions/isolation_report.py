"""Compares a worker's evidence about itself with the partition that it was given."""

import math
from collections.abc import Sequence

import msgspec

from sluice.mps.mig.geometry import same_profile
from sluice.mps.partitions.partition import CpuPartition, GpuPartition, MpsPartition, Partition

CUDA = "CUDAExecutionProvider"
_ON_GPU = (CUDA, "TensorrtExecutionProvider")
"""ONNX Runtime's providers that run on the GPU of the process."""
_OF_MIG = " MIG "
"""Precedes the profile at the end of the driver's name of a MIG device."""
_FEWEST_MULTIPROCESSORS = 8
"""The multiprocessors that MPS grants to the smallest share, as measured on an H200; older GPUs grant fewer."""


class VisibleGpu(msgspec.Struct, frozen=True):
    """The GPUs that a process sees: their number, and the UUID, multiprocessors and name of device 0.

    `multiprocessors` are those that this process may use. `uuid` has no prefix; `error` is CUDA's error, if it had one.
    """

    count: int = 0
    uuid: str = ""
    multiprocessors: int = 0
    error: str = ""
    name: str = ""


class MpsFacts(msgspec.Struct, frozen=True):
    """Facts about an MPS client from outside: whether its daemon lists it, and the multiprocessors of the whole device.

    0 multiprocessors are not known; `trouble` is the reason why the daemon, or CUDA without it, has not reported them.
    """

    client: bool = False
    multiprocessors: int = 0
    trouble: str = ""


class ThreadAffinity(msgspec.Struct, frozen=True):
    """A thread of a worker, or of a process that it started, and the cores that the kernel lets it run on."""

    name: str
    tid: int
    cores: tuple[int, ...]


class Evidence(msgspec.Struct, frozen=True):
    """The state of a worker once it has loaded its models, as the system reports it, not as it was asked for.

    `processes` are the worker and those that it started; `stray_threads` are those of their `thread_count` threads that
    may run on cores outside the partition. `data_limit_bytes` is the RLIMIT_DATA in force (None: no limit). `providers`
    are the first providers of the models' sessions on ONNX Runtime, `refusals` the reasons why models were not loaded
    that would have run elsewhere. `gpu` is None on cores, `mps` is None except on a share under MPS. `threads` are the
    threads that sessions on ONNX Runtime run a batch on.
    """

    cores: tuple[int, ...] = ()
    processes: tuple[int, ...] = ()
    thread_count: int = 0
    stray_threads: tuple[ThreadAffinity, ...] = ()
    data_limit_bytes: int | None = None
    providers: dict[str, str] = {}
    refusals: tuple[str, ...] = ()
    gpu: VisibleGpu | None = None
    mps: MpsFacts | None = None
    threads: dict[str, int] = {}


def isolation_violations(partition: Partition, evidence: Evidence) -> list[str]:
    """Return the reasons why a partition is not enforced, in sentences; empty when it is."""
    reasons = [*_cores(partition, evidence), *evidence.refusals]
    if isinstance(partition, CpuPartition):
        return [*reasons, *_memory(partition, evidence)]
    reasons += [
        f"model {key} runs on {provider}, expected {CUDA}"
        for key, provider in evidence.providers.items()
        if provider not in _ON_GPU
    ]
    gpu = evidence.gpu or VisibleGpu(error="no evidence")
    return [*reasons, *_device(partition, gpu, evidence.mps or MpsFacts())]


def _cores(partition: Partition, evidence: Evidence) -> list[str]:
    if not partition.cores:
        return []
    reasons = []
    if evidence.cores != tuple(sorted(partition.cores)):
        reasons.append(f"the worker runs on cores {_listed(evidence.cores)}, expected {_listed(partition.cores)}")
    elif evidence.stray_threads:
        stray = evidence.stray_threads[0]
        more = f" and {len(evidence.stray_threads) - 1} more" if len(evidence.stray_threads) > 1 else ""
        reasons.append(
            f"thread {stray.name} ({stray.tid}){more} of {evidence.thread_count} may run on cores "
            f"{_listed(stray.cores)}, expected {_listed(partition.cores)}"
        )
    reasons += [
        f"model {key} runs on {threads} threads, expected at most {len(partition.cores)}"
        for key, threads in evidence.threads.items()
        if threads > len(partition.cores)
    ]
    return reasons


def _memory(partition: CpuPartition, evidence: Evidence) -> list[str]:
    limit = partition.hard_memory_bytes
    if limit is None or evidence.data_limit_bytes == limit:
        return []
    found = "no limit" if evidence.data_limit_bytes is None else f"a limit of {evidence.data_limit_bytes >> 20} MiB"
    return [f"the worker's data has {found}, expected {limit >> 20} MiB"]


def _device(partition: GpuPartition, gpu: VisibleGpu, mps: MpsFacts) -> list[str]:
    if gpu.error:
        return [f"CUDA does not report the worker's device: {gpu.error}"]
    reasons = []
    if gpu.count != 1 or gpu.uuid != partition.uuid.removeprefix("GPU-").removeprefix("MIG-"):
        reasons.append(f"the worker sees {gpu.count} devices, the first of them {gpu.uuid}, expected {partition.uuid}")
    _, of_mig, profile = gpu.name.rpartition(_OF_MIG)
    if of_mig and partition.profile and not same_profile(profile, partition.profile):
        reasons.append(f"the instance is a {profile}, expected a {partition.profile}")
    if isinstance(partition, MpsPartition):
        reasons += _share(partition, gpu, mps)
    return reasons


def _share(partition: MpsPartition, gpu: VisibleGpu, mps: MpsFacts) -> list[str]:
    """Check an MPS share. Where CUDA finds no daemon, it silently runs without MPS."""
    if not mps.client and mps.trouble:
        return [f"the MPS daemon does not list its clients: {mps.trouble}"]
    if not mps.client:
        return ["the MPS daemon does not list the worker among its clients: CUDA runs without MPS"]
    if partition.cap_percent < 100 and not mps.multiprocessors:
        return [
            f"CUDA does not report the multiprocessors of the whole device, so the cap cannot be checked: {mps.trouble}"
        ]
    most = max(_FEWEST_MULTIPROCESSORS, math.floor(mps.multiprocessors * partition.cap_percent / 100))
    if mps.multiprocessors and gpu.multiprocessors > most:
        return [
            f"the worker has {gpu.multiprocessors} of {mps.multiprocessors} multiprocessors, expected at most {most} "
            f"for {partition.cap_percent} %"
        ]
    return []


def _listed(cores: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(cores)))
