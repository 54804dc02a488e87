"""The document, of a server that a test plays."""

from typing import Any

import msgspec
import orjson
import pytest

from sluice.batcher.interface.events import PartitionLost, PartitionReady, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.deployment.registry import UNLOADED, VersionStatus
from sluice.gateway.observability.traces.trace import Trace
from sluice.gateway.overview.document import MAX_BYTES, Question
from sluice.gateway.overview.sampled import MAX_PIPELINES
from sluice.gateway.partitions.inventory import ProcessDetails
from sluice.models.pipelines.pipeline import Combiner, Pipeline, Stage, TensorSource, When
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.repository.scan import BrokenEntry
from sluice.models.units import NS_PER_S, ms_to_ns
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import CpuPartition
from sluice.mps.supervisor.quarantine import Quarantined
from tests.support.gateway.overview import DAY_NS, PlayedServer, scheduled

DAY_S = DAY_NS // NS_PER_S


def source(stage: str) -> dict[str, TensorSource]:
    return {"x": TensorSource(stage, "x")}


def model(name: str, slo_ms: float | None = None) -> Pipeline:
    stages = (Stage(name, source("request"), model=f"{name}:1"),)
    return Pipeline(name, 1, (), (), stages, {"y": (TensorSource(name, "y"),)}, 8, slo_ms)


def cascade(name: str = "both", small: str = "small", large: str = "large", slo_ms: float | None = 50) -> Pipeline:
    stages = (
        Stage("first", source("request"), model=f"{small}:1"),
        Stage("second", source("request"), model=f"{large}:1", when=When("first", "probs", 0.9)),
    )
    outputs: dict[str, tuple[TensorSource, ...]] = {"y": (TensorSource("second", "y"), TensorSource("first", "y"))}
    return Pipeline(name, 1, (), (), stages, outputs, 8, slo_ms)


def two_stages(name: str, *stages: Stage) -> str:
    server = PlayedServer(Pipeline(name, 1, (), (), stages, {}, 8))
    kind: str = server.document()["pipeline"]["kind"]
    return kind


def served() -> PlayedServer:
    return PlayedServer(cascade(), model("small"), model("large"), partitions=("cpu0", "cpu1"))


def missed(server: PlayedServer, number: int, outcome: Outcome = Outcome.COMPLETED_LATE) -> None:
    arrival = RequestArrived(number, "both:1", 1, ms_to_ns(50))
    trace = Trace("", arrival, 0, scheduled(cascade()).stages, (), outcome, "why", ms_to_ns(61.4))
    server.traces.add_missed(trace)


def test_the_first_document_knows_no_rates_yet() -> None:
    server = served()
    found = server.document()
    assert found["server"] == {
        "name": "sluice",
        "version": "1.2.3",
        "compiled": found["server"]["compiled"],
        "now_s": DAY_S,
        "started_s": DAY_S,
        "tick_s": 1.0,
        "state": "ready",
        "reasons": [],
        "front_ends": 0,
        "currency": "",
    }
    assert found["totals"] == {
        "requests_per_s": None,
        "in_time": None,
        "p50_ms": None,
        "p99_ms": None,
        "late_per_s": None,
        "refused_per_s": None,
        "failed_per_s": None,
        "cancelled_per_s": None,
        "cost_per_1000_good": None,
        "in_flight": 3,
        "queued_rows": 0,
    }
    assert found["pipeline"]["history"]["good"] == []


def test_rates_and_quantiles_are_those_of_the_last_ten_seconds() -> None:
    server = served()
    server.meters.pipelines["both:1"].stage_ran(0, 0, 0.5)
    for _ in range(12):
        server.end("both:1", Outcome.COMPLETED, 98, ms=3)
        server.end("both:1", Outcome.COMPLETED_LATE, 1, ms=60)
        server.end("both:1", Outcome.REJECTED_COST, 1)
        server.tick()
    found = server.document()
    assert found["totals"] == {
        "requests_per_s": 100.0,
        "in_time": 0.98,
        "p50_ms": 3.763,  # interpolated between 2.5 and 5 ms
        "p99_ms": 50.5,
        "late_per_s": 1.0,
        "refused_per_s": 1.0,
        "failed_per_s": 0.0,
        "cancelled_per_s": 0.0,
        "cost_per_1000_good": 0.0,
        "in_flight": 3,
        "queued_rows": 0,
    }
    row, *others = found["pipelines"]
    assert row == {
        "name": "both:1",
        "kind": "cascade",
        "requests_per_s": 100.0,
        "in_time": 0.98,
        "p50_ms": 3.763,
        "p99_ms": 50.5,
        "late_per_s": 1.0,
        "refused_per_s": 1.0,
        "failed_per_s": 0.0,
        "cost_per_1000_good": 0.0,
        "objective_ms": 50.0,
        "percentile": 99.0,
        "headroom": None,
    }
    assert [(each["name"], each["requests_per_s"], each["in_time"]) for each in others] == [
        ("large:1", 0.0, None),
        ("small:1", 0.0, None),
    ]


