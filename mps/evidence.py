"""What a worker finds of itself: threads and limits as the kernel tells them, the GPU as CUDA does."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from models.errors import ControlFailed
from mps.cuda import visible_gpu
from mps.launch import module_environment
from mps.mps_channel import MpsChannel
from mps.mps_environment import NO_DAEMON
from mps.mps_inventory import answering_control
from mps.partition import CpuPartition, MpsPartition, Partition
from mps.proof import Evidence, MpsFacts, ThreadPlace, VisibleGpu

MAX_PLACES = 16
"""Threads that are told of one by one."""
MAX_REFUSALS = 16
"""Models of late that are told of because they would have run elsewhere."""
PROBE_TIMEOUT_S = 20.0
"""How long a process may take to look at the device without MPS."""

_PROC = Path("/proc")


def gather(
    partition: Partition, providers: Mapping[str, str], refusals: Sequence[str], before: Evidence | None = None
) -> Evidence:
    """The evidence of this process, which has just loaded models; of its device it may have been found `before`."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    processes = tuple(_family(os.getpid()))
    threads = [(pid, tid) for pid in processes for tid in _threads(pid)]
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
        tuple(islice(strays, MAX_PLACES)),
        None if limit == resource.RLIM_INFINITY else limit,
        dict(providers),
        tuple(refusals[-MAX_REFUSALS:]),
        gpu,
        mps,
    )


def mps_facts(processes: Sequence[int]) -> MpsFacts:
    """What the daemon that this process was told says of it; asked once it has a context."""
    try:
        clients = answering_control(MpsChannel(Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]))).clients()
    except ControlFailed as error:
        return MpsFacts(trouble=str(error))
    whole = whole_device()
    return MpsFacts(any(each.pid in processes for each in clients), whole.multiprocessors, whole.error)


def whole_device() -> VisibleGpu:
    """The device that this process sees, as a process sees it that is no client of MPS."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "mps.cuda"],
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
        return VisibleGpu(error=f"the process that asks ended with status {done.returncode}")


def _family(pid: int) -> Iterator[int]:
    """A process and all that descend from it: models may run in processes of their own."""
    yield pid
    if pid == os.getpid() and not _has_children():
        return
    for tid in _threads(pid):
        try:
            children = (_task(pid, tid) / "children").read_text(encoding="ascii").split()
        except OSError:  # it has just ended, or this kernel does not tell
            continue
        for child in children:
            yield from _family(int(child))


def _has_children() -> bool:
    """Whether it is worth to ask thousands of threads for theirs."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _task(pid: int, tid: int) -> Path:
    return _PROC / str(pid) / "task" / str(tid)


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(_PROC / str(pid) / "task")]
    except OSError:
        return []


def _strays(threads: Iterable[tuple[int, int]], allowed: frozenset[int]) -> Iterator[ThreadPlace]:
    """Those that may run elsewhere; there may be thousands of threads, and batches wait meanwhile."""
    for pid, tid in threads:
        try:
            cores = os.sched_getaffinity(tid)
            if not cores <= allowed:
                name = (_task(pid, tid) / "comm").read_text(encoding="utf-8", errors="replace")
                yield ThreadPlace(name.strip(), tid, tuple(sorted(cores)))
        except OSError:  # it has just ended
            continue
