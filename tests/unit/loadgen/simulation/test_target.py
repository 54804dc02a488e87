import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.fleet import fleet
from sluice.batcher.interface.decisions import ReleaseReason
from sluice.batcher.policies.base import BatchContext, Choice, QueueView
from sluice.batcher.queues.queue import Queue
from sluice.loadgen.mixes.mix import Mix, MixStream
from sluice.loadgen.records.model_statistics import ModelActivity
from sluice.loadgen.records.record import Status
from sluice.loadgen.reports.text import run_text
from sluice.loadgen.run.runner import run
from sluice.loadgen.scenarios.config import RunConfig, ScenarioName
from sluice.loadgen.traffic.draws import Cancellation
from sluice.models.errors import ConfigError
from tests.support.located import without_line
from tests.unit.loadgen.simulated_server import write_simulation


def config(target: str, model: str, rate: float, **settings: object) -> RunConfig:
    arguments: dict[str, object] = {"queries": 500, "warmup_s": 0.0, "seed": 1} | settings
    return RunConfig(target=target, model=model, rate=rate, **arguments)  # type: ignore[arg-type]


def test_lone_queries_take_exactly_the_time_of_the_table(tmp_path: Path) -> None:
    result = run(config(write_simulation(tmp_path), "small", rate=0.01, queries=50))
    assert result.simulated
    assert (result.record.done_ns - result.record.due_ns).tolist() == [10_000_000] * 50
    assert result.metrics.lateness_ms is not None
    assert result.metrics.lateness_ms.max == 0


def test_the_host_takes_its_time_as_well(tmp_path: Path) -> None:
    host = {
        "send_us": 100,
        "receive_us": 200,
        "hand_off_us": 300,
        "return_us": 400,
        "answer_us": 500,
        "deliver_us": 600,
    }
    result = run(config(write_simulation(tmp_path, host=host), "small", rate=0.01, queries=50))
    assert (result.record.done_ns - result.record.due_ns).tolist() == [12_100_000] * 50


def test_what_runs_on_another_node_is_on_its_way_there_and_back(tmp_path: Path) -> None:
    """A row has 8 bytes each way, which 1 kB/s carries in 8 ms; each direction takes 1 ms more."""
    nodes = [{"name": "far", "partitions": ["cpu0"], "mb_per_s": 0.001, "latency_us": 1000}]
    result = run(config(write_simulation(tmp_path, nodes=nodes), "small", rate=0.01, queries=50))
    assert (result.record.done_ns - result.record.due_ns).tolist() == [28_000_000] * 50


def test_batches_take_what_was_measured_not_what_the_scheduler_expects(tmp_path: Path) -> None:
    target = write_simulation(tmp_path, service_ms={"small": {"4": [11.0, 12.0, 14.0]}})
    result = run(config(target, "small", rate=0.01, queries=2000))
    took_ns = result.record.done_ns - result.record.due_ns
    assert 11_000_000 <= took_ns.min() < took_ns.max() <= 14_000_000
    assert took_ns.mean() == pytest.approx(12_250_000, rel=0.01)


def test_ways_stray_by_chance(tmp_path: Path) -> None:
    target = write_simulation(tmp_path, host={"deliver_us": 100}, ways_us=[-100, 0, 300])
    result = run(config(target, "small", rate=0.01, queries=2000))
    took_ns = result.record.done_ns - result.record.due_ns
    assert 10_000_000 <= took_ns.min() < took_ns.max() <= 10_400_000
    assert took_ns.mean() == pytest.approx(10_150_000, rel=0.001)


def test_batches_are_slower_by_the_pace(tmp_path: Path) -> None:
    service_ms, pace = {"small": {"4": [10.0]}}, {"small": [[1.0, 1.5]]}
    result = run(config(write_simulation(tmp_path, service_ms=service_ms, pace=pace), "small", 0.01))
    took_ns = result.record.done_ns - result.record.due_ns
    assert took_ns[:4].tolist() == [10_000_000, 15_000_000, 10_000_000, 15_000_000]


