from xml.etree import ElementTree

import pytest

from sluice.loadgen.papers.experiment import Plot
from sluice.loadgen.papers.report.plot_svg import plot_svg

SVG = "{http://www.w3.org/2000/svg}"


def drawing(plot: Plot) -> ElementTree.Element:
    return ElementTree.fromstring(plot_svg(plot))


def test_a_point_is_placed_by_the_ticks_beside_it() -> None:
    root = drawing(Plot("a", "A", "x", "y", (("one", ((0.0, 0.0), (50.0, 20.0), (100.0, 40.0))),)))
    circles = [(float(each.attrib["cx"]), float(each.attrib["cy"])) for each in root.iter(f"{SVG}circle")]
    ticks = {each.text: each.attrib for each in root.iter(f"{SVG}text")}
    assert circles[1][0] == pytest.approx(float(ticks["50"]["x"]))
    assert circles[1][1] == pytest.approx(float(ticks["20"]["y"]) - 4)
    assert circles[1][0] * 2 == pytest.approx(circles[0][0] + circles[2][0])


def test_bars_stand_in_their_groups_from_nothing_upwards() -> None:
    plot = Plot("b", "B", "cell", "%", (("x", ((0, 50.0), (1, 100.0))), ("y", ((0, 100.0),))), groups=("low", "high"))
    bars = [each for each in drawing(plot).iter(f"{SVG}rect") if each.attrib["class"].startswith("mark")]
    (first, second, third) = [(float(each.attrib["x"]), float(each.attrib["height"])) for each in bars]
    assert second[1] == pytest.approx(2 * first[1], abs=0.2)
    assert third[1] == second[1]
    assert first[0] < third[0] < second[0]


def test_names_of_many_groups_take_two_lines_where_one_would_run_into_the_next() -> None:
    groups = tuple(f"{number}-moderate-normal" for number in range(9))
    texts = [each.text for each in drawing(Plot("d", "D", "cell", "%", (), groups=groups)).iter(f"{SVG}text")]
    assert {"8-", "moderate-normal"} <= set(texts)
    few = [each.text for each in drawing(Plot("d", "D", "cell", "%", (), groups=groups[:2])).iter(f"{SVG}text")]
    assert set(groups[:2]) <= set(few)


def test_points_far_apart_lie_evenly_on_a_logarithmic_axis() -> None:
    root = drawing(Plot("c", "C", "x", "y", (("one", ((1.0, 1.0), (10.0, 1.0), (100.0, 1.0))),), log_x=True))
    first, middle, last = (float(each.attrib["cx"]) for each in root.iter(f"{SVG}circle"))
    assert middle * 2 == pytest.approx(first + last, abs=0.2)


def test_values_far_apart_lie_evenly_on_a_logarithmic_axis() -> None:
    root = drawing(Plot("c", "C", "x", "y", (("one", ((1.0, 1.0), (2.0, 10.0), (3.0, 100.0))),), log_y=True))
    first, middle, last = (float(each.attrib["cy"]) for each in root.iter(f"{SVG}circle"))
    assert middle * 2 == pytest.approx(first + last, abs=0.2)
    assert first > last


def test_a_legend_that_would_only_repeat_the_label_of_the_axis_is_left_out() -> None:
    for label, count in (("y", 1), ("one", 2)):
        root = drawing(Plot("a", "A", "x", "y", ((label, ((0.0, 1.0),)),)))
        assert [each.text in ("y", label) for each in root.iter(f"{SVG}text")].count(True) == count


@pytest.mark.parametrize("points", [(), ((5.0, 0.0),), ((1.0, -3.0), (2.0, 3.0))])
def test_few_points_and_negative_ones_are_drawn_as_well(points: tuple[tuple[float, float], ...]) -> None:
    root = drawing(Plot("d", "D", "x", "y", (("one", points),)))
    assert len(list(root.iter(f"{SVG}circle"))) == len(points)


def test_the_figure_of_the_paper_stands_under_the_plot() -> None:
    for beside, texts in (("Figure 6.4", ["beside Figure 6.4"]), ("", [])):
        root = drawing(Plot("e", "E", "x", "y", (("y", ((0.0, 1.0),)),), beside=beside))
        assert [each.text for each in root.iter(f"{SVG}text") if (each.text or "").startswith("beside")] == texts
