import csv
import dataclasses
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sluice.loadgen.records.model_statistics import ModelActivity
from sluice.loadgen.records.server_metrics import BatchStatistics, ServerReport
from sluice.loadgen.reports.document import run_json, runs_json
from sluice.loadgen.results.folder import check_folder, write_result
from sluice.loadgen.results.read import read_result, read_results
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.scenarios.config import RunConfig
from sluice.models.errors import ConfigError
from tests.unit.loadgen.results import result_of

CONFIG = RunConfig(
    target="http://host:1",
    model="m",
    rate=1000,
    slo_ms=10,
    warmup_s=0,
    seed=3,
    headers=(("authorization", "secret"),),
    price_per_hour=3.6,
)
STAGE = "a;batch=1;size=2;rows=1;partition=p;queue=1;batch-wait=0;hand-off=1;compute=1;return=0;cost=1e-6"


def result() -> RunResult:
    found = result_of(CONFIG, latency_ms=8, queries=1500, errors=2, late_ms=1)
    found.record.queued_ns[5] = 5_500_000
    found.record.stages = {0: STAGE, 1200: STAGE}
    found.record.count_reason("HTTP 500: broken")
    server = ServerReport(
        (BatchStatistics("m:1", "cpu0", 700, 2.0),),
        models=(ModelActivity("m:1", 1500, 2, 1500, 700, 1.0, 0.5, 4.0, 0.25, ((1, 200), (4, 325))),),
        cost=0.5,
    )
    return dataclasses.replace(
        found,
        server=server,
        client_cpu_us_per_query=12.5,
        client_cpu_share=0.25,
        predictions=np.array([[1], [2]]),
        expected=np.array([[1], [-1]]),
        environment={"python": "3.11"},
        notes=("a note",),
    )


def test_a_result_that_was_written_is_read_again(tmp_path: Path) -> None:
    written = result()
    write_result(written, tmp_path / "out")
    read = read_result(tmp_path / "out")
    assert read.config == msgspec.structs.replace(CONFIG, headers=(("authorization", "********"),))
    assert (read.metrics, read.invalid, read.server) == (written.metrics, written.invalid, written.server)
    assert (read.verdict, read.environment, read.notes) == (written.verdict, written.environment, written.notes)
    assert (read.score, read.client_cpu_share) == (written.score, 0.25)
    assert (read.schedule_digest, read.client_cpu_us_per_query) == (written.schedule_digest, 12.5)
    assert read.record.reasons == {"HTTP 500: broken": 1}
    assert read.record.stages == {0: STAGE, 1200: STAGE}
    for column in ("due_ns", "sample", "stream", "slo_ns", "queued_ns", "sent_ns", "done_ns", "status"):
        before, after = getattr(written.record, column), getattr(read.record, column)
        assert before.dtype == after.dtype
        assert (before == after).all()
    assert read.accuracy == 1.0
    assert read.figures.cost == written.figures.cost
    assert read.figures.stages == written.figures.stages


def test_a_folder_has_every_file_and_no_key_of_a_header(tmp_path: Path) -> None:
    write_result(result(), tmp_path / "deep" / "out")
    files = {file.name: file.read_bytes() for file in (tmp_path / "deep" / "out").iterdir()}
    assert files.keys() == {
        "result.json",
        "requests.npz",
        "timeseries.csv",
        "latency.hdr",
        "report.md",
        "report.html",
    }
    assert not any(b"secret" in content for content in files.values())
    assert json.loads(files["result.json"])["schema_version"] == 1
    lines = list(csv.reader(files["timeseries.csv"].decode().splitlines()))
    assert lines == [
        ["second", "offered", "good", "completed", "failed", "p50_ms", "p99_ms", "outstanding"],
        ["0", "1000", "998", "990", "2", "8.0", "8.0", "8"],
        ["1", "500", "500", "508", "0", "8.0", "8.0", "0"],
    ]
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["out"]


