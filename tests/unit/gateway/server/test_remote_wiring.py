"""The executor over remote workers, as it is put together from the settings."""

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from sluice.gateway.cluster.links import NodeLink
from sluice.gateway.config.remote_settings import PartitionSettings, RemoteClass, RemoteTls
from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.partitions.inventory import LinkReport
from sluice.gateway.server.remote_wiring import link_reports, remote_executor
from sluice.models.errors import ConfigError
from tests.support.certificates import certificate

EDGE = RemoteClass("edge", "cpu1", urls=("127.0.0.1:9001",))


def refusal(settings: PartitionSettings) -> str:
    config = ServerConfig(partitions=settings)
    with pytest.raises(ConfigError) as refused:
        remote_executor(config, MagicMock(), {}, {"edge-0": {}}, {"edge-0": ()}, lambda: 0)
    return str(refused.value)


def test_a_key_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    settings = PartitionSettings(remote=(EDGE,), key_file=str(tmp_path / "key"))
    assert refusal(settings).startswith(f"partitions: the key file {tmp_path}/key cannot be read")


def test_certificates_that_cannot_be_read_are_named_by_their_keys(tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("nothing")
    certificate(tmp_path, "ca")
    ca, key, nothing = (str(tmp_path / name) for name in ("ca.pem", "ca.key", "no.pem"))
    of_ca = PartitionSettings(remote=(EDGE,), tls=RemoteTls(nothing, ca, key))
    assert refusal(of_ca).startswith(f"partitions: tls.ca {nothing}: expected certificates in PEM")
    own = PartitionSettings(remote=(EDGE,), tls=RemoteTls(ca, nothing, key))
    assert refusal(own).startswith(f"partitions: tls.certificate {nothing} tls.private_key {key}: expected")


def test_each_slot_is_a_partition_of_the_executor() -> None:
    config = ServerConfig(partitions=PartitionSettings(remote=(EDGE,)))
    executor = remote_executor(config, MagicMock(), {}, {"edge-0": {}}, {"edge-0": ()}, lambda: 0)
    assert list(executor.names) == ["edge-0"]
    assert list(executor.sources) == ["edge"]


def test_a_link_is_reported_once_it_was_measured() -> None:
    link = NodeLink()
    report = link_reports(MagicMock(links={"n1": link}))
    assert (report("n1"), report("n2")) == (None, None)
    link.answered(250_000)
    assert report("n1") == LinkReport(0.25)
    link.transferred(1_000_000, 10_250_000)
    assert report("n1") == LinkReport(0.25, 100.0)
