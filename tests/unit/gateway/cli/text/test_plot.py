from sluice.gateway.cli.text.plot import plot


def test_points_lines_axes_and_legend() -> None:
    text = plot(
        {"p50": [(1, 0), (3, 2), (5, 4)], "p99": [(1, 4), (5, 4)]}, width=9, height=5, x_label="batch", y_label="ms"
    )
    assert text.splitlines() == [
        "ms",
        "4 |x.......x",
        "  |      .",
        "2 |   .o.",
        "  |  .",
        "0 |o.",
        "  +---------",
        "   1 batch 5",
        "   o p50   x p99",
    ]


def test_a_scatter_plot_has_no_lines() -> None:
    assert plot({"": [(0, 0), (8, 2)]}, width=9, height=3, lines=False).splitlines() == [
        "2 |        o",
        "1 |",
        "0 |o",
        "  +---------",
        "   0       8",
    ]


def test_a_logarithmic_axis_leaves_out_what_it_cannot_show() -> None:
    text = plot({"a": [(0, 1), (1, 1), (10, 1), (100, 2)]}, width=9, height=2, log_x=True, lines=False)
    assert text.splitlines()[:2] == ["2 |        o", "1 |o   o"]


def test_one_point_and_none() -> None:
    assert plot({"a": [(3, 7)]}, width=3, height=2, lines=False).splitlines()[-3:] == ["  +---", "   3  ", "   o a"]
    assert plot({"a": []}) == "(nothing to plot)"
    assert plot({"a": [(0, 1), (float("nan"), 2)]}, log_x=True) == "(nothing to plot)"


def test_a_step_function_keeps_its_value_up_to_the_next_point() -> None:
    text = plot({"front": [(0, 4), (4, 2), (8, 0)]}, width=9, height=5, steps=True)
    assert text.splitlines()[:5] == ["4 |o....", "  |    .", "2 |    o....", "  |        .", "0 |        o"]
