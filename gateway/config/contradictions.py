"""Settings that are right by themselves but cannot work together: reported before a server starts."""

from collections.abc import Iterator
from typing import NamedTuple

from sluice.batcher.policies.base import AnyPolicySettings
from sluice.batcher.policies.timeout import TimeoutSettings
from sluice.gateway.config.access import is_loopback
from sluice.gateway.config.server_config import ModelControlMode, ServerConfig

_MIB = 1 << 20


class Contradiction(NamedTuple):
    """A setting, by its place, and why it has not the effect that it seems to have."""

    place: str
    text: str


def contradictions(config: ServerConfig) -> Iterator[Contradiction]:
    """All contradictions of a configuration, each between settings that are valid alone."""
    yield from _batches(config)
    yield from _memory(config)
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
    if not isinstance(policy, TimeoutSettings):
        return
    if (largest := max(policy.preferred, default=0)) > max_batch_size:
        yield Contradiction(
            f"{place}.preferred",
            f"the preferred size {largest} is above max_batch_size {max_batch_size}: no batch ever has it",
        )
    if policy.max_delay_ms >= config.default_slo_ms:
        yield Contradiction(
            f"{place}.max_delay_ms",
            f"max_delay_ms {policy.max_delay_ms:g} is not below default_slo_ms {config.default_slo_ms:g}: requests "
            "without an objective of their own may wait until they are late",
        )


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


def _without_effect(config: ServerConfig) -> Iterator[Contradiction]:
    if config.poll_s != ServerConfig().poll_s and config.control is not ModelControlMode.POLL:
        yield Contradiction("poll_s", f"poll_s has no effect with control {config.control}: expected control poll")
    if config.source_cache is not None and not config.sources:
        yield Contradiction("source_cache", "source_cache has no effect without a repository by URL")
    if config.open_groups and is_loopback(config.host):
        yield Contradiction("open_groups", f"open_groups has no effect while host is '{config.host}', the loopback")
    if config.client_shm_prefix is not None and not config.allow_client_shm:
        yield Contradiction("client_shm_prefix", "client_shm_prefix has no effect without allow_client_shm")
