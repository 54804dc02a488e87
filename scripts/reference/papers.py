"""The page of papers: its template, with the figures of the last run of all experiments."""

import re
from collections.abc import Mapping
from pathlib import Path

_TEMPLATE = Path(__file__).with_name("papers.md.in")
_EXPERIMENTS = Path(__file__).parents[2] / "docs/evidence/experiments.md"
_PLACE = re.compile(r"\{\{([a-z-]+)(?:: ([^{}]+))?\}\}")
_ROW = re.compile(r"\| (?P<figure>.+) \| (?P<published>.*) \| (?P<ours>.*) \| (?P<gate>.*) \| (?P<verdict>.*) \|")
_HEAD = "| figure | published | ours | gate | verdict |\n|---|---|---|---|---|\n"


def papers_page() -> str:
    """The template where `{{experiment: figure}}` is our value of a figure, and `{{experiment}}` a verdict.

    A figure is named by how it begins. Raises ValueError for one that the page of experiments does not have.
    """
    experiments = findings(_EXPERIMENTS.read_text(encoding="utf-8"))
    return _PLACE.sub(lambda place: _value(experiments, *place.groups()), _TEMPLATE.read_text(encoding="utf-8"))


def findings(page: str) -> dict[str, dict[str, tuple[str, str]]]:
    """Our value and the verdict of each figure, by the experiments of a page that `loadgen paper run` wrote."""
    found = {}
    for section in page.split("\n## ")[1:]:
        table = section.partition(_HEAD)[2].partition("\n\n")[0]
        rows = [row for line in table.splitlines() if (row := _ROW.fullmatch(line))]
        found[section.partition(":")[0]] = {row["figure"]: (row["ours"], row["verdict"]) for row in rows}
    return found


def _value(experiments: Mapping[str, Mapping[str, tuple[str, str]]], name: str, figure: str | None) -> str:
    if name not in experiments:
        raise ValueError(f"the experiment '{name}' is not in {_EXPERIMENTS.name}; expected {', '.join(experiments)}")
    if figure is None:
        verdicts = [verdict for _, verdict in experiments[name].values()]
        gates, missed = len(verdicts) - verdicts.count(""), verdicts.count("missed")
        return f"{missed} of {gates} gates missed" if missed else "met"
    values = [ours for quantity, (ours, _) in experiments[name].items() if quantity.startswith(figure)]
    if len(values) != 1:
        raise ValueError(f"{name}: expected one figure that begins with '{figure}', got {len(values)}")
    return values[0]
