"""Settings that are right by themselves but cannot work together: reported before a server starts."""

from collections.abc import Iterator
from typing import NamedTuple

from sluice.batcher.interface.instance_config import instance_config
from sluice.batcher.interface.planner_config import Replan, ServedPlanner
from sluice.batcher.interface.residency_config import OnMiss, Prewarm
from sluice.batcher.policies.base import AnyPolicySettings
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.policies.static import StaticSettings
from sluice.batcher.policies.timeout import TimeoutSettings
from sluice.batcher.settings.planner import planner_settings
from sluice.gateway.config.access import is_loopback
from sluice.gateway.config.server_config import ModelControlMode, ServerConfig
from sluice.models.units import NS_PER_MS, NS_PER_US

_MIB = 1 << 20
_US_PER_MS = NS_PER_MS // NS_PER_US


class Contradiction(NamedTuple):
    """A setting, by its place, and why it has not the effect that it seems to have."""

    place: str
    text: str


def contradictions(config: ServerConfig) -> Iterator[Contradiction]:
    """All contradictions of a configuration, each between settings that are valid alone."""
    yield from _batches(config)
    yield from _memory(config)
    yield from _planner(config)
    yield from _without_effect(config)


def _batches(config: ServerConfig) -> Iterator[Contradiction]:
    limit = config.limits.queue_requests
    if limit < config.max_batch_size:
        yield Contradiction(
            "limits.queue_requests",
            f"queue_requests {limit} is below max_batch_size {config.max_batch_size}: requests of one row never fill "
            "a batch",
        )
    yield from _policy(config, "policy", config.policy, config.max_batch_size)
    for name, model in config.models.items():
        size = config.max_batch_size if model.max_batch_size is None else model.max_batch_size
        if model.policy is not None:
            yield from _policy(config, f"models.{name}.policy", model.policy, size)


def _policy(
    config: ServerConfig, place: str, policy: AnyPolicySettings, max_batch_size: int
) -> Iterator[Contradiction]:
    for key, size in _sizes(policy):
        if size > max_batch_size:
            yield Contradiction(
                f"{place}.{key}",
                f"the size {size} in {key} is above max_batch_size {max_batch_size}: no batch ever has it",
            )
    for key, unit_ms in (("max_delay_ms", 1.0), ("batch_timeout_micros", 1 / _US_PER_MS), ("target_ms", 1.0)):
        given: float = getattr(policy, key, 0.0)
        if given * unit_ms >= config.default_slo_ms:
            effect = "take so long themselves" if key == "target_ms" else "wait until they are late"
            yield Contradiction(
                f"{place}.{key}",
                f"{key} {given:g} is not below default_slo_ms {config.default_slo_ms:g}: requests without an objective "
                f"of their own may {effect}",
            )


def _sizes(policy: AnyPolicySettings) -> Iterator[tuple[str, int]]:
    """The largest size that a policy wants by a key, unless it is the default."""
    if isinstance(policy, TimeoutSettings) and policy.preferred:
        yield "preferred", max(policy.preferred)
    if isinstance(policy, StaticSettings) and policy.max_batch_size != StaticSettings().max_batch_size:
        yield "max_batch_size", policy.max_batch_size


def _memory(config: ServerConfig) -> Iterator[Contradiction]:
    body_mb = config.max_body_bytes / _MIB
    for place, size in (
        ("limits.memory_mb", config.limits.memory_mb),
        ("limits.input_arena_mb", config.limits.input_arena_mb),
    ):
        if size < body_mb:
            effect = "is refused" if place == "limits.memory_mb" else "takes memory of its own for each batch"
            yield Contradiction(
                place,
                f"{place.partition('.')[2]} {size:g} is less than a request of max_body_bytes "
                f"{config.max_body_bytes} ({body_mb:.4g} MiB) takes: a larger request {effect}",
            )


def _planner(config: ServerConfig) -> Iterator[Contradiction]:
    """A planner plans for models that go by deadlines, and whose partitions no rule chooses; so do strict places."""
    planner, single = planner_settings(config.planner), config.models.values()
    if planner.seed and planner.name is not ServedPlanner.AQUATOPE:
        yield Contradiction("planner.seed", f"seed has no effect with planner {planner.name}: expected aquatope")
    planned = []
    loose = "percentile 100 does not make batches run as planned"
    if planner.name is not ServedPlanner.EXACT:
        planned.append(("planner", f"planner {planner.name} has no effect"))
    if config.percentile == 100:
        planned.append(("percentile", loose))
        if planner.name is not ServedPlanner.EXACT or planner.replan is Replan.ONCE:
            yield Contradiction("percentile", f"{loose}: expected planner exact with replan dispatch")
    if not any(isinstance(policy, DeadlineSettings) for policy in (config.policy, *(each.policy for each in single))):
        lacking = "no model has the policy deadline"
    elif not any(
        setting is not None and instance_config(setting) is None
        for setting in (config.instances, *(each.instances for each in single))
    ):
        lacking = "no model has the instances locality"
    else:
        return
    for place, text in planned:
        yield Contradiction(place, f"{text}: {lacking}")


def _without_effect(config: ServerConfig) -> Iterator[Contradiction]:
    if config.poll_s != ServerConfig().poll_s and config.control is not ModelControlMode.POLL:
        yield Contradiction("poll_s", f"poll_s has no effect with control {config.control}: expected control poll")
    if config.residency.on_miss is OnMiss.STOP and config.residency.prewarm is Prewarm.OFF:
        yield Contradiction("residency.on_miss", "on_miss has no effect with prewarm off: expected jit or speculative")
    if config.source_cache is not None and not config.sources:
        yield Contradiction("source_cache", "source_cache has no effect without a repository by URL")
    if config.open_groups and is_loopback(config.host):
        yield Contradiction("open_groups", f"open_groups has no effect while host is '{config.host}', the loopback")
    if config.client_shm_prefix is not None and not config.allow_client_shm:
        yield Contradiction("client_shm_prefix", "client_shm_prefix has no effect without allow_client_shm")
