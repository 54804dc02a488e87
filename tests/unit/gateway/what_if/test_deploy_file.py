from pathlib import Path

import pytest

from sluice.gateway.what_if.deploy_file import PipelineLoad, read_deploy_file
from sluice.models.errors import ConfigError

WHOLE = """
repository: models
objective_ms: 50ms
rate: 300
pipelines:
  digits: {rate: 100, escalation: {large: 0.3}}
  other: {}
partitions: 2
settings: {http_port: 9000}
"""


def test_the_settings_of_a_server_come_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text(WHOLE)
    found = read_deploy_file(path)
    assert found.repository == tmp_path / "models", "it is relative to the file"
    assert (found.objective_ms, found.rate) == (50, 300)
    assert found.pipelines == {"digits": PipelineLoad(100, {"large": 0.3}), "other": PipelineLoad()}
    assert (found.config.default_slo_ms, found.config.http_port, found.config.partitions) == (50, 9000, 2)
    assert not found.chooses_partitions


def test_partitions_may_be_left_to_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text("repository: /models\nobjective_ms: 50\nrate: 300\n")
    assert read_deploy_file(path).chooses_partitions


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("objective_ms: 50ms", "objective_ms: 0", ":3: objective_ms: expected milliseconds above 0, got 0"),
        ("rate: 300", "rate: -1", ":4: rate: expected requests per second above 0, got -1"),
        ("rate: 100", "rate: 0", "pipelines.digits.rate: expected requests per second above 0, got 0"),
        ("large: 0.3", "large: 30", "pipelines.digits.escalation.large: expected a share from 0 to 1, got 30"),
        ("http_port: 9000", "default_slo_ms: 5", "settings.default_slo_ms: expected it as the key 'objective_ms'"),
        ("http_port: 9000", "http_prot: 9000", "http_prot"),
        ("repository: models", "repository: s3://a/b", ":2: repository: expected a directory, in which profiles"),
        ("repository: models", "repo: models", "repo"),
        ("partitions: 2", "partitions: many", "partitions"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, before: str, after: str, expected: str) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text(WHOLE.replace(before, after))
    with pytest.raises(ConfigError) as raised:
        read_deploy_file(path)
    assert str(raised.value).startswith(str(path))
    assert expected in str(raised.value)
