import re

import pytest

from sluice.batcher.drivers.journal import decode_spec
from sluice.batcher.interface.config import Limits, PolicyConfig
from sluice.batcher.policies import registry
from sluice.batcher.policies.base import AnyPolicySettings, PolicySettings
from sluice.batcher.policies.deadline import DeadlinePolicy, DeadlineSettings, DeferringPolicy, Objective
from sluice.batcher.policies.no_batching import NoBatching, NoBatchingSettings
from sluice.batcher.policies.registry import (
    DEFAULT,
    RegisteredPolicy,
    batch_policies,
    batch_policy,
    decode_policy,
    select_policy,
)
from sluice.batcher.policies.timeout import TimeoutConfig, TimeoutPolicy, TimeoutSettings
from sluice.models.errors import ConfigError


def test_the_policies_of_the_room_are_known_by_name() -> None:
    assert {"deadline", "none", "timeout"} <= batch_policies().keys()
    assert DEFAULT in batch_policies()


def test_a_policy_is_made_from_its_configuration() -> None:
    limits = Limits()
    assert type(select_policy(DeadlineSettings(), limits)) is DeadlinePolicy
    assert type(select_policy(DeadlineSettings(Objective.COST), limits)) is DeferringPolicy
    assert type(select_policy(TimeoutConfig(), limits)) is TimeoutPolicy
    assert type(select_policy(NoBatchingSettings(), limits)) is NoBatching


def test_a_configuration_that_belongs_to_no_policy_makes_none() -> None:
    with pytest.raises(ValueError, match=r"PolicyConfig: no batch policy is registered for this configuration"):
        select_policy(PolicyConfig(), Limits())


def test_a_name_is_registered_once() -> None:
    class Other(TimeoutPolicy):
        pass

    message = f"batch policy timeout: registered by {TimeoutPolicy.__module__} and by {__name__}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        batch_policy(TimeoutSettings)(Other)


def test_a_policy_names_itself_by_its_tag() -> None:
    class Untagged(PolicySettings, frozen=True):
        pass

    with pytest.raises(ConfigError, match=r'Untagged: no tag; expected tag="NAME"'):
        batch_policy(Untagged)


def test_a_policy_is_registered_with_its_settings() -> None:
    with pytest.raises(ConfigError, match=r"TimeoutPolicy: no settings of a policy; expected @batch_policy\(SETTINGS"):
        batch_policy(TimeoutPolicy)  # type: ignore[arg-type]


def test_another_policy_does_not_widen_what_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Needing(PolicySettings, frozen=True, tag="needing"):
        rows: int
        depth: int = 3

    needing = RegisteredPolicy("needing", Needing, Needing, NoBatching)
    known = dict(batch_policies()) | {"needing": needing}
    monkeypatch.setattr(registry, "batch_policies", lambda: known)
    for key, value in (("rows", 1), ("depth", 3)):
        with pytest.raises(ValueError, match=f"{key} belongs to policy needing, not to none"):
            decode_policy(AnyPolicySettings, {"name": "none", key: value})


@pytest.mark.parametrize(
    ("document", "settings"),
    [
        ({}, DeadlineSettings()),
        ({"objective": "cost"}, DeadlineSettings(Objective.COST)),
        ({"name": "timeout", "preferred": [4, 8], "max_delay_ms": 1.5}, TimeoutSettings((4, 8), 1.5)),
        ({"name": "none"}, NoBatchingSettings()),
        # Keys of another policy are accepted with their defaults.
        ({"name": "none", "preferred": [], "max_delay_ms": 0, "objective": "latency"}, NoBatchingSettings()),
    ],
)
def test_settings_are_read_as_users_write_them(document: object, settings: AnyPolicySettings) -> None:
    assert decode_policy(AnyPolicySettings, document) == settings


@pytest.mark.parametrize(
    ("policy", "config"),
    [
        (b'{"name":"deadline","objective":"cost"}', DeadlineSettings(Objective.COST)),
        (b'{"name":"none"}', NoBatchingSettings()),
        (b'{"name":"timeout","preferred":[4],"max_delay_ns":7}', TimeoutConfig((4,), 7)),
        # Journals used to hold the keys of all policies.
        (
            b'{"name":"deadline","preferred":[],"max_delay_ns":0,"objective":"latency","levels":{"count":0,"default":0,'
            b'"policy":{},"policies":{}},"preserve_ordering":false}',
            DeadlineSettings(),
        ),
        (
            b'{"name":"timeout","preferred":[4],"max_delay_ns":7,"objective":"latency","levels":{"count":0,"default":0,'
            b'"policy":{},"policies":{}},"preserve_ordering":true}',
            TimeoutConfig((4,), 7, preserve_ordering=True),
        ),
    ],
)
def test_a_journal_has_the_configuration_of_a_policy(policy: bytes, config: PolicyConfig) -> None:
    line = b'{"models":[{"key":"m:1","max_batch":8,"policy":' + policy + b'}],"pipelines":[],"partitions":[]}'
    assert decode_spec(line).models[0].policy == config


def test_planners_know_what_a_policy_does_with_time() -> None:
    rate = 100.0
    eager, deferring = DeadlineSettings(), DeadlineSettings(Objective.COST)
    none, timeout = NoBatchingSettings(), TimeoutConfig(max_delay_ns=5)
    assert [each.longest_wait_ns(rate) for each in (eager, deferring, none, timeout)] == [0, None, 0, 5]
    assert deferring.longest_wait_ns(0) == 0
    assert [each.defers for each in (eager, deferring, none, timeout)] == [False, True, False, False]
    assert [each.combines for each in (eager, deferring, none, timeout)] == [True, True, False, True]
