from pathlib import Path

import pytest

from sluice.loadgen.traffic.trace import read_trace
from sluice.models.errors import ConfigError


def write(directory: Path, text: str) -> str:
    path = directory / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("text", "times"),
    [
        pytest.param("0.5\n1\n2.25\n", [0.5, 1, 2.25], id="one column, no heading"),
        pytest.param("arrived\n3\n4", [3, 4], id="one column with a heading"),
        pytest.param("7,small\n9,large\n", [7, 9], id="no heading"),
        pytest.param("app,end_timestamp,duration\na1,10.5,3\nb2,11,4\n", [10.5, 11], id="a column called time"),
        pytest.param("timestamp_ms\n2000\n1000\n3000\n", [1000, 2000, 3000], id="out of order"),
        pytest.param("\n1\n\n2\n", [1, 2], id="empty lines"),
        pytest.param("\ufefftime\n1\n2\n", [1, 2], id="a byte order mark"),
        pytest.param(
            "TIMESTAMP,Tokens\n1970-01-01 00:00:01.5000000,4\n1970-01-01 00:01:00.25,3\n", [1.5, 60.25], id="timestamps"
        ),
        pytest.param("1970-01-01T02:00:00+02:00\n1970-01-01T00:00:09Z\n", [0, 9], id="time zones"),
    ],
)
def test_times_are_read(tmp_path: Path, text: str, times: list[float]) -> None:
    assert read_trace(write(tmp_path, text)).tolist() == times


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"expected at least two distinct times, got 0 rows"),
        ("time\n4\n4\n", r"expected at least two distinct times, got 2 rows"),
        ("time\n4\nsoon\n", r"trace\.csv: line 3: expected a number or a timestamp, got 'soon'"),
        ("time\n4\nnan\n", r"line 3: expected a number or a timestamp, got 'nan'"),
        ("app,time\na,4\nb\n", r"line 3: expected a number or a timestamp, got nothing"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_trace(write(tmp_path, text))


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--trace: .*missing\.csv: cannot be read"):
        read_trace(str(tmp_path / "missing.csv"))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(str(tmp_path / "binary.csv"))
    with pytest.raises(ConfigError, match="--arrivals trace: requires --trace FILE"):
        read_trace("")
