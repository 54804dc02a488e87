"""Cores that worker servers share out among themselves."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.gateway.worker_server import cores
from sluice.gateway.worker_server.cores import take_cores
from sluice.models.errors import PartitionError

OTHER = """
import sys
from pathlib import Path
from sluice.gateway.worker_server.cores import take_cores
print(take_cores(1, Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three cores, two of which need not be there."""
    monkeypatch.setattr(cores, "usable_cores", lambda: (0, 1, 2))


def test_cores_are_held_until_the_process_ends(tmp_path: Path) -> None:
    directory = tmp_path / "cores"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", OTHER, str(directory)]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        taken = other.stdout.readline().decode().strip()
        assert taken == f"({os.sched_getaffinity(0) and min(os.sched_getaffinity(0))},)"
        with pytest.raises(PartitionError, match=r"--cores auto:3: 2 of the cores \[0, 1, 2\] are free"):
            take_cores(3, directory)
        assert take_cores(2, directory) == (1, 2)
        other.communicate()
    assert take_cores(1, directory) == (0,)
    with pytest.raises(PartitionError, match="0 of the cores"):
        take_cores(1, directory)


def test_a_directory_of_others_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises((PartitionError, FileExistsError)):
        take_cores(1, tmp_path / "file")


def test_no_cores_are_no_partition(tmp_path: Path) -> None:
    with pytest.raises(PartitionError, match="expected at least 1, got 0"):
        take_cores(0, tmp_path)
