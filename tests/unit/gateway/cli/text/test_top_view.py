"""The frames of `sluice top`: whole in pipes, and what matters most on terminals of any size."""

import io
import re
import time

import msgspec
import pytest
from rich.console import Console

from sluice.gateway.cli.client.now import Now
from sluice.gateway.cli.text.top_view import Trouble, frame, frame_lines
from tests.unit.gateway.cli.now_documents import document


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def now() -> Now:
    return msgspec.convert(document(), Now)


def drawn(columns: int, rows: int, trouble: Trouble | None = None, shown: Now | None = None) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=columns, height=rows, highlight=False, markup=False)
    console.print(frame(shown or now(), columns, rows, trouble))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_frame_in_a_pipe_has_everything() -> None:
    lines = frame_lines(now())
    assert lines[:5] == [
        "sluice 0.1.0 compiled  degraded  up 2 h 46 min  10:53:20",
        "  partition cpu1 is down: worker exited with SIGKILL, restarting",
        "212 requests/s  99.9 % in time  p50 3.7 ms  p99 25.2 ms  0.1 late/s  0 refused/s  0 failed/s  12 in flight  "
        "30 rows queued  0.00052 USD per 1000 good",
        "",
        "pipelines",
    ]
    assert lines[5:7] == [
        "    pipeline            requests/s  in time  p50 ms  p99 ms  objective  late/s  refused/s  failed/s  headroom",
        "    digits-cascade-0:1         212   99.9 %     3.7    25.2     p99 50     0.1          0         0      2.1x",
    ]
    assert lines[15:] == [
        "  and 3 more",
        "",
        "digits-cascade-1:1: plan: p99 21 ms predicted, 25.2 seen; highest rate 810/s, headroom 3.8x",
        "  stage  model     runs for                       rows/s   share  batch  queued    ms",
        "  prep   prep:1    all rows                          212   100 %    1.6       -     -",
        "  large  rf1024:1  small: max of probs below 0.9      70  32.8 %    3.3       4  1.16",
        "",
        "partitions",
        "  partition  kind  state  why                         runs          models  memory MiB  free MiB  busy",
        "  cpu0       cpu1  ready                              logreg:1 x 8      12         123         -  62 %",
        "  cpu1       cpu1  lost   worker exited with SIGKILL                     0           -         -     -",
        "",
        "late, refused or failed",
        "  at        request       pipeline           outcome         ms    of  why",
        "  10:53:17  sluice-10231  digits-ensemble:1  completed_late  61.4  50  "
        "It was 11.4 ms late; the largest cause was waiting for a partition.",
        "",
        "not served",
        "  name  version  reason",
        "  bert           model.onnx: cut off",
    ]


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (100, 30), (120, 50), (240, 80)])
def test_a_frame_fits_its_terminal_and_cuts_no_name(size: tuple[int, int]) -> None:
    lines = drawn(*size)
    assert len(lines) <= size[1]
    assert max(map(len, lines)) <= size[0]
    assert lines[-1] == "q quit   up, down: choose a pipeline"
    assert any(re.match("> digits-cascade-1:1 .*212", line) for line in lines)


def test_a_small_terminal_has_the_partitions_and_a_large_one_charts_and_bars() -> None:
    small, large = "\n".join(drawn(80, 24)), "\n".join(drawn(120, 50))
    for text in (small, large):
        assert re.search("cpu1 .*lost   worker exited", text)
    assert "answers/s" not in small
    assert re.search("answers/s [▁-█]+ up to 106", large)
    assert re.search("62 %  █+", large)


def test_a_server_that_does_not_answer_is_said_with_the_age_of_what_is_shown() -> None:
    lines = drawn(200, 50, Trouble("cannot be reached: [Errno 111] Connection refused", 75))
    assert lines[-1] == (
        "no answer for 1 min 15 s: cannot be reached: [Errno 111] Connection refused; "
        "this is what the server said at 10:53:20   q quit"
    )


def test_a_server_that_serves_nothing_has_a_frame() -> None:
    empty = msgspec.convert({"server": {"state": "starting"}}, Now)
    assert drawn(80, 24, shown=empty)[-1] == "q quit   up, down: choose a pipeline"
    assert frame_lines(empty)[0].startswith("sluice   starting  up 0 s")


def test_what_a_model_says_cannot_change_the_terminal() -> None:
    changed = document()
    changed["not_served"] = [{"name": "m", "version": "1", "reason": "\x1b[2Jgone\x9b1m\nnext"}]
    changed["server"]["reasons"] = ["a\x1b]0;title\x07"]
    shown = msgspec.convert(changed, Now)
    for lines in (frame_lines(shown), drawn(100, 60, shown=shown)):
        assert not {"\x1b", "\x9b", "\x07"}.intersection("\n".join(lines))
        assert "  a?]0;title?" in lines


def test_a_pipeline_without_a_plan_says_why() -> None:
    changed = document()
    changed["pipeline"]["plan"] = {"in_force": False, "reason": "it has no objective"}
    text = "\n".join(frame_lines(msgspec.convert(changed, Now)))
    assert "\ndigits-cascade-1:1: no plan: it has no objective\n" in text