def test_the_history_has_a_number_for_each_second_and_only_new_ones_if_asked() -> None:
    server = served()
    server.tick()
    server.end("both:1", Outcome.COMPLETED, 4, ms=3)
    server.end("both:1", Outcome.CANCELLED_CLIENT, 2)
    server.tick()
    server.tick()
    server.end("both:1", Outcome.FAILED_BACKEND, 1)
    server.tick()
    assert server.document("both:1")["pipeline"]["history"] == {
        "start_s": DAY_S,
        "step_s": 1,
        "good": [0, 4, 0, 0],
        "late": [0, 0, 0, 0],
        "refused": [0, 0, 0, 0],
        "failed": [0, 0, 0, 1],
        "cancelled": [0, 2, 0, 0],
        "p50_ms": [None, 3.75, None, None],
        "p99_ms": [None, 4.97, None, None],
    }
    later = server.document("both:1", since_s=DAY_S + 2.7)["pipeline"]["history"]
    assert (later["start_s"], later["good"], later["failed"]) == (DAY_S + 2, [0, 0], [0, 1])
    assert server.document("both:1", since_s=DAY_S + 4)["pipeline"]["history"]["good"] == []


def test_who_asks_for_more_than_there_ever_was_saw_another_run_of_the_server_and_gets_everything() -> None:
    server = served()
    server.end("both:1", Outcome.COMPLETED, 4)
    server.run("small:1", 2, at_ms=100, ms=5)
    server.tick()
    found = server.document("both:1", since_s=DAY_S + 1e9, bars_since=1000)
    assert found["pipeline"]["history"]["good"] == [4]
    assert len(found["timeline"]["bars"]) == 1
    assert server.document("gone:1", since_s=DAY_S + 1)["pipeline"]["history"]["good"] == [4]


def test_the_history_covers_five_minutes_at_most() -> None:
    server = served()
    for count in range(310):
        server.end("both:1", Outcome.COMPLETED, count % 3)
        server.tick()
    history = server.document("both:1")["pipeline"]["history"]
    assert history["start_s"] == DAY_S + 10
    assert history["good"] == [count % 3 for count in range(10, 310)]


def test_a_late_tick_leaves_seconds_in_which_nothing_ended() -> None:
    server = served()
    server.tick()
    server.now_ns += 2 * NS_PER_S
    server.end("both:1", Outcome.COMPLETED, 6)
    server.tick()
    assert server.document("both:1")["pipeline"]["history"]["good"] == [0, 0, 0, 6]
    assert server.document()["totals"]["requests_per_s"] == 1.5


def test_what_follows_a_document_is_what_is_new() -> None:
    server = served()
    server.run("small:1", 2, at_ms=100, ms=5, number=40)
    server.tick()
    reply = server.reply(Question("both:1"))
    assert reply.following == Question("both:1", float(DAY_S + 1), 1)
    server.end("both:1", Outcome.COMPLETED, 2)
    server.run("large:1", 1, at_ms=1200, ms=7, number=41, partition="cpu1")
    server.tick()
    found = orjson.loads(server.reply(reply.following).body)
    assert found["pipeline"]["history"]["good"] == [2]
    assert found["timeline"]["bars"] == [[41, 1, 0, 0.0, 7.0, 1, 1]]
    assert server.reply(reply.following) is server.reply(reply.following)


