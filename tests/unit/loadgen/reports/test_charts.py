import re

import numpy as np
import pytest

from sluice.loadgen.reports.charts import Axis, Chart, legend, linear_axis, log_axis, tail_axis


@pytest.mark.parametrize(
    ("high", "ticks"),
    [
        (100, ["0", "25", "50", "75", "100"]),
        (121, ["0", "50", "100", "150"]),
        (0.03, ["0", "0.01", "0.02", "0.03"]),
        (9003, ["0", "2\u202f500", "5\u202f000", "7\u202f500", "10\u202f000"]),
        (0, ["0", "2.5e-10", "5e-10", "7.5e-10", "1e-09"]),
    ],
)
def test_linear_scales_end_at_round_numbers(high: float, ticks: list[str]) -> None:
    axis = linear_axis(high)
    assert [text for _, text in axis.ticks] == ticks
    assert axis.high >= high


@pytest.mark.parametrize(
    ("low", "high", "ends"),
    [(0.4, 85, (0.3, 100)), (1, 1, (1, 10)), (3, 30, (3, 30)), (0, 5, (1e-6, 10)), (2.9, 1000, (1, 1000))],
)
def test_logarithmic_scales_enclose_their_values(low: float, high: float, ends: tuple[float, float]) -> None:
    axis = log_axis(low, high)
    assert (axis.low, axis.high) == pytest.approx(ends)
    assert 2 <= len(axis.ticks) <= 7


def test_each_nine_of_the_tail_has_the_same_room() -> None:
    axis = tail_axis(10_000)
    assert [text for _, text in axis.ticks] == ["50 %", "90 %", "99 %", "99.9 %", "99.99 %"]
    assert axis.place([value for value, _ in axis.ticks[1:]]).tolist() == [0.25, 0.5, 0.75, 1.0]


def chart() -> Chart:
    return Chart(Axis(0, 10, ((0, "0"), (10, "<10>"))), Axis(0, 100, ()), 'a "chart"', "ms")


def test_lines_stop_where_a_value_is_unknown() -> None:
    one = chart()
    one.line([0, 5, 6, 10], [0, 50, np.nan, 100], "good")
    one.band([0, 5, 6, 10], [0, 0, 0, 0], [10, 20, np.nan, 40], "soft")
    paths = re.findall(r'class="(?:curve|area) \w+" d="([^"]*)"', one.html())
    assert paths == [
        "M0.0 1000.0h0L500.0 500.0M1000.0 0.0h0",
        "M0.0 900.0L500.0 800.0L500.0 1000.0L0.0 1000.0ZM1000.0 600.0L1000.0 1000.0Z",
    ]


def test_steps_go_right_before_they_rise() -> None:
    one = chart()
    one.line([0, 5], [0, 100], "good", steps=True)
    assert 'd="M0.0 1000.0h0L500.0 1000.0L500.0 0.0"' in one.html()


def test_texts_are_escaped() -> None:
    one = chart()
    one.dots([1], [1], "good", ["<script>"])
    one.bar(0, 0.5, 50, "good", "a & b")
    html = one.html() + legend([("good", "<b>")])
    assert "<script>" not in html
    assert "&lt;10&gt;" in html
    assert "a &amp; b" in html
    assert 'aria-label="a &quot;chart&quot;"' in html
    assert "&lt;b&gt;" in html


def test_values_beyond_the_scale_stay_in_the_chart() -> None:
    assert Axis(1, 100, (), is_log=True).place([0, 1, 10, 100, 1000]).tolist() == [0, 0, 0.5, 1, 1]
