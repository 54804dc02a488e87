import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from sluice.gateway.cli.main import main
from sluice.gateway.what_if.answer import PlanAnswer
from sluice.mps.partitions.cpu import available_cores
from tests.support.models.onnx_models import save_mlp

CASCADE = """
slo_ms: 60000
stages:
  small: {model: small, inputs: {x: request.x}}
  large: {model: large, inputs: {x: request.x}, when: {stage: small, output: y, below: 0.9}}
outputs:
  y: {from: [large.y, small.y]}
"""


class Done(NamedTuple):
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str


Sluice = Callable[..., Done]


@pytest.fixture
def sluice(capsys: pytest.CaptureFixture[str]) -> Sluice:
    """Runs `sluice` with the arguments given."""

    def run(*arguments: object) -> Done:
        status = main(list(map(str, arguments)))
        return Done(status, *capsys.readouterr())

    return run


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A cascade of two models."""
    save_mlp(tmp_path / "small" / "1" / "model.onnx", [4, 3])
    save_mlp(tmp_path / "large" / "1" / "model.onnx", [4, 256, 3])
    (tmp_path / "cascade").mkdir()
    (tmp_path / "cascade" / "pipeline.yaml").write_text(CASCADE)
    return tmp_path


def test_a_pipeline_is_planned_before_and_after_it_is_profiled(sluice: Sluice, repository: Path) -> None:
    plan = ("plan", "cascade", "--repository", repository, "--rate", 20, "--partitions", "cpu1")
    before = sluice(*plan)
    assert before.status == 0, before.err
    assert "sluice: timing small:1 on cpu1: there is no stored profile" in before.err
    assert "latencies timed now, not stored" in before.out
    assert "assumed: the pipeline's objective, 60000 ms" in before.out
    assert "assumed: 50% of the rows offered to stage 'large' run (--escalation large=P)" in before.out
    assert not list(repository.rglob("profile.json")), "planning stores nothing"

    measured = sluice("profile", "--repository", repository, "--partitions", "cpu1", "--batches", "1,2,4,8,16,32,64")
    assert measured.status == 0, measured.err
    after = sluice(*plan, "--escalation", "large=0.1", "--explain")
    assert (after.status, after.err) == (0, "")
    assert "latencies measured: small:1 on cpu1, large:1 on cpu1" in after.out
    for reported in (
        "bottleneck: stage",
        "highest rate within 60000 ms:",
        "lowest objective at 20 requests/s:",
        "runner-up",
    ):
        assert reported in after.out
    assert "20 x 0.1 = 2 per second" in after.out
    assert "critical path: small" in after.out


def test_all_figures_as_json(sluice: Sluice, repository: Path) -> None:
    done = sluice("plan", "cascade", "--repository", repository, "--partitions", "1", "--slo-ms", 50000, "--json")
    assert done.status == 0, done.err
    answer = msgspec.json.decode(done.out, type=PlanAnswer)
    assert (answer.pipeline, answer.slo_ms, answer.planner, answer.feasible) == ("cascade:1", 50_000, "exact", True)
    assert answer.partitions == {f"cpu{len(available_cores())}": 1}
    assert [stage.probability for stage in answer.plan.stages] == [1, 0.5]


def test_what_cannot_be_met_is_reported_and_is_the_exit_status(sluice: Sluice, repository: Path) -> None:
    done = sluice("plan", "cascade", "--repository", repository, "--slo-ms", 0.001)
    assert done.status == 1
    assert "INFEASIBLE: the fastest configuration takes" in done.out
    assert "an objective of" in done.out
    done = sluice("plan", "cascade", "--repository", repository, "--rate", 1e9)
    assert done.status == 1
    assert "requests/s too many for these partitions" in done.out
    done = sluice("plan", "cascade", "--repository", repository, "--rate", 1e300)
    assert done.status == 1
    assert "at 1e+300 requests/s" in done.out
    assert max(map(len, done.out.splitlines())) < 250


def test_an_objective_beyond_a_day_counts_as_one(sluice: Sluice, repository: Path) -> None:
    (repository / "cascade" / "pipeline.yaml").write_text(CASCADE.replace("slo_ms: 60000", "slo_ms: 1.0e+300"))
    plan = ("plan", "cascade", "--repository", repository, "--partitions", "cpu1")
    for given in ((), ("--slo-ms", "1e300")):
        done = sluice(*plan, *given)
        assert done.status == 0, done.err
        assert "p99 within 8.64e+07 ms" in done.out
        assert "assumed: an objective of 86400000 ms (a day), the longest that is planned for" in done.out


def test_a_gpu_that_is_not_here_is_planned_for_with_simulated_profiles(sluice: Sluice, repository: Path) -> None:
    plan = ("plan", "cascade", "--repository", repository, "--partitions", "mig-1g,mig-3g", "--slo-ms", 300)
    refused = sluice(*plan)
    assert (refused.status, refused.out) == (2, "")
    assert f"sluice profile --repository {repository} small:1 --simulate resnet50 --partitions mig-1g" in refused.err
    simulated = ("--simulate", "resnet50", "--partitions", "mig-1g,mig-3g")
    assert sluice("profile", "--repository", repository, *simulated).status == 0
    done = sluice(*plan, "--rate", 50)
    assert (done.status, done.err) == (0, "")
    assert "on 1 x mig-1g SIMULATED, 1 x mig-3g SIMULATED" in done.out
    assert "latencies SIMULATED (computed by a formula): small:1 on mig-1g" in done.out


def test_the_partitions_and_prices_of_the_configuration(sluice: Sluice, repository: Path) -> None:
    core = available_cores()[0]
    config = repository / "sluice.yaml"
    partition = {"name": "slow", "cores": [core], "slowdown": 2, "price": 3600}
    config.write_text(json.dumps({"partitions": [partition], "default_slo_ms": 50_000}))
    done = sluice("plan", "small", "--repository", repository, "--config", config, "--json")
    assert done.status == 0, done.err
    answer = msgspec.json.decode(done.out, type=PlanAnswer)
    assert (answer.partitions, answer.slo_ms) == ({"cpu1/x2": 1}, 50_000)
    (stage,) = answer.plan.stages
    assert stage.arithmetic is not None
    assert stage.arithmetic.price_per_s == 1
    assert stage.cost_per_1000_rows == pytest.approx(stage.arithmetic.compute_ms)


def test_a_price_beyond_all_sums_is_reported(sluice: Sluice, repository: Path) -> None:
    config = repository / "sluice.yaml"
    config.write_text("prices: {core_hour: 1.0e+308}")
    done = sluice("plan", "cascade", "--repository", repository, "--config", config)
    assert done.status == 2
    assert "expected a finite number: see `prices`" in done.err


def test_the_reader_of_the_output_may_stop(repository: Path) -> None:
    plan = ("plan", "cascade", "--repository", str(repository), "--partitions", "cpu1")
    command = [sys.executable, "-m", "sluice.gateway.cli.main", *plan]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        reported = process.stderr.read()
    assert process.returncode == 141
    assert all(line.startswith("sluice: timing") for line in reported.splitlines()), reported


def test_the_memory_and_the_triton_servers_of_the_configuration(sluice: Sluice, repository: Path) -> None:
    core = available_cores()[0]
    sizes = {name: (repository / name / "1" / "model.onnx").stat().st_size for name in ("small", "large")}
    config = repository / "sluice.yaml"
    document: dict[str, object] = {"triton": [{"name": "far", "url": "127.0.0.1:1"}]}

    def planned(memory_bytes: int) -> Done:
        memory_mb = memory_bytes / (1 << 20)
        partitions = [{"name": name, "cores": [core], "memory_mb": memory_mb} for name in ("p", "q")]
        config.write_text(json.dumps(document | {"partitions": partitions}))
        return sluice("plan", "cascade", "--repository", repository, "--config", config)

    done = planned(max(sizes.values()) + 1)
    assert done.status == 0, done.err
    assert "assumed: Triton servers are left out: far" in done.out
    assert f"assumed: large:1 takes {sizes['large'] / (1 << 20):.3g} MiB on each partition that holds it" in done.out
    assert "loaded on p: large:1\nloaded on q: small:1\n" in done.out
    done = planned(min(sizes.values()))
    assert done.status == 2
    assert "stage 'large': no partition that is up holds model large:1, or has room for it" in done.err


def test_a_model_file_by_itself(sluice: Sluice, tmp_path: Path) -> None:
    done = sluice("plan", save_mlp(tmp_path / "mlp.onnx", [4, 3]), "--partitions", "cpu1")
    assert done.status == 0, done.err
    assert done.out.startswith("mlp:1: p99 within 10000 ms at 0 requests/s on 1 x cpu1")
    assert "assumed: the server's default objective, 10000 ms" in done.out
    assert "assumed: lone requests (--rate 0)" in done.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["other", "--repository", "."], "no pipeline or model 'other'; there are cascade, large:1, small:1"),
        (["cascade"], "for a pipeline or model of a repository add --repository DIR"),
        (["cascade", "--repository", ".", "--slo-ms", "0"], "--slo-ms: expected milliseconds above 0, got 0"),
        (["cascade", "--repository", ".", "--rate", "nan"], "--rate: expected requests per second of at least 0"),
        (["cascade", "--repository", ".", "--percentile", "101"], "--percentile: expected a percentile above 0"),
        (["cascade", "--repository", ".", "--seed", "-1"], "--seed: expected at least 0"),
        (["cascade", "--repository", ".", "--seed", "1"], "--seed: planner exact has no setting seed"),
        (
            ["cascade", "--repository", ".", "--planner-setting", "rounds=1"],
            "planner exact: unknown setting rounds; expected none",
        ),
        (
            ["cascade", "--repository", ".", "--escalation", "small=0.1"],
            "--escalation: small is not a conditional stage (`when`); expected one of large",
        ),
        (["cascade", "--repository", ".", "--partitions", "gpu"], "--partitions: expected a number, or kinds such as"),
        (["cascade", "--repository", ".", "--partitions", "cpu999"], "this process may use only"),
    ],
)
def test_what_makes_no_sense_is_reported(
    sluice: Sluice, repository: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: str
) -> None:
    monkeypatch.chdir(repository)
    done = sluice("plan", *arguments)
    assert (done.status, done.out) == (2, "")
    assert expected in done.err


@pytest.mark.parametrize("escalation", ["large", "large=2", "=0.5", "large=often"])
def test_an_escalation_that_is_none(capsys: pytest.CaptureFixture[str], escalation: str) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "cascade", "--escalation", escalation])
    assert f"expected STAGE=P with P from 0 to 1, got '{escalation}'" in capsys.readouterr().err


def test_a_stage_that_competes_on_more_partitions_than_there_are_is_refused(sluice: Sluice, repository: Path) -> None:
    (repository / "cascade" / "pipeline.yaml").write_text(CASCADE.replace("request.x}}", "request.x}, compete: {}}", 1))
    done = sluice("plan", "cascade", "--repository", repository, "--partitions", "cpu1")
    assert (done.status, done.out) == (2, "")
    assert done.err == (
        "sluice: pipeline cascade:1: stages.small.compete: 1 partition may hold model small:1; expected at least 2, "
        "one for each copy\n"
    )
