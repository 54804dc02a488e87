"""The plan in force in the document and at its own route, and the forecasts that are computed beside the loop."""

from typing import Any

import pytest

from sluice.batcher.interface.decisions import BuildPlan
from sluice.batcher.interface.events import PartitionReady, PlanBuilt, RequestArrived
from sluice.batcher.interface.plan_data import CostToGo, FixedOption, StagePlan
from sluice.batcher.interface.planner_config import PlannerConfig
from sluice.batcher.planner.build import build_plan
from sluice.gateway.overview.pieces import rounded
from sluice.gateway.overview.plans import NO_LATENCIES, NO_OBJECTIVE, NO_PLAN, rule_in_force
from sluice.gateway.overview.plans_in_force import report
from sluice.models.pipelines.pipeline import Pipeline, Stage, TensorSource
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS, NS_PER_S, ms_to_ns
from tests.support.gateway.overview import DAY_NS, PlayedServer

TABLES = {"a:1": LatencyTable.from_ms({1: 2, 8: 4}), "b:1": LatencyTable.from_ms({1: 10, 8: 20})}
RATE = 50


def pipeline(name: str = "both", slo_ms: float | None = 100) -> Pipeline:
    stages = (
        Stage("first", {"x": TensorSource("request", "x")}, model="a:1"),
        Stage("second", {"x": TensorSource("first", "y")}, model="b:1"),
    )
    return Pipeline(name, 1, (), (), stages, {"y": (TensorSource("second", "y"),)}, 8, slo_ms)


class Planned(PlayedServer):
    """Partitions that have loaded the models, and plans that are built at once."""

    def __init__(self, *pipelines: Pipeline, loads: bool = True, planner: PlannerConfig | None = None) -> None:
        super().__init__(*pipelines, partitions=("cpu0", "cpu1"), planner=planner)
        for name in ("cpu0", "cpu1") if loads else ():
            self.scheduler.handle(PartitionReady(name, TABLES), 0)
        self.requests = 0

    def plan(self, seconds: int, rate: int = RATE) -> None:
        """Let requests come for some seconds, and a plan be built after each if one is due."""
        for _ in range(seconds):
            for _ in range(rate):
                self.requests += 1
                arrival = RequestArrived(self.requests, "both:1", 1, self.now_ns + 1)  # refused, but counted
                self.scheduler.handle(arrival, self.now_ns)
            self.tick()
            for order in self.scheduler.handle_wakeup(self.now_ns):
                if isinstance(order, BuildPlan):
                    plan = build_plan(self.scheduler.spec, order.observed)
                    self.scheduler.handle(PlanBuilt(order.build, plan), self.now_ns)

    def forecast(self) -> list[str]:
        """Compute all forecasts that are missing; the pipelines, in their order."""
        names = []
        while (task := self.overview.plans.next_forecast()) is not None:
            found = task()
            self.overview.plans.take(found)
            names.append(found.pipeline)
        return names

    def plan_shown(self, name: str = "both") -> Any:
        return self.document(name)["pipeline"]["plan"]


def rules(name: str) -> tuple[Any, Any]:
    """The rules of the two stages as a planner leaves them, in the page's document and in the report."""
    server = Planned(pipeline(), planner=PlannerConfig(name))
    server.plan(3)
    shown = server.plan_shown()
    found = report(server.scheduler.spec, server.scheduler.served.replanner.in_force, ["both:1"], 0, with_limits=False)
    assert shown["planner"] == found["planner"] == name
    return [each["rule"] for each in shown["stages"]], [
        each["rule"] for each in found["pipelines"][0]["plan"]["stages"]
    ]


def test_the_planner_and_what_it_fixed_are_shown() -> None:
    assert rules("exact") == ([None, None], [None, None])
    one_by_one = {"rule": "fixed", "rows": 1, "kind": "cpu1", "wait_ms": 0.0}
    assert rules("infless") == ([one_by_one] * 2, [one_by_one] * 2)
    search = {"rule": "search", "share": 1.0}
    assert rules("esg") == ([search] * 2, [search] * 2)


def test_a_fixed_rule_has_its_size_its_kind_and_its_wait() -> None:
    planned = StagePlan("a:1", 8, "gpu", 9 * NS_PER_MS, 0.1, CostToGo((0,), (0.0,)), FixedOption(8, "gpu", 2_500_000))
    assert rule_in_force(planned) == {"rule": "fixed", "rows": 8, "kind": "gpu", "wait_ms": 2.5}


def test_without_a_plan_there_is_a_reason() -> None:
    server = Planned(pipeline(), pipeline("free", None), loads=False)
    assert server.plan_shown("free") == {"in_force": False, "reason": NO_OBJECTIVE}
    assert server.plan_shown() == {"in_force": False, "reason": NO_PLAN}
    server.plan(2)
    assert server.plan_shown() == {"in_force": False, "reason": NO_LATENCIES}
    assert server.forecast() == []


