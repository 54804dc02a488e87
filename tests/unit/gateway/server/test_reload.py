"""A running server takes some changed keys of its configuration, and says of the others that it does not."""

import asyncio
import logging
import threading
from collections.abc import Callable

import msgspec
import pytest

from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.config.tls import TlsSettings
from sluice.gateway.server.reload import Reload
from sluice.models.errors import ConfigError
from sluice.mps.partitions.partition import CpuPartition

BEGIN = ServerConfig()


def reloaded(read: Callable[[], ServerConfig]) -> ServerConfig:
    """The configuration that is in force after a reload."""

    async def run() -> ServerConfig:
        reload = Reload(BEGIN, read, None)
        reload()
        await reload.idle.wait()
        return reload.config

    return asyncio.run(run())


def changed(**keys: object) -> Callable[[], ServerConfig]:
    return lambda: msgspec.structs.replace(BEGIN, **keys)


def test_changed_keys_are_taken_or_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        config = reloaded(changed(drain_timeout_s=5, max_body_bytes=1, host="::1"))
    assert config == msgspec.structs.replace(BEGIN, drain_timeout_s=5)
    lines = [each for each in caplog.records if each.name.endswith("reload")]
    assert [(each.message, each.__dict__["fields"]) for each in lines] == [
        ("configuration read again", {"changed": "drain_timeout_s"}),
        ("changed keys take effect after a restart", {"keys": "host,max_body_bytes"}),
    ]


def _no_such_key() -> ServerConfig:
    raise ConfigError("sluice.yaml: no such key")


def _too_deep() -> ServerConfig:
    raise RecursionError("too deep")


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (_no_such_key, "sluice.yaml: no such key"),
        (_too_deep, "RecursionError: too deep"),
        (
            changed(partitions=(CpuPartition("a", (99_999,)),), drain_timeout_s=5),
            "partition a: core 99999 is not available",
        ),
        (changed(partitions=100_000, drain_timeout_s=5), "partitions: expected 1 to "),
        (changed(tls=TlsSettings("missing.pem", "missing.pem"), drain_timeout_s=5), "tls: missing.pem cannot be read"),
    ],
)
def test_what_a_server_could_not_start_with_leaves_the_configuration_as_it_is(
    caplog: pytest.LogCaptureFixture, read: Callable[[], ServerConfig], reason: str
) -> None:
    assert reloaded(read) is BEGIN
    (line,) = caplog.records
    assert line.message == "the old configuration stays"
    assert str(line.__dict__["fields"]["reason"]).startswith(reason)


def test_a_file_that_takes_its_time_is_waited_for_elsewhere_and_read_once_more() -> None:
    go_on = threading.Event()
    reads: list[int] = []

    def read() -> ServerConfig:
        assert go_on.wait(30)
        reads.append(len(reads))
        return BEGIN

    async def run() -> None:
        reload = Reload(BEGIN, read, None)
        for _ in range(3):
            reload()
        assert not reads
        go_on.set()
        await reload.idle.wait()

    asyncio.run(run())
    assert reads == [0, 1]
