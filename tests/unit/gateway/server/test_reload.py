"""A running server takes some changed keys of its configuration, and says of the others that it does not."""

import logging

import msgspec
import pytest

from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.server.reload import Reload
from sluice.models.errors import ConfigError

BEGIN = ServerConfig()


def test_changed_keys_are_taken_or_named(caplog: pytest.LogCaptureFixture) -> None:
    read = msgspec.structs.replace(BEGIN, drain_timeout_s=5, max_body_bytes=1, host="::1")
    reload = Reload(BEGIN, lambda: read, None)
    with caplog.at_level(logging.INFO):
        reload()
    assert reload.config == msgspec.structs.replace(BEGIN, drain_timeout_s=5)
    assert [(each.message, each.__dict__["fields"]) for each in caplog.records] == [
        ("configuration read again", {"changed": "drain_timeout_s"}),
        ("changed keys take effect after a restart", {"keys": "host,max_body_bytes"}),
    ]


def test_a_wrong_file_leaves_the_configuration_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    def read() -> ServerConfig:
        raise ConfigError("sluice.yaml: no such key")

    reload = Reload(BEGIN, read, None)
    reload()
    assert reload.config is BEGIN
    assert caplog.records[0].message == "the old configuration stays"
