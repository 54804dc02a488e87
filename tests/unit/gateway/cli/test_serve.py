import json
from pathlib import Path
from typing import Any

import pytest

from sluice.gateway.cli.main import main


def test_options_override_the_configuration_and_are_checked_alike(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "mlp.onnx", "--http-port", "70000"]) == 2
    assert capsys.readouterr().err == (
        "sluice: command line: http_port: expected a port from 0 (any free one) to 65535, got 70000\n"
    )


def test_what_neither_a_repository_nor_clients_give_cannot_be_served(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert "expected --repository DIR, model files, a triton server in the configuration, or" in capsys.readouterr().err
    assert main(["serve", "mlp.onnx", "--load-model", "mlp"]) == 2
    assert "load_models requires control explicit, got control none" in capsys.readouterr().err


def test_a_directory_is_a_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directories = [str(tmp_path / name) for name in ("a", "b")]
    for directory in directories:
        Path(directory).mkdir()
    by_option = shown(["--repository", directories[0], "--repository", directories[1]], capsys)
    assert shown(directories, capsys) == by_option | {"repository": {"value": directories, "origin": "DIR"}}
    assert main(["serve", directories[0], "--repository", directories[1]]) == 2
    assert capsys.readouterr().err == (
        f"sluice: expected the repository as {directories[0]} or as --repository {directories[1]}, got both\n"
    )
    (tmp_path / "mlp.onnx").touch()
    assert main(["serve", directories[0], str(tmp_path / "mlp.onnx")]) == 2
    assert capsys.readouterr().err == "sluice: expected either --repository DIR or model files\n"


def test_the_option_for_partitions_means_those_of_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sluice.yaml"
    file.write_text("partitions: {local: 1, remote: [{name: edge, kind: cpu1, urls: ['10.0.0.5:9001']}]}")
    found = shown(["--config", str(file), "--partitions", "2"], capsys)
    assert found["partitions.local"] == {"value": 2, "origin": "--partitions"}
    assert found["partitions.remote"]["value"][0]["urls"] == ["10.0.0.5:9001"]
    file.write_text("partitions: 1")
    assert shown(["--config", str(file), "--partitions", "2"], capsys)["partitions"]["value"] == 2


def test_an_empty_repository_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith(f"sluice: no model can be served: nothing is in {tmp_path}\n")


def test_a_url_is_a_repository(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(["s3://bucket/models"], capsys)
    assert found["repository"] == {"value": ["s3://bucket/models"], "origin": "DIR"}
    assert main(["config", "check", "s3://bucket/models"]) == 0
    assert main(["serve", "ftp://host/models"]) == 2
    assert "repository: expected a directory or a URL with s3, gs, " in capsys.readouterr().err
    for command in (["validate"], ["profile", "--repository"], ["plan", "m", "--repository"]):
        with pytest.raises(SystemExit):
            main([*command, "s3://bucket/models"])
        assert "expected a path on this machine, got 's3://bucket/models'" in capsys.readouterr().err


def test_a_directory_replaces_the_repository_of_the_environment_and_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_REPOSITORY", "/models")
    (tmp_path / "sluice.yaml").write_text("repository: /others\n")
    found = shown([str(tmp_path), "--config", str(tmp_path / "sluice.yaml")], capsys)
    assert found["repository"] == {"value": [str(tmp_path)], "origin": "DIR"}


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """All settings that `sluice serve` would have, with their origins."""
    assert main(["config", "show", "--json", *arguments]) == 0
    settings: dict[str, Any] = json.loads(capsys.readouterr().out)
    return settings


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("SLUICE_HTTP_PROT", "SLUICE_HTTP_PORT"),
        ("SLUICE_REPOSITOY", "SLUICE_REPOSITORY"),
        ("SLUICE_ALLOW_UPLAODS", "SLUICE_ALLOW_UPLOAD"),
        ("SLUICE_LOGLEVEL", "SLUICE_LOG_LEVEL"),
        ("SLUICE_SERVICE_HOST", None),  # Kubernetes sets it for a service of that name
        ("SLUICE_COMPILE", None),
    ],
)
def test_a_variable_with_nearly_the_name_of_an_option_is_reported(
    variable: str, meant: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "8123")
    assert main(["config", "check"]) == 0
    note = f"sluice: the environment variable {variable} has no effect; did you mean '{meant}'?\n"
    assert capsys.readouterr().err == ("" if meant is None else note)


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("SLUICE_CONTROL", "pol", "did you mean 'poll'?"),
        ("SLUICE_DEFAULT_SLO_MS", "50mss", "expected a number of milliseconds"),
        ("SLUICE_ALLOW_UPLOAD", "maybe", "SLUICE_ALLOW_UPLOAD: expected true or false, got 'maybe'"),
        ("SLUICE_HTTP_PORT", "70000", "command line and environment: http_port: expected a port"),
    ],
)
def test_a_wrong_value_of_a_variable_is_refused(
    variable: str, value: str, reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    try:
        status = main(["serve", "mlp.onnx"])
    except SystemExit as left:
        status = int(str(left.code))
    assert status == 2
    assert reason in capsys.readouterr().err


TRACE_CONFIG = [
    "mode=opentelemetry",
    "rate=0",
    "count=5",
    "level=TIMESTAMPS",
    "opentelemetry,url=collector:4318/v1/traces",
    "opentelemetry,resource=service.name=mine",
    "opentelemetry,resource=note=a=b",
    "opentelemetry,bsp_max_queue_size=100",
]


def test_traces_are_configured_as_those_of_triton(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").mkdir()
    options = [word for entry in TRACE_CONFIG for word in ("--trace-config", entry)]
    given = {name: each["value"] for name, each in shown([str(tmp_path / "a"), *options], capsys).items()}
    assert {name: value for name, value in given.items() if name.startswith("trace.")}.items() >= {
        "trace.mode": "opentelemetry",
        "trace.rate": 0,
        "trace.count": 5,
        "trace.level": "TIMESTAMPS",
        "trace.opentelemetry.endpoint": "http://collector:4318/v1/traces",
        "trace.opentelemetry.resource.service.name": "mine",
        "trace.opentelemetry.resource.note": "a=b",
        "trace.opentelemetry.queue_spans": 100,
    }.items()


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("mode", "expected KEY=VALUE or MODE,KEY=VALUE, got 'mode'"),
        ("rate=often", "rate: expected a whole number, got 'often'"),
        ("opentelemetry,resource=name", "opentelemetry,resource: expected KEY=VALUE, got 'name'"),
        ("triton,url=a", "expected one of mode, level, rate, count, triton,file, triton,log-frequency, "),
    ],
)
def test_a_wrong_setting_of_traces_is_refused(entry: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "mlp.onnx", "--trace-config", entry]) == 2
    assert f"--trace-config: {problem}" in capsys.readouterr().err


def test_headers_for_a_collector_are_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sluice.yaml"
    file.write_text("trace: {mode: opentelemetry, opentelemetry: {headers: {x-key: secret}}}")
    assert shown(["--config", str(file)], capsys)["trace.opentelemetry.headers.x-key"]["value"] == "********"
