"""Log and trace settings, and the trace file."""

import errno
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluice.batcher.interface.config import StageConfig
from sluice.batcher.interface.decisions import DispatchBatch, Member, ReleaseReason
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.config.tracing import TraceFileSettings, TraceLevel, TraceMode
from sluice.gateway.observability.log_settings import LogSettings
from sluice.gateway.observability.logs import LogFormat, configure, log
from sluice.gateway.observability.traces.context import NO_TRACE, OVER_HTTP, TraceContext
from sluice.gateway.observability.traces.settings import TraceSettings
from sluice.gateway.observability.traces.trace import BatchTrace, Trace
from sluice.models.errors import RequestError, UnsupportedRequest
from sluice.models.units import NS_PER_S


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, which gets its handlers back."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


def test_log_settings_begin_as_the_process_was_started(root: logging.Logger) -> None:
    configure(LogFormat.JSON, "warning")
    assert LogSettings().get() == {
        "log_file": "",
        "log_info": False,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }


def test_log_settings_change_what_is_written_and_how(
    root: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(LogFormat.TEXT, "info")
    root.handlers[0].setStream(sys.stderr)  # type: ignore[attr-defined]
    settings, logger = LogSettings(), logging.getLogger("some")

    def lines() -> list[str]:
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
            log(logger, level, logging.getLevelName(level))
        return capsys.readouterr().err.splitlines()

    assert [line.split()[-1] for line in lines()] == ["INFO", "WARNING", "ERROR", "CRITICAL"]
    settings.update({"log_warning": False, "log_verbose_level": 2})
    assert [line.split()[-1] for line in lines()] == ["DEBUG", "INFO", "ERROR", "CRITICAL"]
    settings.update({"log_info": False, "log_verbose_level": 0, "log_format": "json"})
    assert [json.loads(line)["event"] for line in lines()] == ["ERROR", "CRITICAL"]
    settings.update({"log_error": False})
    assert lines() == []
    settings.update({"log_error": True, "log_format": "default"})
    assert lines()[0].endswith("error some: ERROR")


def test_a_wrong_log_setting_changes_nothing(root: logging.Logger) -> None:
    settings = LogSettings()
    before = settings.get()
    with pytest.raises(RequestError, match="'log_verbose_level' must be a whole number of at least 0, got -1"):
        settings.update({"log_error": False, "log_verbose_level": -1})
    assert settings.get() == before


def traced(number: int, pipeline: str = "m:1", stages: tuple[StageConfig, ...] = (StageConfig("m", "m:1"),)) -> Trace:
    """A request that came at 100, and was in one batch for each of its stages."""
    trace = Trace(f"r{number}", RequestArrived(number, pipeline, 1, 10_000), 100, stages)
    for index, stage in enumerate(stages):
        begin = 110 + 100 * index
        batch = DispatchBatch(index, "cpu0", str(stage.model), 1, (Member(number, index, 1),), ReleaseReason.IDLE)
        trace.runs += (BatchTrace(batch, begin, begin, begin, begin + 5, begin + 25, begin + 30),)
    trace.outcome, trace.ended_ns = Outcome.COMPLETED, 10 + trace.runs[-1].reported_ns
    return trace


def settings(path: Path | str, rate: int = 1, count: int = -1, log_frequency: int = 0) -> TraceSettings:
    start = TraceFileSettings(str(path), TraceLevel.TIMESTAMPS, rate, count, log_frequency)
    return TraceSettings(start, ["m", "pair"])


def ids(path: Path) -> list[str]:
    return [entry["request_id"] for entry in json.loads(path.read_text())]


def test_the_trace_file_has_the_records_of_triton_and_is_always_complete(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    traces = settings(path)
    traces.ended(traced(1))
    (entry,) = json.loads(path.read_text())
    assert {name: entry[name] for name in ("id", "model_name", "model_version", "request_id", "outcome")} == {
        "id": 1,
        "model_name": "m",
        "model_version": 1,
        "request_id": "r1",
        "outcome": "completed",
    }
    assert [(each["name"], each["ns"]) for each in entry["timestamps"]] == [
        ("REQUEST_START", 100),
        ("QUEUE_START", 100),
        ("COMPUTE_START", 110),
        ("COMPUTE_INPUT_END", 115),
        ("COMPUTE_OUTPUT_START", 135),
        ("COMPUTE_END", 140),
        ("INFER_RESPONSE_COMPLETE", 150),
        ("REQUEST_END", 150),
    ]
    traces.ended(traced(2))
    assert ids(path) == ["r1", "r2"]


def test_the_stages_of_a_pipeline_are_its_children(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    stages = StageConfig("a", "small:1"), StageConfig("b", "large:2", (0,))
    settings(path).ended(traced(1, "pair:1", stages))
    parent, small, large = json.loads(path.read_text())
    assert (parent["model_name"], "parent_id" in parent) == ("pair", False)
    assert (small["model_name"], small["model_version"], small["parent_id"]) == ("small", 1, parent["id"])
    assert (large["model_name"], large["model_version"], large["parent_id"]) == ("large", 2, parent["id"])
    assert large["timestamps"][0] == {"name": "REQUEST_START", "ns": 140}


def test_rate_and_count_say_which_requests_are_traced(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    traces = settings(path, rate=2, count=2)
    for number in range(1, 9):
        traces.ended(traced(number))
    assert ids(path) == ["r2", "r4"]
    traces.update("", {"trace_rate": "1", "trace_count": "1"})
    traces.ended(traced(9))
    traces.ended(traced(10))
    assert ids(path) == ["r2", "r4", "r9"]
    traces.update("m", {"trace_level": ["OFF"], "trace_count": "-1"})
    traces.update("", {"trace_count": None})
    traces.ended(traced(11))
    assert ids(path) == ["r2", "r4", "r9"]


def test_a_log_frequency_begins_a_file_after_that_number_of_traces(tmp_path: Path) -> None:
    traces = settings(tmp_path / "trace.json", log_frequency=2)
    for number in range(1, 4):
        traces.ended(traced(number))
    assert ids(tmp_path / "trace.json.0") == ["r1", "r2"]
    assert ids(tmp_path / "trace.json.1") == ["r3"]


def later(number: int, seconds: float) -> Trace:
    """A request that ended that long after those of `traced`."""
    trace = traced(number)
    trace.ended_ns += int(seconds * NS_PER_S)
    return trace


def test_a_trace_file_that_cannot_be_written_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "vanished" / "trace.json"
    traces = settings(path)
    for number, seconds in (1, 0), (2, 1), (3, 70), (4, 71):
        traces.ended(later(number, seconds))
    (failed,) = caplog.records
    assert failed.message.startswith("the trace file cannot be written; it is tried again every 60 s: [Errno 2]")
    path.parent.mkdir()
    traces.ended(later(5, 72))
    assert not path.exists()
    traces.ended(later(6, 140))
    traces.ended(later(7, 141))
    assert ids(path) == ["r6", "r7"]
    assert caplog.records[1].message == "the trace file is written again; the traces of 5 requests are lost"
    assert len(caplog.records) == 2


def sized(path: Path, max_files: int, log_frequency: int = 0) -> TraceSettings:
    """Trace files in which two or three requests have room."""
    start = TraceFileSettings(str(path), TraceLevel.TIMESTAMPS, 1, -1, log_frequency, 1 << 16, max_files)
    return TraceSettings(start, ["m"])


def large(number: int) -> Trace:
    trace = traced(number)
    trace.client_id = f"r{number}".ljust(30_000, "-")
    return trace


def kept(path: Path) -> dict[str, list[str]]:
    return {each.name: [id.rstrip("-") for id in ids(each)] for each in sorted(path.parent.iterdir())}


def test_trace_files_are_bounded_in_bytes_and_number(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    traces = sized(path, 3)
    for number in range(1, 12):
        traces.ended(large(number))
    assert kept(path) == {"trace.json": ["r11"], "trace.json.3": ["r7", "r8"], "trace.json.4": ["r9", "r10"]}
    assert all(each.stat().st_size <= 1 << 16 for each in tmp_path.iterdir())
    # Those of an earlier server count, and keep their contents until it is their turn.
    traces = sized(path, 3, log_frequency=1)
    traces.ended(traced(12))
    traces.ended(traced(13))
    assert kept(path) == {"trace.json": ["r11"], "trace.json.5": ["r12"], "trace.json.6": ["r13"]}


def test_a_single_trace_file_begins_again_when_it_is_full(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    traces = sized(path, 1)
    for number in range(1, 6):
        traces.ended(large(number))
    assert kept(path) == {"trace.json": ["r5"]}


def test_a_short_write_leaves_the_trace_file_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "trace.json"
    traces = settings(path)
    traces.ended(traced(1))
    free = path.stat().st_size + 100
    write = os.pwrite

    def full_disk(file: int, text: bytes, place: int) -> int:
        if place >= free:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, text[: free - place], place)

    monkeypatch.setattr(os, "pwrite", full_disk)
    traces.ended(traced(2))
    assert "No space left" in caplog.text
    assert ids(path) == ["r1"]
    monkeypatch.undo()
    traces.ended(later(3, 61))
    assert ids(path) == ["r1", "r3"]


def test_a_trace_file_that_somebody_else_empties_or_removes_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    traces = settings(path)
    traces.ended(traced(1))
    path.write_text("")
    traces.ended(traced(2))
    assert ids(path) == ["r2"]
    path.unlink()
    traces.ended(traced(3))
    assert ids(path) == ["r3"]


def test_a_trace_file_that_is_no_file_is_refused_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "pipe")
    for number, place in enumerate(("/dev/full", str(tmp_path / "pipe"), str(tmp_path))):
        settings(place).ended(traced(1))
        assert "the trace file cannot be written" in caplog.records[number].message


@pytest.mark.parametrize(
    ("changes", "kind", "problem"),
    [
        ({"trace_level": ["TENSORS"]}, UnsupportedRequest, "trace level TENSORS is not supported"),
        ({"trace_level": ["OFF", "TIMESTAMPS"]}, RequestError, "must be"),
        ({"trace_level": 3}, RequestError, "must be"),
        ({"trace_rate": "0"}, RequestError, "'trace_rate' must be a whole number from 1 to 2147483647, got '0'"),
        ({"trace_count": "-2"}, RequestError, "'trace_count' must be a whole number from -1"),
        ({"trace_count": True}, RequestError, "got True"),
        ({"log_frequency": "many"}, RequestError, "got 'many'"),
        ({"trace_mode": "opentelemetry"}, UnsupportedRequest, "trace mode can not be updated"),
        ({"colour": "red"}, RequestError, "trace setting 'colour' is unknown; expected one of trace_level"),
    ],
)
def test_a_wrong_trace_setting_changes_nothing(
    tmp_path: Path, changes: dict[str, Any], kind: type[Exception], problem: str
) -> None:
    traces = settings(tmp_path / "trace.json")
    before = traces.get()
    with pytest.raises(kind) as caught:
        traces.update("", {"trace_count": "5"} | changes)
    assert problem in str(caught.value)
    assert traces.get() == before


def spans(rate: int = 0, count: int = -1) -> tuple[TraceSettings, list[Trace]]:
    """Settings in mode opentelemetry, and the requests that are exported."""
    exported: list[Trace] = []
    start = TraceFileSettings(mode=TraceMode.OPENTELEMETRY, rate=rate, count=count)
    return TraceSettings(start, ["m", "pair"], exported.append), exported


def began(traces: TraceSettings, number: int, context: TraceContext = OVER_HTTP, *, is_call: bool = False) -> Trace:
    trace = traced(number)
    trace.arrival = msgspec.structs.replace(trace.arrival, is_call=is_call)
    trace.context = context
    traces.began(trace)
    traces.ended(trace)
    return trace


SAMPLED = TraceContext("1" * 32, "2" * 16, True, "", "http")
UNSAMPLED = msgspec.structs.replace(SAMPLED, sampled=False)


def test_callers_decide_whether_their_traces_are_exported() -> None:
    traces, exported = spans(rate=1)
    assert began(traces, 1, SAMPLED).span_id != 0
    assert began(traces, 2, UNSAMPLED).span_id == 0
    assert [trace.id for trace in exported] == ["r1"]


def test_the_rate_is_for_requests_without_a_context() -> None:
    traces, exported = spans(rate=3, count=2)
    for number in range(1, 13):
        began(traces, number)
    assert [trace.id for trace in exported] == ["r3", "r6"]
    assert all(trace.context.trace_id and not trace.context.parent_id for trace in exported)
    began(traces, 13, SAMPLED)
    assert exported[-1].id == "r13"


def test_rate_0_is_no_request_without_a_context() -> None:
    traces, exported = spans()
    began(traces, 1)
    assert not exported
    with pytest.raises(RequestError, match="'trace_rate' must be a whole number from 0 to 2147483647, got '-1'"):
        traces.update("", {"trace_rate": "-1"})
    traces.update("", {"trace_rate": "1"})
    assert began(traces, 2).span_id


def test_a_call_of_a_model_is_in_the_trace_of_its_caller_or_in_none() -> None:
    traces, exported = spans(rate=1)
    began(traces, 1, NO_TRACE, is_call=True)
    assert not exported
    began(traces, 2, SAMPLED, is_call=True)
    assert len(exported) == 1


def test_the_level_turns_all_off_and_models_have_levels_of_their_own() -> None:
    traces, exported = spans(rate=1)
    traces.update("m", {"trace_level": ["OFF"]})
    began(traces, 1, SAMPLED)
    began(traces, 2)
    assert not exported
    assert traces.get("m")["trace_level"] == ["OFF"]
    assert traces.get()["trace_level"] == ["TIMESTAMPS"]
    assert traces.get()["trace_mode"] == "opentelemetry"


def test_tracing_needs_a_file_from_the_start() -> None:
    traces = TraceSettings(TraceFileSettings(), ["m"])
    with pytest.raises(RequestError, match="TIMESTAMPS needs a trace file, and the server was started without one"):
        traces.update("m", {"trace_level": ["TIMESTAMPS"]})
    traces.update("m", {"trace_level": ["OFF"]})
    traces.ended(traced(1))
