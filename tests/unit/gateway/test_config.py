import re
from pathlib import Path

import pytest

from batcher.config import Limits, PolicyConfig, PolicyName
from gateway.config import ServerConfig, read_config
from models.errors import ConfigError
from models.units import NS_PER_MS
from mps.partition import CpuPartition


def write(directory: Path, text: str) -> Path:
    path = directory / "sluice.yaml"
    path.write_text(text)
    return path


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, ""))
    assert config == ServerConfig()
    assert (config.default_slo_ms, config.max_body_bytes, config.drain_timeout_s) == (10_000, 67_108_864, 30)
    assert config.limits.config() == Limits()
    assert config.policy.config() == PolicyConfig(PolicyName.DEADLINE)


def test_every_setting_can_be_written(tmp_path: Path) -> None:
    config = read_config(
        write(
            tmp_path,
            """
            http_port: 0
            partitions:
              - {kind: cpu, name: left, cores: [0]}
              - {kind: cpu, name: right, cores: [1, 2]}
            policy: {name: timeout, preferred: [4, 8], max_delay_ms: 1.5}
            models:
              mlp: {max_batch_size: 16, policy: {name: none}}
            limits: {queue_requests: 10, memory_mb: 1, hand_off_us: 80}
            """,
        )
    )
    assert config.partitions == (CpuPartition("left", (0,)), CpuPartition("right", (1, 2)))
    assert config.policy.config() == PolicyConfig(PolicyName.TIMEOUT, (4, 8), 3 * NS_PER_MS // 2)
    assert config.models["mlp"].max_batch_size == 16
    assert config.limits.config() == Limits(queue_requests=10, memory_bytes=1 << 20, hand_off_ns=80_000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port: 1", "Object contains unknown field `port`"),
        ("policy: {name: timeout, preferred: [0]}", "policy: expected preferred sizes of at least 1"),
        ("policy: {max_delay_ms: 3}", "policy: preferred and max_delay_ms belong to policy timeout, not to deadline"),
        ("policy: {name: greedy}", "policy.name: Invalid enum value 'greedy'"),
        ("limits: {queue_requests: many}", "limits.queue_requests: Expected `int`, got `str`"),
        ("limits: {queue_requests: 0}", "limits: expected limits of at least 1"),
        ("partitions: [{kind: cpu, name: a}]", "partitions[0]: Object missing required field `cores`"),
        ("models: {mlp: {max_batch_size: 0}}", "models[...]: expected a max_batch_size of at least 1"),
        ("max_batch_size: 0", "expected a max_batch_size of at least 1"),
        ("max_body_bytes: 0", "expected a max_body_bytes of at least 1"),
        ("limits: {output_arena_mb: 0}", "limits: expected limits of at least 1"),
        ("http_port: 70000", "expected ports from 0 (any free one) to 65535"),
        ("default_slo_ms: .nan", "expected a finite default_slo_ms above 0"),
        ("drain_timeout_s: -1", "expected a finite drain_timeout_s of at least 0"),
        ("host: [", "cannot be read: while parsing"),
    ],
)
def test_a_wrong_setting_is_named_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match="^" + re.escape(f"{path}: {message}")):
        read_config(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read: .*No such file"):
        read_config(tmp_path / "absent.yaml")
