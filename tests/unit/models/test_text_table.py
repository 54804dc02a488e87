import sys

import pytest

from sluice.models.text_table import print_table, table_lines
from tests.support.terminal import on_terminal

ROWS = [("name", "state", "reason"), ("mlp", "READY", ""), ("bert", "UNAVAILABLE", "the file model.onnx is cut off")]


def test_columns_are_aligned_two_spaces_apart() -> None:
    assert table_lines([("stage", "p50 ms"), ("prep", "0.163"), ("all", "")], left=1) == [
        "stage  p50 ms",
        "prep    0.163",
        "all",
    ]


def test_a_table_without_rows_has_no_lines() -> None:
    assert table_lines([], left=1) == []


def test_marks_of_rich_and_wide_letters_are_text() -> None:
    assert table_lines([("[red]m[/]", "1"), ("模型", ":warning:")], left=2) == ["[red]m[/]  1", "模型       :warning:"]


def test_long_cells_stay_in_one_line() -> None:
    assert table_lines([("m", "x y " * 500)], left=2) == [f"m  {'x y ' * 500}".rstrip()]


def test_what_is_no_terminal_gets_plain_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    print_table(ROWS, left=3, styles={"READY": "green"})
    assert capsys.readouterr().out == (
        "name  state        reason\nmlp   READY\nbert  UNAVAILABLE  the file model.onnx is cut off\n"
    )


PROGRAM = f"""
from sluice.models.text_table import print_table
print_table({ROWS}, left=3, styles={{"READY": "green"}})
"""


def shown(columns: int, environment: dict[str, str]) -> list[str]:
    with on_terminal([sys.executable, "-c", PROGRAM], columns, environment=environment) as terminal:
        return [line.rstrip() for line in terminal.read_to_end().splitlines()]


def test_a_terminal_gets_colours_and_wraps_the_last_column_alone() -> None:
    text = "\n".join(shown(48, {}))
    assert "\x1b[1mname" in text
    assert "\x1b[32mREADY" in text
    assert shown(48, {"NO_COLOR": "1", "TERM": "dumb"}) == [
        "name  state        reason",
        "mlp   READY",
        "bert  UNAVAILABLE  the file model.onnx is cut",
        "                   off",
    ]


def test_a_narrow_terminal_gets_whole_names() -> None:
    assert shown(24, {"TERM": "dumb"})[2] == "bert  UNAVAILABLE  the file model.onnx is cut off"


def test_colours_can_be_switched_off() -> None:
    assert "\x1b[32m" not in "\n".join(shown(80, {"NO_COLOR": "1"}))