def test_ways_of_batches_stray_by_chance(tmp_path: Path) -> None:
    target = write_simulation(tmp_path, host={"hand_off_us": 100, "return_us": 100}, strays_us=[-100, 0, 300])
    result = run(config(target, "small", rate=0.01, queries=2000))
    took_ns = result.record.done_ns - result.record.due_ns
    assert 10_000_000 <= took_ns.min() < took_ns.max() <= 10_800_000
    assert took_ns.mean() == pytest.approx(10_300_000, rel=0.002)


def test_queries_share_batches_and_every_row_is_counted_once(tmp_path: Path) -> None:
    result = run(config(write_simulation(tmp_path, policy={"name": "deadline"}), "small", rate=300))
    assert (result.record.status == Status.OK).all()
    assert result.server is not None
    (sizes,) = result.server.batches
    assert (sizes.model, sizes.partition) == ("small:1", "cpu0")
    assert sizes.batches * sizes.mean_rows == pytest.approx(500)
    assert 2 < sizes.mean_rows <= 4


def test_escalation_happens_as_often_as_asked(tmp_path: Path) -> None:
    target = write_simulation(tmp_path, escalation={"cascade": {"large": 0.2}})
    result = run(config(target, "cascade", rate=5, queries=2000))
    assert result.server is not None
    shares = {stage.stage: stage.share for stage in result.server.stages}
    assert shares["small"] == 1.0
    assert shares["large"] == pytest.approx(0.2, abs=4 * 0.009)


@pytest.mark.parametrize(("probability", "latency_ns"), [(0.0, 10_000_000), (1.0, 30_000_000)])
def test_escalation_never_and_always(tmp_path: Path, probability: float, latency_ns: int) -> None:
    target = write_simulation(tmp_path, escalation={"cascade": {"large": probability}})
    result = run(config(target, "cascade", rate=0.01, queries=100))
    assert set((result.record.done_ns - result.record.due_ns).tolist()) == {latency_ns}


def test_overload_is_shed_not_queued_for_ever(tmp_path: Path) -> None:
    result = run(config(write_simulation(tmp_path), "small", rate=2000, slo_ms=50, queries=2000))
    statuses = set(result.record.status.tolist())
    assert statuses == {Status.OK, Status.SHED}
    assert result.metrics.attainment < 0.5
    assert sum(result.record.reasons.values()) == result.metrics.shed
    assert not result.slo_met


@pytest.mark.parametrize(("memory_bytes", "status"), [(34, Status.OK), (33, Status.SHED)])
def test_a_query_reserves_its_input_and_what_all_stages_put_out(
    tmp_path: Path, memory_bytes: int, status: Status
) -> None:
    # A row of `x` and the `probs` of both stages, 8 bytes each; a sixth is kept for each of the two models.
    target = write_simulation(tmp_path, limits={"memory_mb": memory_bytes / (1 << 20)})
    result = run(config(target, "cascade", rate=0.01, queries=5))
    assert result.record.status.tolist() == [status] * 5


def test_the_settings_of_a_server_mean_the_same(tmp_path: Path) -> None:
    policy = {"name": "timeout", "preferred": [4], "max_delay_ms": 5}
    target = write_simulation(tmp_path, policy=policy, models={"large": {"policy": {"name": "none"}}})
    small, large = (run(config(target, model, rate=0.01, queries=5)) for model in ("small", "large"))
    assert (small.record.done_ns - small.record.due_ns).tolist() == [15_000_000] * 5
    assert (large.record.done_ns - large.record.due_ns).tolist() == [20_000_000] * 5


@pytest.mark.parametrize(("network_ms", "status"), [(20, Status.OK), (40.1, Status.SHED)])
def test_the_time_of_the_network_is_taken_off_the_objective(tmp_path: Path, network_ms: float, status: Status) -> None:
    target = write_simulation(tmp_path, network_ms=network_ms)
    result = run(config(target, "small", rate=10, slo_ms=50, queries=5))
    assert result.record.status.tolist() == [Status.OK, *[status] * 4]  # The first one tries it.


