"""The memory and processor time that this process may use, as the kernel and its cgroups limit them."""

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")
_NO_LIMIT = 1 << 60
"""Version 1 writes a number about as large as the address space where there is no limit."""


def memory_limit_bytes(root: Path = _ROOT) -> int:
    """The smallest of the machine's memory and the limits of this process's cgroups."""
    total = int(_field(root / "proc/meminfo", "MemTotal:") or 0) << 10
    limits = [
        int(text)
        for file in ("memory.max", "memory.limit_in_bytes")
        for text in _values(root, "memory", file)
        if text.isdigit() and int(text) < _NO_LIMIT
    ]
    return min([total, *limits])


def cpu_quota(root: Path = _ROOT) -> float | None:
    """The processor time, in cores, that this process's cgroups allow; None without a limit."""
    quotas = []
    for text in _values(root, "cpu", "cpu.max"):
        quota, _, period = text.partition(" ")
        if quota.isdigit():
            quotas.append(int(quota) / int(period or 100_000))
    for quota, period in zip(
        _values(root, "cpu", "cpu.cfs_quota_us"), _values(root, "cpu", "cpu.cfs_period_us"), strict=False
    ):
        if quota.isdigit() and period.isdigit():
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def process_limit(root: Path = _ROOT) -> int | None:
    """The number of processes and threads that this process's cgroups allow; None without a limit."""
    limits = [int(text) for text in _values(root, "pids", "pids.max") if text.isdigit()]
    return min(limits, default=None)


def cgroup_names(root: Path = _ROOT) -> str:
    """The names of this process's cgroups, as the kernel lists them."""
    return _text(root / "proc/self/cgroup")


def _values(root: Path, controller: str, file: str) -> Iterator[str]:
    """The contents of a file in this process's cgroup of a controller, and in each cgroup above it."""
    for directory, top in _groups(root, controller):
        # In a container the path may be the host's, while only the container's own part of it is mounted.
        for group in [directory, *directory.parents]:
            if group.is_relative_to(top) and (text := _text(group / file)):
                yield text


def _groups(root: Path, controller: str) -> Iterator[tuple[Path, Path]]:
    """The directories of this process's cgroups, versions 2 and 1, each with the directory that they are mounted in."""
    mounted = root / "sys/fs/cgroup"
    for line in cgroup_names(root).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield mounted / path.lstrip("/"), mounted
        elif controller in controllers.split(","):
            yield mounted / controller / path.lstrip("/"), mounted / controller


def _field(file: Path, name: str) -> str:
    for line in _text(file).splitlines():
        if line.startswith(name):
            return line.split()[1]
    return ""


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