def test_stages_show_what_they_ran_and_where_their_rows_come_from() -> None:
    server = served()
    server.tick()
    server.document("both:1")  # somebody looks, so its models are sampled from now on
    meter = server.meters.pipelines["both:1"]
    meter.stage_ran(0, 40)
    meter.stage_ran(1, 10)
    server.end("both:1", Outcome.COMPLETED, 40)
    server.run("small:1", 8, at_ms=1000, ms=2)
    server.run("small:1", 4, at_ms=1010, ms=1, partition="cpu1")
    server.tick()
    found = server.document("both:1")["pipeline"]
    assert found["stages"] == [
        {
            "name": "first",
            "model": "small:1",
            "sources": ["request"],
            "when": None,
            "combiner": "",
            "rows_per_s": 20.0,
            "share": 1.0,
            "mean_batch": 6.0,
            "queued_requests": 0,
            "latency_ms": 1.5,
        },
        {
            "name": "second",
            "model": "large:1",
            "sources": ["request"],
            "when": {"stage": "first", "text": "max of probs below 0.9"},
            "combiner": "",
            "rows_per_s": 5.0,
            "share": 0.25,
            "mean_batch": None,
            "queued_requests": 0,
            "latency_ms": None,
        },
    ]
    assert found["outputs"] == [{"name": "y", "from": ["second", "first"]}]


def test_kinds_of_pipelines() -> None:
    first, then = Stage("a", source("request"), model="m:1"), Stage("b", source("a"), model="n:1")
    beside = Stage("b", source("request"), model="n:1")
    vote = Stage("v", {"0": TensorSource("a", "y"), "1": TensorSource("b", "y")}, combine=Combiner.MEAN)
    assert two_stages("m", Stage("m", source("request"), model="m:1")) == "model"
    assert two_stages("p", first, then) == "chain"
    assert two_stages("p", first, beside) == "dag"
    assert two_stages("p", first, beside, vote) == "ensemble"
    assert two_stages("p", first, Stage("b", source("request"), model="n:1", when=When("a", "y", 0.5))) == "cascade"


def test_the_busiest_pipeline_is_shown_and_an_unknown_one_is_named() -> None:
    server = served()
    assert server.document()["pipeline"]["name"] == "both:1"  # pipelines come before models where nothing is asked
    server.end("large:1", Outcome.COMPLETED, 3)
    server.tick()
    assert [each["name"] for each in server.document()["pipelines"]] == ["large:1", "both:1", "small:1"]
    shown = server.document()["pipeline"]
    assert (shown["name"], shown["asked"]) == ("large:1", "")
    assert server.document("both")["pipeline"]["name"] == "both:1"
    shown = server.document("gone:3")["pipeline"]
    assert (shown["name"], shown["asked"]) == ("large:1", "gone:3")


def test_the_busiest_of_many_are_listed_in_order() -> None:
    server = PlayedServer(*(model(f"m{number:03}") for number in range(300)))
    for number in range(300):
        server.end(f"m{number:03}:1", Outcome.COMPLETED, 1 + number * 7 % 300)
    server.tick()
    counts = sorted(((1 + number * 7 % 300, f"m{number:03}:1") for number in range(300)), reverse=True)
    assert [each["name"] for each in server.document()["pipelines"]] == [name for _, name in counts[:50]]


def test_a_server_that_serves_nothing_has_no_pipeline_to_show() -> None:
    found = PlayedServer(broken=[BrokenEntry("torn", None, "torn/1/model.onnx: not a model")]).document()
    assert found["pipeline"] is None
    assert found["pipelines"] == []
    assert found["not_served"] == [{"name": "torn", "version": "", "reason": "torn/1/model.onnx: not a model"}]
    assert found["server"]["state"] == "degraded"
    assert found["server"]["reasons"] == ["nothing is served"]


def test_remote_partitions_show_where_their_workers_are_and_none_is_no_fault() -> None:
    server = PlayedServer(model("small"), partitions=("cpu0", "edge-0", "edge-1"), remote=("edge-0", "edge-1"))
    there = ProcessDetails(url="10.0.0.5:9001", node="n1", resized=CpuPartition("edge-0", (3,)), worker=7)
    there = msgspec.structs.replace(there, evidence=Evidence((3,)))
    server.inventory.apply(PartitionReady("edge-0", {}, node="n1"), there)
    server.inventory.apply(PartitionLost("edge-1", "no worker is placed there yet"), ProcessDetails(was_up=False))
    server.tick()
    document = server.document()
    shown = {each["name"]: (each["state"], each["node"], each["url"]) for each in document["partitions"]}
    assert shown["edge-0"] == ("ready", "n1", "10.0.0.5:9001")
    assert shown["edge-1"] == ("vacant", "", "")
    assert document["server"]["state"] == "ready"
    server.inventory.apply(PartitionLost("edge-0", "node n1: gone"), ProcessDetails(url="10.0.0.5:9001", node="n1"))
    server.tick()
    document = server.document()
    assert document["server"]["state"] == "degraded"
    assert document["server"]["reasons"] == ["partition edge-0 is down: node n1: gone"]


