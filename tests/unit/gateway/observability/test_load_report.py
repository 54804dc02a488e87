"""Reports of the load in the formats of ORCA, from a scheduler in virtual time."""

import base64
import json
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import (  # type: ignore[import-untyped]
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped]
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped]

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.observability.load_report import LIFE_NS, LoadFormat, LoadReport, load_format
from sluice.gateway.observability.meters import Meters
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, S, arrival, model, serving, single, spec_of, step


class Server:
    """A scheduler with three requests, of which one runs, and the counts of half a second."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.scheduler = serving(spec_of([model("m:1", 1)], [single("m:1")]), LatencyTable.from_ms({1: 10}))
        self.meters = Meters({"m:1": ["m"]}, ["cpu0", "cpu1"])
        self.headrooms: dict[str, float] = {"m:1": 2.5, "n:1": 4.0}
        self.report = LoadReport(self.scheduler, self.meters, lambda: 3, lambda: self.headrooms, lambda: self.now_ns)
        step(self.scheduler, 0, *(arrival(number, S, "m:1") for number in range(3)))
        self.meters.busy_ns["cpu0"] = 400 * MS
        for outcome in [Outcome.COMPLETED] * 80 + [Outcome.REJECTED_DEADLINE] * 20:
            self.meters.pipeline("m:1").request_ended(outcome, MS)
        self.now_ns = 500 * MS


FIELDS = {"application_utilization": 0.4, "rps_fractional": 200.0, "eps": 40.0}


def test_text_has_the_fields_and_named_metrics() -> None:
    name, value = Server().report.header(LoadFormat.TEXT)
    assert name == "endpoint-load-metrics"
    assert value.startswith("TEXT application_utilization=0.4, rps_fractional=200.0, eps=40.0, utilization.cpu0=0.8, ")
    named = dict(each.split("=") for each in value.removeprefix("TEXT ").split(", "))
    assert named["named_metrics.in_flight_requests"] == "3.0"
    assert float(named["named_metrics.queue_requests"]) in (1, 2)
    assert named["named_metrics.headroom"] == "2.5"


def test_json_has_the_same() -> None:
    server = Server()
    server.headrooms = {}
    value = server.report.header(LoadFormat.JSON)[1]
    document = json.loads(value.removeprefix("JSON "))
    assert {name: document[name] for name in FIELDS} == FIELDS
    assert document["utilization"] == {"cpu0": 0.8, "cpu1": 0.0}
    assert document["named_metrics"].keys() == {"in_flight_requests", "queue_requests"}


def test_the_message_is_one_of_xds() -> None:
    report = Server().report
    (name, value) = report.header(LoadFormat.BINARY)
    assert name == "endpoint-load-metrics-bin"
    assert report.metadata(LoadFormat.BINARY) == [(name, base64.b64decode(value))]
    assert [each for each, _ in report.metadata(LoadFormat.JSON)] == ["endpoint-load-metrics", name]
    message = _message().FromString(base64.b64decode(value))
    assert {field: getattr(message, field) for field in FIELDS} == FIELDS
    assert dict(message.utilization) == {"cpu0": 0.8, "cpu1": 0.0}
    assert message.named_metrics["headroom"] == 2.5


def test_reports_are_renewed_after_their_life_from_what_came_since() -> None:
    server = Server()
    first = server.report.header(LoadFormat.TEXT)
    server.now_ns += LIFE_NS - 1
    assert server.report.header(LoadFormat.TEXT) == first
    server.now_ns += 1
    later = server.report.header(LoadFormat.TEXT)[1]
    assert "application_utilization=0.0, rps_fractional=0.0, eps=0.0" in later


def test_a_pipeline_that_gets_other_stages_has_no_negative_rate() -> None:
    server = Server()
    server.report.header(LoadFormat.TEXT)
    server.meters.serve("m:1", ["m", "another"])
    server.now_ns += LIFE_NS
    assert "rps_fractional=0.0, eps=0.0" in server.report.header(LoadFormat.TEXT)[1]


@pytest.mark.parametrize(("asked", "form"), [("text", LoadFormat.TEXT), (" JSON", LoadFormat.JSON), ("xml", None)])
def test_formats_that_are_not_known_get_no_report(asked: str, form: LoadFormat | None) -> None:
    assert load_format(asked) is form


def _message() -> Any:
    """The message OrcaLoadReport, with the numbers of its fields in xds."""
    file = FileDescriptorProto(name="orca.proto", package="orca", syntax="proto3")
    report = file.message_type.add(name="OrcaLoadReport")
    for number, name in ((6, "rps_fractional"), (7, "eps"), (9, "application_utilization")):
        report.field.add(name=name, number=number, type=FieldDescriptorProto.TYPE_DOUBLE, label=1)
    for number, name, entry in ((5, "utilization", "UtilizationEntry"), (8, "named_metrics", "NamedMetricsEntry")):
        kind = report.nested_type.add(name=entry)
        kind.options.map_entry = True
        kind.field.add(name="key", number=1, type=FieldDescriptorProto.TYPE_STRING, label=1)
        kind.field.add(name="value", number=2, type=FieldDescriptorProto.TYPE_DOUBLE, label=1)
        report.field.add(
            name=name,
            number=number,
            type=FieldDescriptorProto.TYPE_MESSAGE,
            label=3,
            type_name=f".orca.OrcaLoadReport.{entry}",
        )
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("orca.OrcaLoadReport"))
