from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from sluice.loadgen.traffic.schedule import Schedule
from sluice.loadgen.traffic.schedule_file import read_schedule, write_schedule
from sluice.models.errors import ConfigError

PLAIN = Schedule(np.array([0, 5, 5]), np.array([2, 0, 1]))
FULL = Schedule(PLAIN.due_ns, PLAIN.sample, np.array([0, 1, 1], np.uint16), np.array([-1, 7, -1]))


@pytest.mark.parametrize("name", ["schedule.npz", "schedule.csv"])
@pytest.mark.parametrize("schedule", [PLAIN, FULL])
def test_what_is_written_is_read_again(tmp_path: Path, name: str, schedule: Schedule) -> None:
    path = str(tmp_path / name)
    write_schedule(schedule, path)
    assert read_schedule(path).digest == schedule.digest


def test_the_csv_has_a_row_for_each_query(tmp_path: Path) -> None:
    path = tmp_path / "schedule.csv"
    write_schedule(FULL, str(path))
    assert path.read_text() == "due_ns,sample,stream,cancel_ns\n0,2,0,-1\n5,0,1,7\n5,1,1,-1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 0: expected a heading with due_ns, sample, got no 'due_ns'"),
        ("due_ns,sample\n", "no queries; expected at least one"),
        ("due_ns\n1\n", "line 1: expected a heading with due_ns, sample, got no 'sample'"),
        ("due_ns,sample,rate\n1,2,3\n", "line 1: expected the columns due_ns, sample, stream, cancel_ns"),
        ("due_ns,sample\n1,2\n1.5,2\n", "line 3: expected a whole number for due_ns, got '1.5'"),
        ("due_ns,sample\n1,2\n2\n", "line 3: expected a value for sample, got nothing"),
        ("due_ns,sample\n99999999999999999999,2\n", "line 2: expected a whole number for due_ns"),
        ("due_ns,sample\n3,2\n1,2\n", "expected due_ns that start at 0 or later and do not fall"),
        ("due_ns,sample\n-3,2\n1,2\n", "expected due_ns that start at 0 or later and do not fall"),
        ("due_ns,sample\n1,-2\n", "expected samples of at least 0, got -2"),
        ("due_ns,sample,stream\n1,2,70000\n", "expected streams from 0 to 65535"),
        ("due_ns,sample,cancel_ns\n1,2,-2\n", "expected cancel_ns of at least -1"),
    ],
)
def test_what_is_no_schedule_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "schedule.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_schedule(str(path))


@pytest.mark.parametrize(
    "arrays",
    [
        {"due_ns": np.arange(3)},
        {"due_ns": np.arange(3), "sample": np.arange(2)},
        {"due_ns": np.arange(3.0), "sample": np.arange(3)},
        {"due_ns": np.arange(3), "sample": np.arange(3), "rate": np.arange(3)},
    ],
)
def test_arrays_that_are_no_schedule_are_refused(tmp_path: Path, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
    path = tmp_path / "schedule.npz"
    np.savez(path, allow_pickle=False, **arrays)
    with pytest.raises(ConfigError, match="expected int64 arrays due_ns, sample and maybe stream, cancel_ns, of one"):
        read_schedule(str(path))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.npz: cannot be read: No such file"):
        read_schedule(str(tmp_path / "missing.npz"))
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(ConfigError, match=r"text\.npz: cannot be read as an \.npz file"):
        read_schedule(str(tmp_path / "text.npz"))
    with pytest.raises(ConfigError, match=r"expected a name that ends in \.npz or \.csv"):
        read_schedule(str(tmp_path / "schedule.json"))
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        write_schedule(PLAIN, str(tmp_path / "missing" / "schedule.csv"))
