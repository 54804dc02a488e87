import pytest

from sluice.loadgen.records.stage_times import StageTimes, stage_times

FIRST = (
    "first;batch=1;size=4;rows=1;partition=cpu0"
    ";queue=3.000;batch-wait=2.000;hand-off=0.500;compute=6.000;return=0.250;cost=2e-07"
)
SECOND = (
    "second%20one;batch=2;size=1;rows=1;partition=mps-20;queue=0;batch-wait=0;hand-off=1;compute=8;return=1;cost=1e-06"
)


def test_times_are_means_of_the_queries_that_reached_the_stage() -> None:
    other = "first;batch=3;size=8;rows=1;partition=cpu0;queue=1;batch-wait=0;hand-off=1.5;compute=2;return=0.75;cost=0"
    first, second = stage_times([f"{FIRST}, {SECOND}", other])
    assert first == StageTimes("first", "cpu0", 2, 1.0, 1.0, 1.0, 4.0, 0.5, 6.0, 1e-07)
    assert first.total_ms == 7.5
    assert second == StageTimes("second one", "mps-20", 1, 0.0, 0.0, 1.0, 8.0, 1.0, 1.0, 1e-06)


def test_a_server_that_does_not_tell_the_waits_apart_has_its_whole_queue_and_hand_off() -> None:
    older = "mlp;batch=3;size=3;rows=1;partition=cpu0;queue=2.000;hand-off=0.750;compute=1.750;cost=1e-08"
    assert stage_times([older]) == (StageTimes("mlp", "cpu0", 1, 2.0, 0.0, 0.75, 1.75, 0.0, 3.0, 1e-08),)


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", f"{FIRST};failed=backend", FIRST[:60] + "...", f"{FIRST}, ...", FIRST.replace("3.000", "soon")],
)
def test_what_has_no_figures_is_left_out(text: str) -> None:
    assert [each.stage for each in stage_times([text])] == (["first"] if text.endswith(", ...") else [])
