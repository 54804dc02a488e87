import json
from pathlib import Path

import pytest

from sluice.loadgen.cli.main import main
from tests.unit.loadgen.simulated_server import write_simulation

MIX = """
streams:
  - {model: small, share: 3, slo_ms: 100}
  - {name: careful, pipeline: cascade, share: 1, slo_ms: 200, rows: 2}
"""


@pytest.fixture
def shared(tmp_path: Path) -> list[str]:
    return ["--target", write_simulation(tmp_path), "--warmup", "0"]


def run(shared: list[str], folder: Path, *more: str, command: tuple[str, ...] = ("run",)) -> dict[str, object]:
    file = folder / "report.json"
    main([*command, *shared, *more, "--json", str(file)])
    report: dict[str, object] = json.loads(file.read_text())
    return report


def test_a_mix_is_played(shared: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mix = tmp_path / "mix.yaml"
    mix.write_text(MIX)
    report = run(shared, tmp_path, "--mix", str(mix), "--rate", "50", "--queries", "400")
    assert report["slo_met"] is False
    output = capsys.readouterr().out
    assert f"mix {mix}" in output
    assert "  objective  its own objective for 99 %" in output
    streams = [line.split(",")[0] for line in output.splitlines() if line.startswith("  stream ")]
    counts = [int(line.split(": ")[1].removesuffix(" queries")) for line in streams]
    assert [line.split()[1] for line in streams] == ["small:", "careful:"]
    assert counts == pytest.approx([300, 100], abs=4 * 9)
    stages = {(each["pipeline"], each["stage"]) for each in report["server"]["stages"]}  # type: ignore[index]
    assert stages == {("small:1", "small"), ("cascade:1", "small"), ("cascade:1", "large")}


def test_the_rate_may_come_from_the_arrivals(shared: list[str], tmp_path: Path) -> None:
    model = ["--model", "small"]
    profile = run(shared, tmp_path, *model, "--arrivals", "constant", "--profile", "10@1s,10..30@2s")
    assert profile["config"]["rate"] == pytest.approx(50 / 3)  # type: ignore[index]
    assert profile["metrics"]["queries"] == 49  # type: ignore[index]
    preset = run(shared, tmp_path, *model, "--preset", "normal", "--queries", "20")
    assert preset["config"]["rate"] == pytest.approx(1000 / 26.8)  # type: ignore[index]
    trace = tmp_path / "trace.csv"
    trace.write_text("t_s\n0\n1\n4\n")
    played = run(shared, tmp_path, *model, "--trace", str(trace))
    assert played["config"]["rate"] == 0.5  # type: ignore[index]
    assert played["metrics"]["queries"] == 3  # type: ignore[index]


def test_a_trace_that_names_models_is_a_mix_unless_a_model_is_given(
    shared: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("t_s,model,slo_ms\n0,small,9\n1,cascade,90\n2,small,11\n")
    arguments = ["--trace", str(trace), "--slo-ms", "70"]
    out = tmp_path / "schedule.csv"
    main(["schedule", "make", *shared, *arguments, "--out", str(out)])
    streams = [line.split(",")[2] for line in out.read_text().splitlines()[1:]]
    assert streams == ["0", "1", "0"]
    report = run(shared, tmp_path, *arguments)
    # `small` takes 10 ms: more than the 9 ms of the first query, and less than the 11 ms of the last.
    assert report["metrics"]["good"] == 2  # type: ignore[index]
    report = run(shared, tmp_path, *arguments, "--slo-scale", "relaxed")
    assert report["metrics"]["good"] == 3  # type: ignore[index]
    out.unlink()
    main(["schedule", "make", *shared, *arguments, "--model", "small", "--out", str(out)])
    assert out.read_text().startswith("due_ns,sample\n")


def test_a_schedule_file_is_what_a_run_plays(
    shared: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", "small", "--rate", "20", "--queries", "50", "--cancel", "50%@15ms", "--seed", "3"]
    drawn = run(shared, tmp_path, *options)
    file = str(tmp_path / "schedule.npz")
    made = run(shared, tmp_path, *options, "--out", file, command=("schedule", "make"))
    played = run(shared, tmp_path, "--model", "small", "--schedule", file)
    assert drawn["schedule_sha256"] == made["digest"] == played["schedule_sha256"]
    assert drawn["metrics"]["latency_ms"] == played["metrics"]["latency_ms"]  # type: ignore[index]
    capsys.readouterr()
    assert main(["schedule", "inspect", file]) == 0
    assert f"  digest     {made['digest']}\n" in capsys.readouterr().out


def test_queries_are_given_up(shared: list[str], tmp_path: Path) -> None:
    report = run(shared, tmp_path, "--model", "small", "--rate", "1", "--queries", "400", "--cancel", "25%@9.5ms")
    metrics = report["metrics"]
    assert isinstance(metrics, dict)
    assert metrics["cancelled"] == pytest.approx(100, abs=4 * 9)
    assert metrics["ok"] + metrics["cancelled"] == 400


def test_own_objectives_decide(shared: list[str], tmp_path: Path) -> None:
    arguments = ["--model", "small", "--rate", "1", "--queries", "400", "--deadline-spread", "5..15ms"]
    metrics = run(shared, tmp_path, *arguments)["metrics"]
    assert isinstance(metrics, dict)
    # Half of the objectives are below the 10 ms that a query takes.
    assert metrics["good"] == pytest.approx(200, abs=40)


def test_a_schedule_of_other_samples_is_refused(
    shared: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "schedule.csv"
    file.write_text("due_ns,sample\n0,64\n")
    assert main(["run", *shared, "--model", "small", "--schedule", str(file)]) == 1
    assert "carries request 64; expected one of the 64 that the samples give" in capsys.readouterr().err
    assert main(["run", *shared, "--model", "small", "--scenario", "jobs", "--schedule", str(file)]) == 1
    assert "--schedule: requires --scenario server, got jobs" in capsys.readouterr().err
    making = ["--scenario", "single-stream", "--queries", "9", "--model", "small", "--out", str(tmp_path / "s.csv")]
    assert main(["schedule", "make", *shared, *making]) == 1
    assert "--scenario single-stream: has no due times to write; expected server" in capsys.readouterr().err
    file.write_text("due_ns,sample,stream\n0,6,1\n")
    assert main(["run", *shared, "--model", "small", "--schedule", str(file)]) == 1
    assert "made for another mix" in capsys.readouterr().err


RUN = ["--rate", "1", "--queries", "5"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (RUN, "--model: missing; expected --model, --mix, or a --trace that names models"),
        (["--model", "small", "--mix", "x", *RUN], "--model: a mix has its own; expected no --model beside --mix"),
        (["--mix", "x", "--slo-ms", "5", *RUN], "--slo-ms: a mix has its own"),
        (["--mix", "missing.yaml", *RUN], "--mix: missing.yaml: cannot be read: No such file"),
        (["--model", "small", "--queries", "5"], "--rate: expected a number above 0"),
        (
            ["--model", "small", "--scenario", "single-stream", "--arrivals", "gamma"],
            "--arrivals gamma: requires --rate",
        ),
        (["--model", "small", "--cv", "2", *RUN], "--cv: requires --arrivals gamma or uniform, got --arrivals poisson"),
        (["--model", "small", "--preset", "heavy", "--cv", "2", *RUN], "--preset: stands alone; expected no --cv"),
        (
            ["--model", "small", "--arrivals", "mmpp", "--profile", "1@1s", *RUN],
            "--profile: requires --arrivals poisson",
        ),
        (["--model", "small", "--trace", "missing.csv", *RUN], "--trace: missing.csv: cannot be read"),
        (
            ["--model", "small", "--slo-ms", "5", "--deadline-spread", "1..2ms", *RUN],
            "--deadline-spread: stands in",
        ),
        (["--model", "small", "--slo-scale", "0", *RUN], "--slo-scale: expected a number above 0, got 0"),
        (["--model", "small", "--schedule", "x.npz", "--cv", "2"], "--cv: requires"),
        (["--model", "small", "--schedule", "x.npz", "--preset", "heavy"], "--schedule: the file has the traffic"),
        (
            ["--model", "small", "--schedule", "x.npz", "--rate", "5"],
            "--schedule: the file has the traffic; expected no --r",
        ),
        (
            ["--model", "small", "--schedule", "x.npz", "--duration", "5"],
            "--schedule: the file has the traffic; expected",
        ),
        (["--model", "small", "--schedule", "x.npz"], "--schedule x.npz: cannot be read"),
        (["--model", "small", "--slo-scale", "strict", *RUN], "--slo-scale: multiplies objectives; expected some, by"),
        (["--model", "small", "--duration", "5"], "--rate: expected a number above 0 and at most 1000000000 queries a"),
    ],
)
def test_traffic_that_cannot_be_made_is_refused(
    shared: list[str], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *shared, *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--cancel", "10@50ms", "expected PERCENT%@TIME, such as 10%@50ms, got '10@50ms'"),
        ("--cancel", "0%@50ms", "expected a share above 0 % and at most 100 %, got 0 %"),
        ("--cancel", "10%@10000000000ms", "expected a time of 0 to 1e+09 ms, got 1e+10"),
        ("--cancel", "10%@soon", "expected PERCENT%@TIME"),
        ("--deadline-spread", "50", "expected LOW..HIGH, such as 50..200ms, got '50'"),
        ("--deadline-spread", "50..20ms", "expected LOW..HIGH with 0 < LOW < HIGH, got 50..20 ms"),
        ("--slo-scale", "lax", "expected a number, strict, moderate, relaxed; got 'lax'"),
        ("--profile", "100", "expected RATE@TIME or RATE..RATE@TIME"),
        ("--states", "1", "expected FACTOR@TIME"),
    ],
)
def test_a_value_that_cannot_be_read_is_a_usage_error(
    option: str, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--target", "sim:x", "--model", "m", option, text])
    assert ended.value.code == 1
    assert f"argument {option}: {message}" in capsys.readouterr().err


def test_find_max_judges_each_query_of_a_mix_by_its_own_objective(
    shared: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mix = tmp_path / "mix.yaml"
    mix.write_text("streams: [{model: small, slo_ms: 9}, {name: slow, model: small, slo_ms: 1000}]\n")
    arguments = ["--mix", str(mix), "--start", "1", "--max-probes", "2", "--duration", "2000"]
    assert main(["find-max", *shared, *arguments]) == 2
    # Half of the queries have an objective that lone ones miss.
    assert "no rate met the objective" in capsys.readouterr().out


def test_a_trace_with_arrivals_that_name_no_model_is_refused(
    shared: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("t_s,model\n0,small\n5,\n")
    assert main(["run", *shared, "--trace", str(tmp_path / "t.csv")]) == 1
    assert "t.csv: some arrivals name no model; expected one in each row, or --model" in capsys.readouterr().err
