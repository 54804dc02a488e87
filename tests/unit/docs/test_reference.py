"""The generated pages of the reference are those that the code gives today."""

import re

import pytest

from scripts.reference.metrics import metric_definitions
from scripts.reference.pages import generated_pages
from sluice.gateway.observability.metrics import ServerMetrics
from tests.support.documents import ROOT

PAGES = generated_pages()


@pytest.mark.parametrize("page", PAGES)
def test_a_generated_page_is_up_to_date(page: str) -> None:
    assert (ROOT / page).read_text(encoding="utf-8") == PAGES[page], "run `make reference`"


def test_every_metric_of_a_server_has_its_definition_on_the_page() -> None:
    metrics = ServerMetrics({"m:1": ["m"]}, ["cpu0"], queues=lambda: [("m:1", 1, 1)], arena_bytes=lambda: 0)
    exposed = dict(re.findall(r"^# HELP (\w+) (.*)$", metrics.exposition().decode(), re.MULTILINE))
    defined = {metric.name: metric.help for metric in metric_definitions()}
    assert {name: text for name, text in exposed.items() if name.startswith("sluice_")}.items() <= defined.items()
    assert all(f"`{name}`" in PAGES["docs/reference/metrics.md"] for name in exposed)
