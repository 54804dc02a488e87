"""The page of papers has its figures from the page of experiments."""

import pytest

from scripts.reference import papers

EXPERIMENTS = """# Experiments

## esg: planners

Source: a paper.

| figure | published | ours | gate | verdict |
|---|---|---|---|---|
| in time, light | 36 points | +42.2 points | at least 30 | met |
| in time, heavy |  | 57.6% | at most 3 under | missed |
| cost |  | 0.381 |  |  |

| cell | esg |
|---|---|
| light | 1 |

## shares: two jobs

| figure | published | ours | gate | verdict |
|---|---|---|---|---|
| time | -80 % | -80.0% | to within 2 points | met |
"""


def page(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, template: str) -> str:
    folder = tmp_path_factory.mktemp("papers")
    for name, text in {"_TEMPLATE": template, "_EXPERIMENTS": EXPERIMENTS}.items():
        path = folder / f"{name}.md"
        path.write_text(text, encoding="utf-8")
        monkeypatch.setattr(papers, name, path)
    return papers.papers_page()


def test_figures_and_verdicts_stand_in_their_places(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    template = "| {{esg: in time, light}} at {{esg: cost}} ({{esg}}) | {{shares: time}} ({{shares}}) |"
    assert page(monkeypatch, tmp_path_factory, template) == (
        "| +42.2 points at 0.381 (1 of 2 gates missed) | -80.0% (met) |"
    )


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("{{knix: time}}", r"the experiment 'knix' is not in _EXPERIMENTS\.md; expected esg, shares"),
        ("{{esg: in time}}", "esg: expected one figure that begins with 'in time', got 2"),
        ("{{shares: cost}}", "shares: expected one figure that begins with 'cost', got 0"),
    ],
)
def test_a_figure_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, place: str, error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        page(monkeypatch, tmp_path_factory, place)
