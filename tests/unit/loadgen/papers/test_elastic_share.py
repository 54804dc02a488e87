import pytest

from loadgen import cli
from loadgen.papers.elastic_share import PAUSING, STEADY, cases, table
from loadgen.papers.shared_device import Cap, Job, grants, run


def test_hard_shares_take_as_long_as_they_are_small() -> None:
    shared = run(Cap.HARD, STEADY)
    assert shared.end_s == pytest.approx({"0.1": 10.0, "0.9": 1 / 0.9})
    assert shared.utilisation == pytest.approx(0.2)


def test_elastic_shares_give_what_is_idle_and_keep_what_is_promised() -> None:
    shared, hard = run(Cap.ELASTIC, STEADY), run(Cap.HARD, STEADY)
    assert shared.end_s["0.1"] / hard.end_s["0.1"] - 1 == pytest.approx(-0.80, abs=0.02)
    assert shared.end_s["0.9"] / hard.end_s["0.9"] - 1 <= 0.15
    assert shared.end_s == pytest.approx({"0.1": 2.0, "0.9": 1 / 0.9})
    assert shared.utilisation - hard.utilisation >= 0.735


def test_without_caps_the_large_share_is_not_kept() -> None:
    assert run(Cap.UNCAPPED, STEADY).end_s == pytest.approx({"0.1": 2.0, "0.9": 2.0})


@pytest.mark.parametrize("interval_s", [0.001, 0.01, 0.02])
def test_who_lends_its_pauses_loses_little(interval_s: float) -> None:
    shared, hard = run(Cap.ELASTIC, PAUSING, interval_s), run(Cap.HARD, PAUSING)
    assert shared.end_s["0.1"] / hard.end_s["0.1"] - 1 == pytest.approx(-0.80, abs=0.02)
    assert shared.end_s["0.9"] / hard.end_s["0.9"] - 1 <= 0.15


def test_who_lends_its_pauses_loses_more_when_grants_change_as_late_as_they_end() -> None:
    shared, hard = run(Cap.ELASTIC, PAUSING, interval_s=0.05), run(Cap.HARD, PAUSING)
    assert shared.end_s["0.9"] / hard.end_s["0.9"] - 1 == pytest.approx(0.358, abs=0.001)


@pytest.mark.parametrize("cap", [Cap.HARD, Cap.UNCAPPED])
def test_grants_that_are_not_elastic_do_not_wait_for_a_change(cap: Cap) -> None:
    assert run(cap, PAUSING, interval_s=0.05) == run(cap, PAUSING)


def test_whoever_comes_back_where_nobody_ran_has_its_share() -> None:
    # Both pause at the change at 1 s: "a" goes on at 1.1 s and "b" at 1.5 s, with a half each till "b" has all at 2 s.
    jobs = (Job("a", 0.5, 0.4, bursts=2, pause_s=0.3), Job("b", 0.5, 0.4, bursts=2, pause_s=0.7))
    assert run(Cap.ELASTIC, jobs, interval_s=1.0).end_s == pytest.approx({"a": 1.9, "b": 2.15})


def test_whoever_comes_back_has_what_is_left_till_grants_change() -> None:
    # "b" pauses from 1 s to 1.5 s; "a", granted all of the device at 1 s, keeps it till 2 s.
    jobs = (Job("a", 0.5, 1.6), Job("b", 0.5, 0.5, bursts=2, pause_s=0.5))
    assert run(Cap.ELASTIC, jobs, interval_s=1.0).end_s == pytest.approx({"a": 2.2, "b": 3.0})


@pytest.mark.parametrize(
    ("cap", "expected"),
    [
        (Cap.HARD, {"a": 0.2, "b": 0.3}),
        (Cap.ELASTIC, {"a": 0.4, "b": 0.6}),
        (Cap.UNCAPPED, {"a": 0.5, "b": 0.5}),
    ],
)
def test_grants(cap: Cap, expected: dict[str, float]) -> None:
    assert grants(cap, [Job("a", 0.2, 1), Job("b", 0.3, 1)]) == pytest.approx(expected)


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["paper", "shares"]) == 0
    line = "| both steady | at once | hard | 10.00 | +0.0% | 1.11 | +0.0% | 20% |"
    assert line in capsys.readouterr().out.splitlines()


def test_the_table_has_a_line_for_each_cap() -> None:
    lines = table(cases()).splitlines()
    assert lines[3] == "| both steady | at once | elastic | 2.00 | -80.0% | 1.11 | +0.0% | 100% |"
    assert {line.count("|") for line in lines} == {9}