def test_a_model_may_have_smaller_batches_than_others(tmp_path: Path) -> None:
    target = write_simulation(tmp_path, policy={"name": "deadline"}, models={"small": {"max_batch_size": 2}})
    result = run(config(target, "small", rate=180))
    assert result.server is not None
    assert 1.2 < result.server.mean_batch <= 2


def test_a_simulation_tells_what_its_models_did_as_a_server_does(tmp_path: Path) -> None:
    policy = {"name": "timeout", "preferred": [4], "max_delay_ms": 5}
    target = write_simulation(tmp_path, policy=policy, prices={"core_hour": 36}, escalation={"cascade": {"large": 1.0}})
    result = run(config(target, "cascade", rate=0.01, queries=5))
    assert result.server is not None
    # Every query waits 5 ms for its batch to fill, and takes 10 ms in the small model and 20 ms in the large one.
    assert result.server.models == (
        ModelActivity("large:1", 5, 0, 5, 5, 5.0, 0.0, 20.0, 0.0, ((1, 5),)),
        ModelActivity("small:1", 5, 0, 5, 5, 5.0, 0.0, 10.0, 0.0, ((1, 5),)),
    )
    assert result.server.cost == pytest.approx(5 * 0.030 * 0.01)


def test_a_simulation_reports_the_lines_of_a_live_run(tmp_path: Path) -> None:
    target = write_simulation(tmp_path, host={}, escalation={"cascade": {"large": 1.0}})
    lines = run_text(run(config(target, "cascade", rate=1, slo_ms=100))).splitlines()
    assert [line[2:13].strip() for line in lines[2:-1]] == [
        *("queries", "rate", "score", "objective", "ms", "from due", "from sent", "waited", "client lag"),
        *("intervals", "batches", "batches", "batches", "stage", "stage", "model", "model", "cost"),
    ]
    assert lines[-9:-4] == [
        "  batches    1000, mean 1.00 rows",
        "  batches    large:1 on cpu0: 500, mean 1.00 rows",
        "  batches    small:1 on cpu0: 500, mean 1.00 rows",
        "  stage      cascade:1 large: 500 rows (100.0 %)",
        "  stage      cascade:1 small: 500 rows (100.0 %)",
    ]


def test_the_same_seed_gives_the_same_record(tmp_path: Path) -> None:
    target = write_simulation(tmp_path)
    first, again, other = (run(config(target, "cascade", 100, seed=seed)) for seed in (1, 1, 2))
    assert first.schedule_digest == again.schedule_digest != other.schedule_digest
    assert first.record.done_ns.tolist() == again.record.done_ns.tolist()