def test_partitions_show_their_state_memory_and_models() -> None:
    server = served()
    table = LatencyTable.from_ms({1: 1})
    for name in ("cpu0", "cpu1"):
        server.scheduler.handle(PartitionReady(name, {"small:1": table, "large:1": table}), 0)
    server.run("small:1", 1, at_ms=0, ms=250)
    server.tick()
    first, second = server.document()["partitions"]
    assert first == {
        "name": "cpu0",
        "kind": "cpu1",
        "ready": True,
        "state": "ready",
        "reason": "",
        "node": "",
        "url": "",
        "proof": "not known yet",
        "busy": 0.25,
        "running": None,
        "memory_bytes": 1000,
        "memory_free_bytes": 1000,
        "models": 2,
        "resident": ["small:1", "large:1"],
        "resident_more": 0,
    }
    assert second["busy"] == 0.0
    assert second["resident"] == ["large:1", "small:1"]


def test_a_lost_partition_degrades_the_server_and_quarantine_has_its_reason() -> None:
    server = served()
    server.inventory.partition_lost("cpu1", "worker exited with SIGKILL, restarting")
    server.scheduler.handle(PartitionLost("cpu1", "killed"), 0)
    server.tick()
    found = server.document()
    assert found["server"]["state"] == "degraded"
    assert found["server"]["reasons"] == ["partition cpu1 is down: worker exited with SIGKILL, restarting"]
    lost = found["partitions"][1]
    assert (lost["ready"], lost["state"], lost["reason"]) == (False, "lost", "worker exited with SIGKILL, restarting")
    server.quarantined["cpu1"] = Quarantined(60.0, "5 losses within 60 s")
    server.tick()
    found = server.document()
    assert found["server"]["reasons"] == ["partition cpu1 is in quarantine: 5 losses within 60 s"]
    assert found["partitions"][1]["state"] == "quarantined"


def test_many_refusals_make_a_server_overloaded() -> None:
    server = served()
    server.end("both:1", Outcome.COMPLETED, 90)
    server.end("both:1", Outcome.REJECTED_DEADLINE, 7)
    server.tick()
    assert server.document()["server"]["state"] == "ready"  # a few may have had deadlines that nobody could meet
    server.end("both:1", Outcome.REJECTED_DEADLINE, 1)
    server.end("both:1", Outcome.REJECTED_QUEUE_FULL, 2)
    server.tick()
    found = server.document()["server"]
    assert found["state"] == "overloaded"
    assert found["reasons"] == ["10.0% of the requests of the last seconds were refused, most as rejected_deadline"]


def test_a_stopping_server_says_so() -> None:
    server = served()
    server.registry.start_draining()
    server.tick()
    assert server.document()["server"]["state"] == "draining"


def test_running_and_planned_batches_are_in_the_timeline() -> None:
    server = PlayedServer(model("small"))
    server.scheduler.handle(PartitionReady("cpu0", {"small:1": LatencyTable.from_ms({1: 4, 8: 6})}), 0)
    server.run("small:1", 8, at_ms=980, ms=10, number=1)
    for number, at_ms in ((1, 996), (2, 997), (3, 998)):
        server.scheduler.handle(RequestArrived(number, "small:1", 1, ms_to_ns(2000)), ms_to_ns(at_ms))
        server.scheduler.handle_wakeup(ms_to_ns(at_ms))
    server.tick()
    timeline = server.document()["timeline"]
    assert timeline["from_s"] == DAY_S + 0.98
    assert timeline["to_s"] == DAY_S + 1
    assert timeline["models"] == ["small:1"]
    running, ended = timeline["bars"]
    assert running[1:] == [0, 0, 0.016, -1, 1, 1]
    assert ended == [1, 0, 0, 0.0, 10.0, 8, 1]
    (planned,) = timeline["planned"]
    assert planned[:3] == [0, 0, 0.02]
    assert planned[4] == 2
    assert server.document()["partitions"][0]["running"] == {"model": "small:1", "rows": 1}


