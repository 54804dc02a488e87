from pathlib import Path

from sluice.mps.partitions.host import cpu_quota, memory_limit_bytes, process_limit

MEMINFO = "MemTotal:        8000000 kB\nMemFree:          100 kB\n"


def machine(root: Path, cgroup: str, **files: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(MEMINFO)
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_cgroups_there_is_the_memory_of_the_machine(tmp_path: Path) -> None:
    root = machine(tmp_path, "")
    assert memory_limit_bytes(root) == 8_000_000 * 1024
    assert cpu_quota(root) is None


def test_the_least_limit_of_a_group_and_those_above_it_counts(tmp_path: Path) -> None:
    files = {"a/b/memory.max": "max\n", "a/memory.max": "1048576\n", "a/b/cpu.max": "150000 100000\n"}
    root = machine(tmp_path, "0::/a/b\n", **files)
    assert memory_limit_bytes(root) == 1_048_576
    assert cpu_quota(root) == 1.5


def test_a_path_of_the_host_stands_for_what_a_container_has_of_it(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/kubepods/pod1\n", **{"memory.max": "4096\n", "cpu.max": "max 100000\n"})
    assert memory_limit_bytes(root) == 4096
    assert cpu_quota(root) is None


def test_version_1_has_a_directory_for_each_controller(tmp_path: Path) -> None:
    files = {
        "memory/x/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/memory.limit_in_bytes": "2097152\n",
        "cpu/x/cpu.cfs_quota_us": "50000\n",
        "cpu/x/cpu.cfs_period_us": "100000\n",
        "cpu/cpu.cfs_quota_us": "-1\n",
        "cpu/cpu.cfs_period_us": "100000\n",
    }
    root = machine(tmp_path, "4:memory:/x\n3:cpu,cpuacct:/x\n", **files)
    assert memory_limit_bytes(root) == 2_097_152
    assert cpu_quota(root) == 0.5


def test_the_number_of_processes_may_be_limited(tmp_path: Path) -> None:
    root = machine(tmp_path, "8:pids:/x\n", **{"pids/x/pids.max": "max\n", "pids/pids.max": "100\n"})
    assert process_limit(root) == 100
