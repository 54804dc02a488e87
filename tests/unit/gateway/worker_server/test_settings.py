"""The settings of worker servers."""

from pathlib import Path

import pytest

from sluice.gateway.worker_server.settings import WorkerSettings, worker_settings
from sluice.models.errors import ConfigError
from sluice.mps.partitions.partition import CpuPartition, MigPartition

CPU = {"kind": "cpu", "name": "p0", "cores": [0, 1]}


def settings(tmp_path: Path, text: str, **given: object) -> WorkerSettings:
    file = tmp_path / "worker.yaml"
    file.write_text(text)
    return worker_settings(file, given)


def test_options_replace_keys_of_the_file(tmp_path: Path) -> None:
    text = "name: w1\nnode: n1\npartition: {kind: mig, name: m, uuid: MIG-1, profile: 1g.10gb}\ndrain_s: 2min\n"
    read = settings(tmp_path, text)
    assert (read.label, read.node, read.drain_s) == ("w1", "n1", 120)
    assert read.partition == MigPartition("m", "MIG-1", "1g.10gb")
    read = settings(tmp_path, text, node="n2", partition=CPU)
    assert (read.node, read.partition) == ("n2", CpuPartition("p0", (0, 1)))


def test_a_worker_without_a_name_has_that_of_its_partition() -> None:
    read = worker_settings(None, {"partition": CPU})
    assert read.label == "p0"
    assert read.listen == "127.0.0.1:0"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name: w1", "worker.yaml: expected a partition, or --cores or --gpu"),
        ("- 1", "expected the settings of a worker, got list"),
        ("partition: {kind: gpu}", "partition: kind: expected one of cpu, mig, mps, got 'gpu'"),
        ("partition: {name: a, cores: [0]}\nlisten: here", "listen: expected an address HOST:PORT"),
        ("partition: {name: a, cores: [0]}\ndrain_s: -1", "drain_s: expected a finite time of at least 0, got -1"),
        ("partition: {name: a, cores: [0]}\ncache_mb: 0", "cache_mb: expected at least 1, got 0"),
        ("partition: {name: a, cores: [0]}\nlimits: {input_arena_mb: 0}", "input_arena_mb: expected at least 1, got 0"),
        ("partition: {name: a, cores: [0]}\nport: 1", "port"),
        ("partition: {name: a, cores: [0]}\ntls: {ca: ca.pem}", "certificate"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings(tmp_path, text)
    assert reason in str(refused.value)


def test_a_worker_without_a_partition() -> None:
    with pytest.raises(ConfigError, match="expected --config with a partition, --cores or --gpu"):
        worker_settings(None, {"name": "w"})
