"""The evidence of a worker about itself: threads and limits from the kernel, the GPU from CUDA."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sluice.models.errors import ControlFailed
from sluice.models.processes import process_tree, threads_of
from sluice.mps.daemon.channel import MpsChannel
from sluice.mps.daemon.inventory import connect_control
from sluice.mps.isolation.launch import module_environment
from sluice.mps.isolation.mps_environment import NO_DAEMON
from sluice.mps.nvidia.cuda import visible_gpu
from sluice.mps.partitions.isolation_report import Evidence, MpsFacts, ThreadAffinity, VisibleGpu
from sluice.mps.partitions.partition import CpuPartition, MpsPartition, Partition

if TYPE_CHECKING:
    from sluice.mps.worker.runner import Runner

MAX_STRAY_THREADS = 16
"""Most stray threads that are listed."""
MAX_REFUSALS = 16
"""Most models that are listed as refused because they would have run outside the partition; the latest ones."""
PROBE_TIMEOUT_S = 20.0
"""Time limit of the process that looks at the device without MPS."""

_PROC = Path("/proc")


def gather_evidence(partition: Partition, models: "Runner | None" = None, before: Evidence | None = None) -> Evidence:
    """Return the evidence of this process, which has just loaded `models`; its device's is taken from `before`."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    processes = tuple(process_tree(os.getpid()))
    threads = [(pid, tid) for pid in processes for tid in threads_of(pid)]
    strays = _strays(threads, frozenset(partition.cores or cores))
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if before is not None:
        gpu, mps = before.gpu, before.mps
    else:
        shared = isinstance(partition, MpsPartition)
        gpu = None if isinstance(partition, CpuPartition) else visible_gpu(attach=shared)
        mps = mps_facts(processes) if shared else None
    return Evidence(
        cores,
        processes,
        len(threads),
        tuple(islice(strays, MAX_STRAY_THREADS)),
        None if limit == resource.RLIM_INFINITY else limit,
        {} if models is None else models.providers,
        () if models is None else models.refusals[-MAX_REFUSALS:],
        gpu,
        mps,
        {} if models is None else models.threads,
    )


def mps_facts(processes: Sequence[int]) -> MpsFacts:
    """Ask the MPS daemon of this process's environment about this process, which must already have a context."""
    try:
        clients = connect_control(MpsChannel(Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]))).clients()
    except ControlFailed as error:
        return MpsFacts(trouble=str(error))
    whole = whole_device()
    return MpsFacts(any(each.pid in processes for each in clients), whole.multiprocessors, whole.error)


def whole_device() -> VisibleGpu:
    """Return the device of this process as a process sees it that is no MPS client."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "sluice.mps.nvidia.cuda"],
            env=module_environment() | {"CUDA_MPS_PIPE_DIRECTORY": NO_DAEMON},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
        return msgspec.json.decode(done.stdout, type=VisibleGpu)
    except (OSError, subprocess.TimeoutExpired) as error:
        return VisibleGpu(error=str(error))
    except msgspec.DecodeError:
        return VisibleGpu(error=f"the probe exited with status {done.returncode}")


def _task(pid: int, tid: int) -> Path:
    return _PROC / str(pid) / "task" / str(tid)


def _strays(threads: Iterable[tuple[int, int]], allowed: frozenset[int]) -> Iterator[ThreadAffinity]:
    """Yield threads that may run on other cores; there may be thousands of threads, and batches wait meanwhile."""
    for pid, tid in threads:
        try:
            cores = os.sched_getaffinity(tid)
            if not cores <= allowed:
                name = (_task(pid, tid) / "comm").read_text(encoding="utf-8", errors="replace")
                yield ThreadAffinity(name.strip(), tid, tuple(sorted(cores)))
        except OSError:  # the thread has just ended
            continue