def test_the_plan_in_force_is_shown_and_then_what_it_predicts() -> None:
    server = Planned(pipeline())
    server.plan(3)
    shown = server.plan_shown()
    assert shown["in_force"] is True
    assert shown["reason"] == ""
    assert shown["rate"] == pytest.approx(RATE, rel=0.1)
    assert shown["built_s"] >= DAY_NS // NS_PER_S
    assert 12 < shown["predicted_p99_ms"] < 100
    assert (shown["highest_rate"], shown["headroom"], shown["predicted_p50_ms"]) == (None, None, None)
    first, second = shown["stages"]
    assert first["kinds"] == [{"kind": "cpu1", "partitions": 2, "batch": first["batch"]}]
    assert (second["predicted_ms"], second["predicted_share"]) == (None, None)
    assert server.forecast() == ["both:1"]
    server.tick()  # documents of a tick stay as they are
    shown = server.plan_shown()
    assert shown["highest_rate"] > RATE
    assert [stage["predicted_share"] for stage in shown["stages"]] == [1.0, 1.0]
    assert shown["stages"][1]["predicted_ms"] >= 10
    assert 12 <= shown["predicted_p50_ms"] <= shown["predicted_p99_ms"]
    assert server.forecast() == []


def test_the_document_predicts_what_the_plans_say() -> None:
    server = Planned(pipeline())
    server.plan(3)
    server.plan_shown()
    assert server.forecast() == ["both:1"]
    server.tick()
    shown = server.plan_shown()
    in_force = server.scheduler.served.replanner.in_force
    said = report(server.scheduler.spec, in_force, ["both:1"], 0, with_limits=True)["pipelines"][0]["plan"]
    assert shown["predicted_p50_ms"] == rounded(said["p50_ms"])
    assert shown["predicted_p99_ms"] == rounded(said["p99_ms"])


def test_the_headroom_is_that_of_the_metrics() -> None:
    server = Planned(pipeline())
    server.plan(3)
    server.headrooms["both:1"] = 2.5
    server.tick()
    assert server.plan_shown()["headroom"] == 2.5
    assert server.document()["pipelines"][0]["headroom"] == 2.5


def test_a_forecast_is_computed_again_for_another_plan_and_stays_until_then() -> None:
    server = Planned(pipeline())
    server.plan(3)
    server.plan_shown()
    assert server.forecast() == ["both:1"]
    server.tick()
    before = server.plan_shown()
    assert before["highest_rate"] > RATE
    server.plan(4, rate=2 * RATE)
    shown = server.plan_shown()
    assert shown["rate"] > 1.5 * before["rate"]
    assert shown["highest_rate"] == before["highest_rate"]
    assert server.forecast() == ["both:1"]


def test_a_plan_that_misses_its_objective_says_so() -> None:
    server = Planned(pipeline(slo_ms=5))
    server.plan(3)
    server.plan_shown()
    assert server.forecast() == ["both:1"]
    server.tick()
    shown = server.plan_shown()
    assert shown["in_force"] is True
    assert shown["reason"].startswith("no configuration meets the objective")
    assert shown["highest_rate"] == 0


def test_only_pipelines_that_somebody_looks_at_are_forecast() -> None:
    server = Planned(pipeline(), pipeline("idle"), pipeline("seen"))
    server.plan(3)
    server.document("seen")
    assert server.forecast() == ["seen:1"]


def test_the_report_has_the_words_of_the_command_and_what_led_to_the_plan() -> None:
    server = Planned(pipeline(), pipeline("free", None))
    scheduler = server.scheduler
    assert report(scheduler.spec, None, ["both:1"], 0, with_limits=True) == {
        "in_force": False,
        "built_s": None,
        "planner": "exact",
        "replan": "dispatch",
        "partitions": {},
        "residency": {},
        "latencies": [],
        "pipelines": [
            {
                "pipeline": "both:1",
                "slo_ms": 100.0,
                "percentile": 99.0,
                "rate": None,
                "reason": NO_PLAN,
                "feasible": False,
                "plan": None,
                "highest_rate": None,
                "probabilities": None,
            }
        ],
    }
    server.plan(3)
    in_force = scheduler.served.replanner.in_force
    assert in_force is not None
    found = report(scheduler.spec, in_force, ["both:1", "free:1", "gone:1"], DAY_NS, with_limits=True)
    assert found["partitions"] == {"cpu1": 2}
    assert found["latencies"] == [
        {"model": "a:1", "kind": "cpu1", "ms_by_rows": {"1": 2.0, "8": 4.0}},
        {"model": "b:1", "kind": "cpu1", "ms_by_rows": {"1": 10.0, "8": 20.0}},
    ]
    both, free = found["pipelines"]
    assert both["probabilities"] == {"first": 1.0, "second": 1.0}
    assert [(stage["stage"], stage["model"], stage["kind"]) for stage in both["plan"]["stages"]] == [
        ("first", "a:1", "cpu1"),
        ("second", "b:1", "cpu1"),
    ]
    assert both["highest_rate"] > RATE
    assert (free["plan"], free["reason"]) == (None, NO_OBJECTIVE)
    brief = report(scheduler.spec, in_force, ["both:1"], DAY_NS, with_limits=False)["pipelines"][0]
    assert brief == {**both, "highest_rate": None}


def test_a_plan_of_models_that_nobody_holds_any_more_shows_its_own_figures() -> None:
    server = Planned(pipeline())
    server.plan(3)
    in_force = server.scheduler.served.replanner.in_force
    assert in_force is not None
    spec = server.scheduler.spec
    changed = in_force._replace(observed=type(in_force.observed)({}, in_force.observed.rates, {}))
    (found,) = report(spec, changed, ["both:1"], 0, with_limits=True)["pipelines"]
    assert found["highest_rate"] is None
    assert [stage["model"] for stage in found["plan"]["stages"]] == ["a:1", "b:1"]
    assert found["plan"]["p99_ms"] * ms_to_ns(1) == pytest.approx(in_force.plan.pipelines[0].latency_ns)