@pytest.mark.parametrize(
    ("settings", "model", "message"),
    [
        ({}, "none", "--model none: .*sim.yaml: it serves cascade, large, small"),
        ({"partitions": []}, "small", "sim.yaml: partitions: expected at least one"),
        (
            {"partitions": [{"name": "a", "cores": 0}]},
            "small",
            r"sim.yaml: partitions\[0\].cores: expected at least 1, got 0",
        ),
        ({"latency_ms": {"medium": {"4": 1.0}}}, "small", "sim.yaml: latency_ms: no model 'medium'"),
        ({"service_ms": {"small": {"4": []}}}, "small", "sim.yaml: service_ms.small: service times: expected"),
        ({"ways_us": [2, 1]}, "small", "sim.yaml: ways_us: expected finite ascending times"),
        (
            {"pace": {"small": [[1.0, 0.0]]}},
            "small",
            "sim.yaml: pace.small: expected non-empty pieces",
        ),
        ({"pace": {"medium": []}}, "small", "sim.yaml: pace: no model 'medium'"),
        ({"strays_us": [2, 1]}, "small", "sim.yaml: strays_us: expected finite ascending times"),
        ({"host": {"send_us": -1}}, "small", "sim.yaml: host: expected finite times of at least 0"),
        (
            {"nodes": [{"name": "a", "partitions": ["cpu9"], "mb_per_s": 1}]},
            "small",
            r"sim.yaml: nodes\[0\].partitions: no partition 'cpu9'; did you mean 'cpu0'",
        ),
        (
            {"nodes": [{"name": name, "partitions": ["cpu0"], "mb_per_s": 1} for name in ("a", "b")]},
            "small",
            r"sim.yaml: nodes\[1\].partitions: 'cpu0' is on node 'a' already",
        ),
        (
            {"nodes": [{"name": "a", "partitions": [], "mb_per_s": 1}] * 2},
            "small",
            r"sim.yaml: nodes\[1\].name: there is a node 'a' already",
        ),
        (
            {"nodes": [{"name": "a", "partitions": [], "mb_per_s": 0}]},
            "small",
            r"sim.yaml: nodes\[0\]: mb_per_s: expected a finite number above 0, got 0",
        ),
        ({"latency_ms": {"small": {"4": 0.0}}}, "small", "sim.yaml: latency_ms.small: .* expected latencies above 0"),
        (
            {"latency_ms": {"small": {"4": 2.0, "8": 1.0}}},
            "small",
            "sim.yaml: latency_ms.small: .* 1 ms for 8 rows",
        ),
        ({"percentile": 101}, "small", "sim.yaml: percentile: expected a number above 50 and at most 100"),
        ({"models": {"medium": {}}}, "small", "sim.yaml: models: no model 'medium'"),
        ({"models": {"small": {"polcy": {}}}}, "small", r"sim.yaml: models\.small: .*unknown field `polcy`"),
        (
            {"escalation": {"cascade": {"large": 1.5}}},
            "small",
            r"sim.yaml: escalation.cascade.large: expected 0 to 1, got 1.5",
        ),
        ({"escalation": {"cascade": {"small": 0.5}}}, "small", "sim.yaml: escalation.cascade: no stage 'small' with"),
        ({"escalation": {"cascad": {}}}, "small", "sim.yaml: escalation: no pipeline 'cascad'"),
        ({"polcy": {}}, "small", "sim.yaml: Object contains unknown field `polcy`"),
        ({"policy": {"max_delay_ns": 1}}, "small", "sim.yaml: policy: Object contains unknown field `max_delay_ns`"),
        ({"limits": {"memory_bytes": 1}}, "small", "sim.yaml: limits: Object contains unknown field `memory_bytes`"),
        ({"repository": "elsewhere"}, "small", "elsewhere: expected a directory"),
    ],
)
def test_a_wrong_file_says_where(tmp_path: Path, settings: dict[str, object], model: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        run(config(write_simulation(tmp_path, **settings), model, rate=10))
    assert re.search(message, without_line(refused.value))


def test_an_unknown_name_is_answered_with_what_is_served_and_what_is_broken(tmp_path: Path) -> None:
    target = write_simulation(tmp_path)
    broken = tmp_path / "repository" / "other"
    broken.mkdir()
    (broken / "pipeline.yaml").write_text("stages: {}")
    with pytest.raises(ConfigError, match=r"it serves cascade, large, small; broken: other$"):
        run(config(target, "smal", rate=1.0))


class Fixed:
    """A policy with the same choice for every queue."""

    by_deadline = mixes_keys = False

    def __init__(self, choice: Choice) -> None:
        self._choice = choice

    def new_queue(self, model: str, batch_key: str) -> Queue:
        return Queue(model, batch_key)

    def full_rows(self, estimate: LatencyEstimate) -> int:
        return 1

    def choose(self, queue: QueueView, context: BatchContext) -> Choice:
        choice = self._choice
        return choice._replace(until_ns=context.now_ns + choice.until_ns)


def fix(monkeypatch: pytest.MonkeyPatch, choice: Choice) -> None:
    monkeypatch.setattr(fleet, "select_policy", lambda config, limits: Fixed(choice))


def test_a_policy_that_never_closes_a_batch_ends_in_timeouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix(monkeypatch, Choice(0, ReleaseReason.DELAY, 100_000_000))
    result = run(config(write_simulation(tmp_path), "small", 100, queries=20, drain_timeout_s=2.0))
    record = result.record
    assert (record.status == Status.TIMEOUT).all()
    assert (record.done_ns == record.due_ns[-1] + 2_000_000_000).all()


def test_answers_after_the_drain_timeout_are_timeouts(tmp_path: Path) -> None:
    result = run(config(write_simulation(tmp_path), "small", 1e6, queries=20, drain_timeout_s=0.1))
    assert set(result.record.status.tolist()) == {Status.OK, Status.TIMEOUT}


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice(32, ReleaseReason.FULL), "32 rows; expected at most 4"),
        (Choice(-1, ReleaseReason.FULL), "-1 rows; expected at least 0"),
        (Choice(1.5, ReleaseReason.FULL), "rows is 1.5; expected an int"),  # type: ignore[arg-type]
        (Choice(0, ReleaseReason.DELAY, 1e6), "until_ns is .*; expected an int"),  # type: ignore[arg-type]
        (Choice(0, ReleaseReason.DELAY), "asks again at .* ns; expected later than .* ns"),
    ],
)
def test_a_wrong_choice_names_the_policy_and_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: Choice, message: str
) -> None:
    fix(monkeypatch, choice)
    with pytest.raises(ConfigError, match=f"^policy none: model small:1: {message}"):
        run(config(write_simulation(tmp_path), "small", 10, queries=5))


