"""Which hosts are the loopback, the names of a server, and the groups that are closed on a network."""

import pytest

from sluice.gateway.config.access import MANAGEMENT, host_names, is_loopback
from sluice.gateway.config.restricted import ApiGroup, RestrictedSettings, Restrictions
from sluice.gateway.config.server_config import ServerConfig

KEY = RestrictedSettings((ApiGroup.TRACE,), "admin-key", "s3cret")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "::ffff:127.0.0.1"])
def test_only_this_machine_reaches_a_loopback_address(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.7", "::ffff:192.0.2.7", "nowhere.invalid"])
def test_every_other_address_is_a_network(host: str) -> None:
    assert not is_loopback(host)


def test_a_server_on_the_loopback_knows_its_names() -> None:
    names = host_names("127.0.0.1", ["Models.Example", "fe80::1"])
    assert names is not None
    assert {b"localhost", b"127.0.0.1", b"[::1]", b"models.example", b"[fe80::1]"} <= names
    assert b"evil.example" not in names


def test_a_server_on_a_network_checks_names_only_if_some_are_configured() -> None:
    assert host_names("0.0.0.0", []) is None
    assert host_names("127.0.0.1", ["*"]) is None
    names = host_names("0.0.0.0", ["models.example"])
    assert names is not None
    assert {b"models.example", b"localhost"} <= names


def test_management_is_open_on_the_loopback() -> None:
    assert not ServerConfig().restrictions


def test_management_is_closed_on_a_network_unless_it_has_a_key_or_is_opened_by_name() -> None:
    config = ServerConfig(host="0.0.0.0", restricted=(KEY,), open_groups=(ApiGroup.LOGGING,))
    restrictions = config.restrictions
    refused = {group for group in ApiGroup if restrictions.refusal(group, {})}
    assert refused == {*MANAGEMENT} - {ApiGroup.LOGGING}
    key = {"admin-key": "s3cret"}
    assert restrictions.refusal(ApiGroup.TRACE, key) == ""
    assert "--open-group partitions" in restrictions.refusal(ApiGroup.PARTITIONS, key)


def test_explanations_have_the_key_of_traces_unless_they_have_their_own() -> None:
    own = RestrictedSettings((ApiGroup.EXPLAIN,), "own-key", "x")
    assert "'admin-key'" in Restrictions([KEY]).refusal(ApiGroup.EXPLAIN, {})
    assert "'own-key'" in Restrictions([KEY, own]).refusal(ApiGroup.EXPLAIN, {})


def test_shared_memory_on_a_network_needs_a_prefix() -> None:
    assert ServerConfig(allow_client_shm=True).shm_prefix == ""
    assert ServerConfig(allow_client_shm=True, host="0.0.0.0").shm_prefix is None
    assert ServerConfig(allow_client_shm=True, host="0.0.0.0", client_shm_prefix="/a_").shm_prefix == "a_"


def test_code_may_be_uploaded_on_a_network_with_a_key() -> None:
    key = RestrictedSettings((ApiGroup.MODEL_REPOSITORY,), "admin-key", "s3cret")
    assert ServerConfig(allow_upload=True, host="0.0.0.0", restricted=(key,)).allow_upload
