"""The page of papers: its modules and tests are there, and every experiment is named."""

import re

import pytest

from sluice.loadgen.papers.experiment import find_experiments
from tests.support.documents import ROOT

TEXT = (ROOT / "docs/evidence/papers.md").read_text(encoding="utf-8")
COLUMNS = ["system", "idea taken", "module", "test", "published", "measured"]


def table() -> list[list[str]]:
    """The rows of the first table, its head first."""
    lines = TEXT[: TEXT.index("\n## ")].splitlines()
    return [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in lines if re.match(r"\| ?[^-]", line)]


ROWS = table()[1:]


def paths_of(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_table_has_its_columns_and_more_than_a_few_rows() -> None:
    assert table()[0] == COLUMNS
    assert len(ROWS) > 40
    assert len({row[0] + row[1] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:40] for row in ROWS])
def test_the_modules_and_the_tests_of_an_idea_exist(row: list[str]) -> None:
    _, _, module, test, *_ = row
    assert paths_of(module)
    assert paths_of(test)
    assert [path for path in paths_of(module) + paths_of(test) if not (ROOT / path).exists()] == []
    assert all(path.startswith(("tests/", "benchmarks/")) for path in paths_of(test))


def test_every_experiment_is_named_and_every_named_one_exists() -> None:
    names = {experiment.name for experiment in find_experiments()}
    runs = re.findall(r"`loadgen paper run ([a-z][a-z -]*)`((?:, `[a-z-]+`)*)", TEXT)
    named = {name for first, others in runs for name in [*first.split(), *re.findall(r"[a-z-]+", others)]} - {"all"}
    named |= set(re.findall(r"(?m)^\*\*`([a-z-]+)`\*\*", TEXT))
    assert named == names
