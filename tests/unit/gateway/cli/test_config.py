import json
import re
import sys
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from sluice.gateway.cli.main import COMMANDS, build_parser, main
from sluice.gateway.config.contradictions import contradictions
from sluice.gateway.config.schemas import SCHEMAS
from sluice.gateway.config.server_config import convert_config
from tests.support.configuration_files import FILES

TEXT = "http_port: 8123\nlimits:\n  memory_mb: 1MiB\nrestricted: [{groups: [trace], header: k, value: s3cret}]\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sluice.yaml"
    path.write_text(TEXT)
    return path


def test_every_setting_is_shown_with_its_origin(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_REPOSITORY", "/a,/b")
    monkeypatch.setenv("SLUICE_HOST", "::1")
    assert main(["config", "show", "--config", str(file), "--host", "127.0.0.1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["http_port"] == {"value": 8123, "origin": f"{file}:1"}
    assert shown["limits.memory_mb"] == {"value": 1, "origin": f"{file}:3"}
    assert shown["limits.queue_requests"] == {"value": 4096, "origin": "default"}
    assert shown["repository"] == {"value": ["/a", "/b"], "origin": "SLUICE_REPOSITORY"}
    assert shown["host"] == {"value": "127.0.0.1", "origin": "--host"}
    assert "s3cret" not in json.dumps(shown)


def test_a_check_names_the_line_of_what_cannot_work_together(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "--config", str(file)]) == 0
    assert f"{file}:3: warning: limits.memory_mb: memory_mb 1 is less than a request" in capsys.readouterr().out
    assert main(["config", "check", "--config", str(file), "--strict"]) == 1


def test_a_check_names_all_that_a_server_could_not_start_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sluice.yaml"
    file.write_text(
        "partitions: [{name: a, cores: [99999]}]\n"
        "tls: {certificate: missing.pem, key: missing.pem}\n"
        "limits:\n  input_arena_mb: 1000000000000000\n"
        "repository: missing\n"
    )
    assert main(["config", "check", "--config", str(file)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.removeprefix(f"sluice: {file}:")[:30] for line in lines] == [
        "1: partition a: core 99999 is ",
        "4: limits: input_arena_mb: too",
        "2: tls: missing.pem cannot be ",
        "5: repository: missing: expect",
    ]


def test_a_directory_on_the_command_line_replaces_that_of_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_REPOSITORY", "/a")
    assert main(["config", "show", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["repository"] == {"value": [str(tmp_path)], "origin": "DIR"}


def test_a_model_file_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["serve"], ["config", "check"]):
        assert main([*command, str(tmp_path / "modles")]) == 2
        assert f"{tmp_path / 'modles'}: no such file or directory" in capsys.readouterr().err


def test_settings_in_the_place_of_a_model_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sluice.yaml"
    path.write_text("http_port: 8080\n")
    for command in (["serve"], ["config", "check"], ["config", "show"]):
        assert main([*command, str(path)]) == 2
        assert f"{path}: expected a model file, or a model repository; a file of settings" in capsys.readouterr().err


def test_one_port_for_both_protocols_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "--http-port", "8001"]) == 2
    assert "grpc_port: expected another port than http_port, got 8001 for both" in capsys.readouterr().err


def test_a_repository_without_models_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(tmp_path)]) == 2
    assert f"{tmp_path}: no models; expected NAME/VERSION/model.onnx" in capsys.readouterr().err


def test_a_source_that_lacks_its_packages_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert main(["config", "check", "s3://bucket/models"]) == 2
    assert capsys.readouterr().err.startswith("sluice: settings: s3://bucket/models: cannot be read without more pack")


def test_a_value_of_the_environment_is_refused_by_its_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HTTP_PORT", "many")
    with pytest.raises(SystemExit):
        main(["config", "show"])
    assert "(from the environment: SLUICE_HTTP_PORT)" in capsys.readouterr().err
    monkeypatch.setenv("SLUICE_HTTP_PORT", "tcp://10.0.0.1:80")  # of a service of Kubernetes
    assert main(["config", "show"]) == 0


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["srve"], "serve"),
        (["serve", "--reposiory", "x"], "--repository"),
        (["serve", "--control", "pol"], "poll"),
        (["model", "lst"], "list"),
    ],
)
def test_a_mistyped_argument_is_answered_with_what_was_meant(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert f"did you mean '{meant}'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("limits: {queue_requests: 4}", "limits.queue_requests"),
        ("models: {m: {policy: {name: timeout, preferred: [128]}}}", "models.m.policy.preferred"),
        ("{default_slo_ms: 100, policy: {name: timeout, max_delay_ms: 3000}}", "policy.max_delay_ms"),
        ("models: {m: {policy: {name: static, max_batch_size: 128}}}", "models.m.policy.max_batch_size"),
        ("{default_slo_ms: 100, policy: {name: static, batch_timeout_micros: 100000}}", "policy.batch_timeout_micros"),
        ("{default_slo_ms: 100, policy: {name: aimd, target_ms: 100}}", "policy.target_ms"),
        ("{planner: infless, policy: aimd}", "planner"),
        ("{planner: esg, instances: balance}", "planner"),
        ("planner: {name: orion, seed: 3}", "planner.seed"),
        ("{percentile: 100, policy: aimd}", "percentile"),
        ("{percentile: 100, instances: srtf}", "percentile"),
        ("{percentile: 100, planner: infless}", "percentile"),
        ("{percentile: 100, planner: {name: exact, replan: once}}", "percentile"),
        ("residency: {on_miss: stop, prewarm: 'off'}", "residency.on_miss"),
        ("limits: {memory_mb: 1}", "limits.memory_mb"),
        ("limits: {input_arena_mb: 1}", "limits.input_arena_mb"),
        ("poll_s: 3", "poll_s"),
        ("{source_cache: /cache, repository: /models}", "source_cache"),
    ],
)
def test_settings_that_cannot_work_together_are_found(text: str, place: str) -> None:
    assert [each.place for each in contradictions(convert_config(yaml.safe_load(text), "f"))] == [place]


@pytest.mark.parametrize(
    "text",
    [
        "{max_batch_size: 16, policy: static}",
        "{planner: infless, policy: aimd, models: {m: {policy: deadline}}}",
        "{planner: esg, instances: balance, models: {m: {instances: locality}}}",
        "planner: {name: aquatope, seed: 3}",
        "{percentile: 100, instances: balance, models: {m: {instances: locality}}}",
        "{percentile: 99.9, instances: balance}",
        "residency: {on_miss: stop, prewarm: speculative}",
    ],
)
def test_settings_that_work_together_are_no_contradiction(text: str) -> None:
    assert list(contradictions(convert_config(yaml.safe_load(text), "f"))) == []


@pytest.mark.parametrize("kind", [file.kind for file in FILES if file.kind in SCHEMAS])
def test_the_schema_of_a_kind_of_file_takes_a_right_one_and_no_unknown_key(kind: str) -> None:
    (text,) = (file.text for file in FILES if file.kind == kind)
    validator = jsonschema_rs.validator_for(SCHEMAS[kind]())
    validator.validate(yaml.safe_load(text))
    assert not validator.is_valid(yaml.safe_load(text) | {"unknown": 1})


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_completes_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(re.search(rf"\b{name}\b", script) for name in build_parser(tuple(COMMANDS)).commands())
    assert "http-port" in script
