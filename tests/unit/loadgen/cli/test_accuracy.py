import asyncio
import json
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from sluice.loadgen.cli.main import main
from tests.support.loadgen.v2_server import BUSY, answer_of, server

# Two rows a query, so the last query has one.
ROWS = np.array([[0, 1], [1, 0], [0, 1], [0, 1], [1, 0]], np.float32)
HALF = np.float32(0.5)
QUERIES = ["accuracy", "--model", "m", "--rows", "2"]


def rows_of(body: bytes) -> npt.NDArray[np.float32]:
    """The rows of a request, which ends with its one tensor."""
    shape = re.search(rb'"shape":\s*\[(\d+)', body)
    assert shape is not None
    return np.frombuffer(body[-8 * int(shape[1]) :], np.float32).reshape(-1, 2)


async def halved(body: bytes, writer: asyncio.StreamWriter) -> None:
    """Answer with half the input, whose larger element is the class."""
    writer.write(answer_of(rows_of(body) * HALF))


def arrays(folder: Path, **expected: npt.NDArray[np.generic]) -> list[str]:
    np.savez(folder / "samples.npz", x=ROWS, label=np.array([1, 0, 1, 1, 1]))
    np.savez(folder / "expected.npz", **expected)  # type: ignore[arg-type]
    return ["--samples", str(folder / "samples.npz")]


def expected(folder: Path) -> list[str]:
    return ["--expected", str(folder / "expected.npz")]


def test_answers_are_compared_with_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    with server(by_body=halved) as target:
        options = ["--target", target, *arrays(tmp_path), "--labels", "label", "--json", str(report)]
        assert main([*QUERIES, *options, "--min-accuracy", "80"]) == 0
        assert main([*QUERIES, *options, "--min-accuracy", "81"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["rows", "5:", "4", "right,", "1", "wrong,", "0", "without", "an", "answer"]
    assert lines[2] == "Result: 80.00% right; met, at least 80 % asked for"
    assert lines[-1] == "Result: 80.00% right; MISSED, at least 81 % asked for"
    content = json.loads(report.read_text())
    assert (content["kind"], content["rows"], content["right"], content["met"]) == ("accuracy", 5, 4, False)
    assert content["run"]["metrics"]["queries"] == 3


@pytest.mark.parametrize(
    ("change", "tolerance", "right", "code"),
    [(0.0, "0", 5, 0), (1e-3, "1e-2", 5, 0), (1e-3, "1e-4", 4, 2), (float("nan"), "1", 4, 2)],
)
def test_answers_are_compared_with_expected_outputs(
    change: float, tolerance: str, right: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ROWS / 2
    wanted[4, 1] += change
    with server(by_body=halved) as target:
        options = ["--target", target, *arrays(tmp_path, y=wanted), *expected(tmp_path), "--tolerance", tolerance]
        assert main([*QUERIES, *options]) == code
    assert f"rows       5: {right} right" in capsys.readouterr().out


def test_a_row_without_an_answer_is_not_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def only_pairs(body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer_of(rows_of(body) * HALF) if len(rows_of(body)) == 2 else BUSY)

    with server(by_body=only_pairs) as target:
        options = ["--target", target, *arrays(tmp_path, y=ROWS / 2), *expected(tmp_path)]
        assert main([*QUERIES, *options]) == 2
    out = capsys.readouterr().out
    assert "4 right, 0 wrong, 1 without an answer" in out
    assert "HTTP 503" in out


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"y": ROWS[:2]}, "one row for each of the samples' (3 queries of 2 rows), got 2 rows"),
        ({"y": np.zeros((5, 3))}, "y: the answers have shape (2, 2), got (2, 3)"),
        ({"y": ROWS, "z": ROWS[:3]}, "expected arrays of equal length"),
        ({"z": ROWS}, "z"),
        ({}, "expected arrays of equal length, at least 1, got {}"),
    ],
)
def test_expected_outputs_that_do_not_fit_are_refused(
    outputs: dict[str, npt.NDArray[np.generic]], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with server(by_body=halved) as target:
        options = ["--target", target, *arrays(tmp_path, **outputs), *expected(tmp_path)]
        assert main([*QUERIES, *options]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "expected either --labels KEY or --expected FILE"),
        (["--labels", "a", "--expected", "b"], "expected either --labels KEY or --expected FILE"),
        (["--labels", "a", "--min-accuracy", "101"], "--min-accuracy: expected a percentage, got 101"),
        (["--labels", "a", "--min-accuracy", "0.98"], "--min-accuracy: expected a percentage, such as 98, got 0.98 %"),
        (["--labels", "a", "--tolerance", "-1"], "--tolerance: expected at least 0, got -1"),
        (["--labels", "a", "--queries", "5"], "every sample is sent once"),
        (["--labels", "a", "--target", "sim:x"], "a simulated target gives no outputs"),
        (["--expected", "missing.npz"], "--expected missing.npz: cannot be read"),
    ],
)
def test_what_cannot_be_checked_is_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*QUERIES, "--target", "http://localhost:1", *options]) == 1
    assert message in capsys.readouterr().err