def test_the_latest_troubles_come_first_with_their_sentence() -> None:
    server = served()
    for number in range(1, 31):
        missed(server, number)
    server.tick()
    found = server.document()["troubles"]
    assert found[0] == {
        "id": "sluice-30",
        "pipeline": "both:1",
        "outcome": "completed_late",
        "at_s": DAY_S + 0.061,
        "total_ms": 61.4,
        "deadline_ms": 50.0,
        "cause": found[0]["cause"],
        "sentence": found[0]["sentence"],
    }
    assert found[0]["sentence"].startswith("It was 11.4 ms late; ")
    assert [each["id"] for each in found] == [f"sluice-{number}" for number in range(30, 30 - len(found), -1)]
    assert 8 <= len(found) <= 20
    hidden = orjson.loads(server.reply(Question(explains=False)).body)
    assert (hidden["troubles"], hidden["troubles_open"]) == ([], False)


def test_models_that_are_not_served_are_listed_but_not_those_that_were_unloaded() -> None:
    server = PlayedServer(model("small"), broken=[BrokenEntry("torn", 3, "no output")])
    server.registry.set_unavailable("old", {"1": (VersionStatus.UNAVAILABLE, UNLOADED)})
    server.tick(10)
    found = server.document()
    assert found["not_served"] == [{"name": "torn", "version": "3", "reason": "no output"}]
    assert found["not_served_more"] == 0


@pytest.mark.parametrize(
    "prefix", ["p", "a-name-of-a-pipeline-that-is-far-longer-than-anybody-would-like-to-type-" * 2]
)
def test_a_thousand_models_and_fifty_busy_pipelines_fit(prefix: str) -> None:
    models = [model(f"model-{number}") for number in range(1000)]
    pipelines = [cascade(f"{prefix}{number}", f"model-{2 * number}", f"model-{2 * number + 1}") for number in range(50)]
    names = tuple(f"cpu{number}" for number in range(8))
    broken = [BrokenEntry(f"torn-{number}", None, "x" * 500) for number in range(40)]
    server = PlayedServer(*pipelines, *models, partitions=names, broken=broken)
    for second in range(300):
        for pipeline in pipelines:
            server.end(f"{pipeline.name}:1", Outcome.COMPLETED, 1, ms=second % 40)
            server.end(f"{pipeline.name}:1", Outcome.REJECTED_DEADLINE, 1)
        for number in range(300 if second > 290 else 0):
            key = f"model-{number % 100}:1"
            server.run(key, 8, at_ms=1000 * second + 3 * number, ms=2, partition=names[number % 8], number=number)
        server.tick()
    for number in range(30):
        missed(server, number)
    server.tick()
    reply = server.reply(Question())
    first: dict[str, Any] = orjson.loads(reply.body)
    assert len(reply.body) <= MAX_BYTES
    assert len(first["pipeline"]["history"]["good"]) == 300
    assert first["pipelines"]
    assert first["pipelines_more"] == 1050 - len(first["pipelines"])
    assert first["timeline"]["bars"]
    server.tick()
    reply = server.reply(reply.following)
    following = orjson.loads(reply.body)
    assert len(reply.body) <= MAX_BYTES
    assert len(following["pipelines"]) <= MAX_PIPELINES
    assert len(following["pipelines"]) > len(first["pipelines"])
    assert first["not_served_more"] == 40 - len(first["not_served"])


def test_a_pipeline_of_a_hundred_stages_fits_as_well() -> None:
    stages = [Stage("stage-0", source("request"), model="m0:1")]
    stages += [Stage(f"stage-{n}", source(f"stage-{n - 1}"), model=f"m{n}:1") for n in range(1, 100)]
    outputs: dict[str, tuple[TensorSource, ...]] = {
        f"output-{n}": (TensorSource(f"stage-{n}", "y"),) for n in range(100)
    }
    server = PlayedServer(Pipeline("long", 1, (), (), tuple(stages), outputs, 8, 50.0))
    server.tick(3)
    reply = server.reply(Question("long"))
    assert len(reply.body) <= MAX_BYTES
    shown = orjson.loads(reply.body)["pipeline"]
    assert len(shown["stages"]) + shown["stages_more"] == 100
