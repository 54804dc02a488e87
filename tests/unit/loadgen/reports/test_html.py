import dataclasses
import html.parser
import re

import msgspec
import numpy as np
import pytest

from sluice.loadgen.records.model_statistics import ModelActivity
from sluice.loadgen.records.server_metrics import ServerReport
from sluice.loadgen.reports.html import run_page
from sluice.loadgen.reports.markdown import run_markdown, runs_markdown
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.scenarios.config import RunConfig, ScenarioName
from tests.unit.loadgen.results import MS, result_of

CONFIG = RunConfig(target="http://host:1", model="<m>|x", rate=1000, slo_ms=10, warmup_s=0)
STAGE = "first;batch=1;size=2;rows=1;partition=p;queue=3;batch-wait=2;hand-off=1;compute=1;return=0;cost=0"
VOID = {"meta", "path", "rect", "br", "i", "tr", "td", "th", "thead", "tbody"}


class Reader(html.parser.HTMLParser):
    """Collects texts and attributes, and checks that elements are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def whole() -> RunResult:
    result = result_of(CONFIG, latency_ms=8, queries=3000, errors=5, late_ms=1)
    result.record.stages = {7: STAGE}
    result.record.count_reason("HTTP 500: <oops>")
    model = ModelActivity("mlp:1", 3000, 0, 3000, 1500, 1, 1, 1, 1, ((1, 500), (4, 625)))
    return dataclasses.replace(result, server=ServerReport(models=(model,)), notes=("only a <note>",))


def test_a_page_loads_nothing_and_runs_nothing() -> None:
    reader = read(run_page([whole()]))
    tags = {tag for tag, _, _ in reader.attributes}
    assert tags.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "source", "image", "use"})
    assert not any(
        name in {"src", "href", "srcset", "data"} or name.startswith("on") for _, name, _ in reader.attributes
    )
    assert not re.search(r"url\(|@import", run_page([whole()]))


def test_a_page_says_the_verdict_in_words_and_has_every_chart() -> None:
    reader = read(run_page([whole()]))
    text = " ".join(reader.texts)
    assert "Objective met" in text
    assert "99.83 % of 3\u202f000 queries were answered within 10 ms; 99 % had to be." in text
    assert "only a <note>" in text
    assert "HTTP 500: <oops>" in text
    labels = {value for _, name, value in reader.attributes if name == "aria-label"}
    assert labels == {
        "Latency from due by percentile, up to 8 ms",
        "Queries a second over the run",
        "Latency from due over the run",
        "Queries outstanding at the end of each second",
        "Largest lateness of the client",
        "Batch sizes of mlp:1",
    }
    styles = [value for _, name, value in reader.attributes if name == "style" and value and value.startswith("width")]
    assert styles == ["width:20.00%", "width:40.00%", "width:20.00%", "width:20.00%"]


@pytest.mark.parametrize("queries", [1, 2, 460])
def test_short_runs_have_a_page_too(queries: int) -> None:
    read(run_page([result_of(CONFIG, latency_ms=12, queries=queries)]))


def test_a_run_without_an_answer_has_a_page_too() -> None:
    text = " ".join(read(run_page([result_of(CONFIG, latency_ms=1, queries=500, errors=500)])).texts)
    assert "Objective missed" in text
    assert "No query was answered." in text


def test_queries_that_are_due_at_once_have_the_rate_of_their_answers() -> None:
    result = result_of(msgspec.structs.replace(CONFIG, scenario=ScenarioName.OFFLINE, slo_ms=None), 8, queries=3000)
    result.record.due_ns[:] = 0
    text = " ".join(read(run_page([result])).texts)
    assert "answered" in text.split("Queries a second")[1]
    assert "Latency by second" not in text
    assert "Lateness of the client" not in text.split("Circumstances")[0]


def test_invalid_runs_are_counted_apart() -> None:
    short, long = (result_of(CONFIG, latency_ms=5, queries=queries) for queries in (300, 2000))
    assert "1 of 2 runs met their objective; 1 of them says nothing about the target." in " ".join(
        read(run_page([short, long])).texts
    )


def test_several_runs_are_compared() -> None:
    slow, fast = (result_of(CONFIG, latency_ms=latency, queries=2000) for latency in (30, 5))
    reader = read(run_page([fast, slow]))
    text = " ".join(reader.texts)
    assert "1 of 2 runs met their objective." in text
    labels = [value for _, name, value in reader.attributes if name == "aria-label"]
    assert labels[:2] == ["Latency against rate", "Goodput against offered rate"]


def test_a_long_run_has_a_page_of_a_bounded_size_that_shows_its_worst_second() -> None:
    result = result_of(CONFIG, latency_ms=8, queries=400_000)
    record = result.record
    record.due_ns[:] = np.arange(400_000) * 10 * MS  # 4000 s
    record.done_ns[:] = record.due_ns + 8 * MS
    record.done_ns[300_000] += 900 * MS
    page = run_page([result])
    assert len(page) < 400_000
    assert "Latency from due by percentile, up to 908 ms" in page


def test_markdown_has_tables_whose_cells_are_escaped() -> None:
    lines = run_markdown(whole()).splitlines()
    assert lines[0] == "# Objective met: <m>\\|x"
    assert "| HTTP 500: <oops> | 1 |" in lines
    assert "| first on p | 100 % | 1.000 | 2.000 | 1.000 | 1.000 | 0.000 | 5.000 | 2.00 |" in lines
    assert "| mlp:1 | 3\u202f000 | 1\u202f500 | 2.00 | 3.50 | 1.000 | 1.000 | 1.000 | 1.000 |" in lines
    assert "Confidence intervals: none; they take 200 s after the warm-up." in lines
    assert runs_markdown([whole(), whole()]).count("# Objective met") == 2
