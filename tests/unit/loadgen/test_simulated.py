from pathlib import Path

import pytest

from loadgen.record import Status
from loadgen.result import RunConfig
from loadgen.scenario import run_server_scenario
from models.errors import ConfigError
from tests.unit.loadgen.simulation import write_simulation


def config(target: str, model: str, rate: float, **settings: object) -> RunConfig:
    arguments: dict[str, object] = {"queries": 500, "warmup_s": 0.0, "seed": 1} | settings
    return RunConfig(target=target, model=model, rate=rate, **arguments)  # type: ignore[arg-type]


def test_lone_queries_take_exactly_the_time_of_the_table(tmp_path: Path) -> None:
    result = run_server_scenario(config(write_simulation(tmp_path), "small", rate=0.01, queries=50))
    assert result.simulated
    assert (result.record.done_ns - result.record.due_ns).tolist() == [10_000_000] * 50
    assert result.metrics.lateness_ms is not None
    assert result.metrics.lateness_ms.max == 0


def test_queries_share_batches_and_every_row_is_counted_once(tmp_path: Path) -> None:
    result = run_server_scenario(config(write_simulation(tmp_path, policy={"name": "deadline"}), "small", rate=300))
    assert (result.record.status == Status.OK).all()
    assert result.server is not None
    (sizes,) = result.server.batches
    assert (sizes.model, sizes.partition) == ("small:1", "cpu0")
    assert sizes.batches * sizes.mean_rows == pytest.approx(500)
    assert 2 < sizes.mean_rows <= 4


def test_escalation_happens_as_often_as_asked(tmp_path: Path) -> None:
    target = write_simulation(tmp_path, escalation={"cascade": {"large": 0.2}})
    result = run_server_scenario(config(target, "cascade", rate=5, queries=5000))
    assert result.server is not None
    shares = {stage.stage: stage.share for stage in result.server.stages}
    assert shares["small"] == 1.0
    assert shares["large"] == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize(("probability", "latency_ns"), [(0.0, 10_000_000), (1.0, 30_000_000)])
def test_escalation_never_and_always(tmp_path: Path, probability: float, latency_ns: int) -> None:
    target = write_simulation(tmp_path, escalation={"cascade": {"large": probability}})
    result = run_server_scenario(config(target, "cascade", rate=0.01, queries=100))
    assert set((result.record.done_ns - result.record.due_ns).tolist()) == {latency_ns}


def test_overload_is_shed_not_queued_for_ever(tmp_path: Path) -> None:
    result = run_server_scenario(config(write_simulation(tmp_path), "small", rate=2000, slo_ms=50, queries=2000))
    statuses = set(result.record.status.tolist())
    assert statuses == {Status.OK, Status.SHED}
    assert result.metrics.attainment < 0.5
    assert sum(result.record.reasons.values()) == result.metrics.shed
    assert not result.slo_met


def test_the_same_seed_gives_the_same_record(tmp_path: Path) -> None:
    target = write_simulation(tmp_path)
    first, again, other = (run_server_scenario(config(target, "cascade", 100, seed=seed)) for seed in (1, 1, 2))
    assert first.schedule_digest == again.schedule_digest != other.schedule_digest
    assert first.record.done_ns.tolist() == again.record.done_ns.tolist()


@pytest.mark.parametrize(
    ("settings", "model", "message"),
    [
        ({}, "none", "--model none: .*sim.yaml serves cascade, large, small"),
        ({"partitions": []}, "small", "partitions: expected at least one"),
        ({"latency_ms": {"medium": {"4": 1.0}}}, "small", "latency_ms: no model 'medium'"),
        ({"escalation": {"cascade": {"large": 1.5}}}, "small", r"escalation.cascade.large: must be in \[0, 1\]"),
        ({"escalation": {"cascade": {"small": 0.5}}}, "cascade", "cascade:1 has no stage 'small' with a condition"),
        ({"polcy": {}}, "small", "unknown field `polcy`"),
        ({"repository": "elsewhere"}, "small", "elsewhere: expected a directory"),
    ],
)
def test_a_wrong_file_says_where(tmp_path: Path, settings: dict[str, object], model: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_server_scenario(config(write_simulation(tmp_path, **settings), model, rate=10))