def test_a_result_replaces_an_earlier_one_but_no_other_files(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    write_result(result(), folder)
    (folder / "mlperf_log_summary.txt").write_text("old")
    write_result(result(), folder)
    assert not (folder / "mlperf_log_summary.txt").exists()
    (folder / "thesis.tex").write_text("mine")
    refused = r"out: expected a new or empty folder, or one of a result; it has thesis"
    with pytest.raises(ConfigError, match=refused):
        check_folder(folder)
    with pytest.raises(ConfigError, match=refused):
        write_result(result(), folder)
    assert (folder / "thesis.tex").read_text() == "mine"
    with pytest.raises(ConfigError, match="expected a folder, found a file"):
        check_folder(folder / "thesis.tex")


def test_a_folder_is_not_there_when_a_writer_fails(tmp_path: Path) -> None:
    def fail(result: RunResult, folder: Path) -> None:
        assert (folder / "result.json").exists()
        raise OSError("disk full")

    with pytest.raises(ConfigError, match=r"--out .*/out: cannot be written: disk full"):
        write_result(result(), tmp_path / "out", also=(fail,))
    assert list(tmp_path.iterdir()) == []


def test_other_writers_add_their_files(tmp_path: Path) -> None:
    write_result(result(), tmp_path / "out", also=(lambda _, folder: _write(folder / "mlperf_log_summary.txt"),))
    assert (tmp_path / "out" / "mlperf_log_summary.txt").read_text() == "x"


def _write(file: Path) -> None:
    file.write_text("x")


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("result.json", b"{", r"result.json: not the JSON of a result"),
        ("result.json", b'{"kind": "find-max"}', r"expected the report of a run, got kind 'find-max'"),
        ("result.json", b'{"kind": "run", "schema_version": 99}', r"expected schema version 1, got 99"),
        ("result.json", b'{"kind": "run", "schema_version": 1}', r"not the report of a run: 'validity'"),
        ("requests.npz", b"PK", r"requests.npz: not the queries of a run"),
        ("requests.npz", b"", r"requests.npz: not the queries of a run"),
    ],
)
def test_what_is_no_result_is_refused_with_the_reason(tmp_path: Path, file: str, content: bytes, reason: str) -> None:
    write_result(result(), tmp_path / "out")
    (tmp_path / "out" / file).write_bytes(content)
    with pytest.raises(ConfigError, match=reason):
        read_result(tmp_path / "out")


def test_columns_of_different_lengths_are_refused(tmp_path: Path) -> None:
    write_result(result(), tmp_path / "out")
    file = tmp_path / "out" / "requests.npz"
    columns = dict(np.load(file))
    np.savez(file, **{**columns, "done_ns": columns["done_ns"][:3]})
    with pytest.raises(ConfigError, match="expected columns of one length"):
        read_result(tmp_path / "out")


@pytest.mark.parametrize("key", ["probes", "runs"])
def test_the_runs_of_a_search_are_results_without_queries(tmp_path: Path, key: str) -> None:
    file = tmp_path / "found.json"
    one = result().without_rows()
    report = json.loads(run_json(one))
    file.write_text(json.dumps({"kind": "search", key: [report, report]}))
    found = read_results(file)
    assert [len(each.record) for each in found] == [0, 0]
    assert found[0].metrics == one.metrics
    report["metrics"]["queries"] = "many"
    file.write_text(json.dumps({"kind": "search", key: [report]}))
    with pytest.raises(
        ConfigError, match=rf"found.json: {key}\[0\]: not the report of a run: Expected `int`, got `str`"
    ):
        read_results(file)


def test_several_results_in_one_report_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    file.write_bytes(runs_json([result(), result()]))
    assert [each.metrics for each in read_results(file)] == [result().metrics] * 2


def test_paths_without_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere: expected a folder or the JSON of a result: No such file"):
        read_results(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"result.json: No such file"):
        read_results(tmp_path)
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ConfigError, match="not the JSON of a result"):
        read_results(tmp_path / "list.json")