def mix_of(*streams: MixStream) -> Mix:
    return Mix(streams, "mix.yaml")


def test_models_and_pipelines_of_a_mix_share_the_machine(tmp_path: Path) -> None:
    target = write_simulation(tmp_path, escalation={"cascade": {"large": 0.2}})
    mix = mix_of(
        MixStream(name="small", model="small", slo_ms=15),
        MixStream(name="cascade", model="cascade", share=3, slo_ms=500, rows=2),
    )
    result = run(config(target, "", rate=1, queries=4000, mix=mix))
    record = result.record
    cascade = record.stream == 1
    assert cascade.mean() == pytest.approx(0.75, abs=4 * 0.007)
    assert set(record.slo_ns[~cascade].tolist()) == {15_000_000}
    assert set(record.slo_ns[cascade].tolist()) == {500_000_000}
    assert (record.status[cascade] == Status.OK).all()
    assert result.server is not None
    rows = {(each.pipeline, each.stage): each.rows for each in result.server.stages}
    assert rows["small:1", "small"] == int((record.status[~cascade] == Status.OK).sum())
    assert rows["cascade:1", "small"] == 2 * int(cascade.sum())
    assert rows["cascade:1", "large"] / rows["cascade:1", "small"] == pytest.approx(0.2, abs=0.02)


def test_a_stream_with_a_priority_waits_less(tmp_path: Path) -> None:
    target = write_simulation(tmp_path)
    (tmp_path / "repository" / "small" / "config.pbtxt").write_text(
        """
        max_batch_size: 1
        input { name: "x" data_type: TYPE_FP32 dims: 2 }
        output { name: "probs" data_type: TYPE_FP32 dims: 2 }
        dynamic_batching { priority_levels: 2 default_priority_level: 2 }
        """
    )
    mix = mix_of(
        MixStream(name="urgent", model="small", priority=1), MixStream(name="patient", model="small", priority=2)
    )
    result = run(config(target, "", rate=90, queries=2000, mix=mix))
    waited_ns = result.record.done_ns - result.record.due_ns
    assert waited_ns[result.record.stream == 0].mean() < waited_ns[result.record.stream == 1].mean() / 2


def test_a_stream_that_is_sent_ahead_begins_later_and_is_in_time(tmp_path: Path) -> None:
    target = write_simulation(tmp_path, instances="balance")
    mix = mix_of(MixStream(name="ahead", model="small", slo_ms=500, start_after_ms=40))
    record = run(config(target, "", rate=10, queries=200, mix=mix)).record
    assert (record.status == Status.OK).all()
    assert set(record.slo_ns.tolist()) == {540_000_000}
    assert ((record.done_ns - record.due_ns) > 40_000_000).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_accuracy": 0.5}, r"^min_accuracy: expected none for small, got 0\.5$"),
        ({"start_after_ms": 5.0}, "^start_after_ms: expected a model with an instance policy, and small:1 has none$"),
    ],
)
def test_a_simulation_refuses_the_options_that_a_server_refuses(
    tmp_path: Path, options: dict[str, float], message: str
) -> None:
    stream = msgspec.structs.replace(MixStream(name="s", model="small"), **options)
    with pytest.raises(ConfigError, match=message):
        run(config(write_simulation(tmp_path), "", rate=10, queries=5, mix=mix_of(stream)))


def test_a_stream_that_may_cost_too_little_is_turned_away(tmp_path: Path) -> None:
    mix = mix_of(MixStream(name="free", model="small", max_cost=0), MixStream(name="any", model="small"))
    record = run(config(write_simulation(tmp_path), "", rate=10, queries=200, mix=mix)).record
    assert set(record.status[record.stream == 0].tolist()) == {Status.SHED}
    assert set(record.status[record.stream == 1].tolist()) == {Status.OK}


@pytest.mark.parametrize(("host", "after_ms"), [({}, 9.5), ({"send_us": 300, "deliver_us": 300}, 10.3)])
def test_a_query_that_is_given_up_ends_for_the_client_at_that_time(
    tmp_path: Path, host: dict[str, float], after_ms: float
) -> None:
    target = write_simulation(tmp_path, **({"host": host} if host else {}))
    result = run(config(target, "small", rate=1, queries=400, cancellation=Cancellation(0.25, after_ms)))
    record = result.record
    given_up = record.status == Status.CANCELLED
    assert given_up.mean() == pytest.approx(0.25, abs=4 * 0.022)
    assert set((record.done_ns - record.due_ns)[given_up].tolist()) == {round(after_ms * 1e6)}
    assert (record.status[~given_up] == Status.OK).all()
    assert record.reasons == {}


def test_queries_that_were_given_up_in_the_queue_take_no_time_of_the_machine(tmp_path: Path) -> None:
    target = write_simulation(tmp_path, models={"small": {"max_batch_size": 1}})
    overload = config(target, "small", rate=200, queries=1000)
    patient = run(overload)
    impatient = run(msgspec.structs.replace(overload, cancellation=Cancellation(0.7, 30)))
    assert patient.server is not None
    assert impatient.server is not None
    batches = [sum(each.batches for each in result.server.batches) for result in (patient, impatient) if result.server]
    assert batches[1] < batches[0] * 0.75


def test_a_closed_loop_goes_on_when_a_query_is_given_up(tmp_path: Path) -> None:
    closed = {"scenario": ScenarioName.CONCURRENCY, "concurrency": 1, "cancellation": Cancellation(1, 4)}
    result = run(config(write_simulation(tmp_path), "small", rate=0, queries=50, **closed))
    assert (result.record.status == Status.CANCELLED).all()
    assert np.diff(result.record.due_ns).tolist() == [4_000_000] * 49


def test_a_closed_loop_ends_although_the_target_refuses_in_the_same_instant(tmp_path: Path) -> None:
    closed = {"scenario": ScenarioName.CONCURRENCY, "concurrency": 4, "duration_s": 0.01, "queries": None}
    target = write_simulation(tmp_path, policy={"name": "deadline"})
    result = run(config(target, "small", rate=0, slo_ms=1, **closed))
    assert (result.record.status == Status.SHED).all()
    assert set(np.diff(result.record.due_ns)[3:].tolist()) == {20_000}, "the time that a client takes for a refusal"
