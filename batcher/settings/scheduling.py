"""Settings of a server or of its simulation as users write them, in milliseconds and megabytes."""

import math
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from sluice.batcher.interface.config import Limits, PolicyConfig
from sluice.batcher.interface.instance_config import InstanceConfig, InstanceRule, InstanceSetting, instance_config
from sluice.batcher.policies.base import AnyPolicySettings
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.policies.registry import batch_policies, decode_policy, policy_name, policy_settings
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.batcher.settings.planner import PlannerSetting, PlannerSettings
from sluice.batcher.settings.residency import ResidencySettings
from sluice.models.conversion import NO_LINES, convert
from sluice.models.errors import ConfigError
from sluice.models.pipelines.pipeline import PERCENTILE, Late, Pipeline, check_percentile
from sluice.models.spec import ModelSpec, public_key
from sluice.models.units import NS_PER_US
from sluice.models.yaml_file import Lines
from sluice.mps.partitions.partition import CpuPartition, Partition

_T = TypeVar("_T", bound=msgspec.Struct)
_MIB = 1 << 20
_SECONDS_PER_HOUR = 3600


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of one model, for all its versions; None stands for the setting of the server."""

    max_batch_size: int | None = None
    policy: AnyPolicySettings | None = None
    late: Late | None = None
    percentile: float | None = None
    instances: InstanceSetting | None = None

    def __post_init__(self) -> None:
        if self.max_batch_size is not None and self.max_batch_size < 1:
            raise ValueError(f"max_batch_size: expected at least 1, got {self.max_batch_size}")
        if self.percentile is not None:
            _check_percentile(self.percentile)


class LimitSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of the scheduler: open requests for each pipeline, and megabytes of tensors in flight.

    A batch runs elsewhere as well once it takes `straggler_factor` times its median; None: by the default rule.
    """

    queue_requests: int = 4096
    memory_mb: float = 256
    hand_off_us: float = 150
    straggler_factor: float | None = None

    def __post_init__(self) -> None:
        if self.queue_requests < 1:
            raise ValueError(f"queue_requests: expected at least 1, got {self.queue_requests}")
        if not 0 < self.memory_mb < math.inf:
            raise ValueError(f"memory_mb: expected a finite number above 0, got {self.memory_mb:g}")
        if not 0 <= self.hand_off_us < math.inf:
            raise ValueError(f"hand_off_us: expected a finite number of at least 0, got {self.hand_off_us:g}")
        if self.straggler_factor is not None and not 1 < self.straggler_factor < math.inf:
            raise ValueError(f"straggler_factor: expected a finite number above 1, got {self.straggler_factor:g}")

    def config(self) -> Limits:
        """The limits as the scheduler takes them."""
        return Limits(
            queue_requests=self.queue_requests,
            memory_bytes=round(self.memory_mb * _MIB),
            hand_off_ns=round(self.hand_off_us * NS_PER_US),
            straggler_factor=self.straggler_factor or 0.0,
        )


class PriceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of an hour of a core and of a whole GPU, in any currency; the defaults are dollars."""

    core_hour: float = 0.034
    gpu_hour: float = 4.69

    def __post_init__(self) -> None:
        for name in ("core_hour", "gpu_hour"):
            if not 0 <= (price := getattr(self, name)) < math.inf:
                raise ValueError(f"{name}: expected a finite price of at least 0, got {price:g}")

    def per_second(self, partition: Partition) -> float:
        """The price of a second of a partition: its own price, else by its cores and its share of a GPU."""
        if partition.price is not None:
            return partition.price / _SECONDS_PER_HOUR
        hour = self.core_hour * len(partition.cores)
        if not isinstance(partition, CpuPartition):
            hour += self.gpu_hour * partition.gpu_share
        return hour / _SECONDS_PER_HOUR


class ServingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings that a server and its simulation have in common; `models` overrides them for single models, by name."""

    policy: AnyPolicySettings = DeadlineSettings()
    max_batch_size: int = 64
    models: dict[str, ModelSettings] = {}
    default_slo_ms: float = 10_000
    network_ms: float = 0
    late: Late = Late.SERVE
    percentile: float = PERCENTILE
    instances: InstanceSetting = InstanceRule.LOCALITY
    residency: ResidencySettings = ResidencySettings()
    limits: LimitSettings = LimitSettings()
    prices: PriceSettings = PriceSettings()
    planner: PlannerSetting = PlannerSettings()

    def __post_init__(self) -> None:
        if self.max_batch_size < 1:
            raise ValueError(f"max_batch_size: expected at least 1, got {self.max_batch_size}")
        if not 0 < self.default_slo_ms < math.inf:
            raise ValueError(f"default_slo_ms: expected a finite number above 0, got {self.default_slo_ms:g}")
        if not 0 <= self.network_ms < self.default_slo_ms:
            expected = f"at least 0 and less than default_slo_ms ({self.default_slo_ms:g})"
            raise ValueError(f"network_ms: expected {expected}, got {self.network_ms:g}")
        _check_percentile(self.percentile)

    def batch_sizes(self) -> dict[str, int]:
        """The maximum batch sizes that are not `max_batch_size`, by model name."""
        return {name: size for name, each in self.models.items() if (size := each.max_batch_size) is not None}

    def with_defaults(self, pipelines: Iterable[Pipeline]) -> list[Pipeline]:
        """The pipelines, with the settings that they leave open: those of their model, else those of the server.

        Their objectives are without the time that the network takes of them.
        """
        completed = []
        for pipeline in pipelines:
            alone = self.models.get(pipeline.name, ModelSettings())
            late = next(each for each in (pipeline.late, alone.late, self.late) if each is not None)
            percentile = next(
                each for each in (pipeline.percentile, alone.percentile, self.percentile) if each is not None
            )
            slo_ms = None if pipeline.slo_ms is None else max(pipeline.slo_ms - self.network_ms, 0)
            completed.append(msgspec.structs.replace(pipeline, late=late, percentile=percentile, slo_ms=slo_ms))
        return completed

    def strict_pipelines(self, pipelines: Iterable[Pipeline]) -> dict[str, str]:
        """By key, where a pipeline or model has a `percentile` of its own that is 100."""
        places = {}
        for pipeline in pipelines:
            if pipeline.percentile == 100:
                places[pipeline.key] = f"pipeline {public_key(pipeline.key)}: percentile"
            elif pipeline.percentile is None and self.models.get(pipeline.name, ModelSettings()).percentile == 100:
                places[pipeline.key] = f"models.{pipeline.name}.percentile"
        return places

    def policies(self, specs: Iterable[ModelSpec]) -> dict[str, PolicyConfig]:
        """The policies that are not `policy`, by model key: from `models`, else from the model's own configuration.

        Models with sequences always have the policy of their configuration, since it keeps the order of requests.
        Raises ConfigError for a policy that is given to one of these by name, and for one that would pad batches to
        more rows than a model takes.
        """
        policies: dict[str, PolicyConfig] = {}
        for spec in specs:
            override, place = self.models.get(spec.name), "policy"
            if spec.sequence_batching is not None:
                if override is not None and override.policy is not None:
                    raise ConfigError(
                        f"models.{spec.name}.policy: expected none for a model that has sequences, "
                        f"got {policy_name(override.policy.config())}"
                    )
                policies[spec.key] = TimeoutConfig.of_sequences(spec.sequence_batching, spec.max_batch_size)
            elif override is not None and override.policy is not None:
                policies[spec.key], place = override.policy.config(), f"models.{spec.name}.policy"
            elif (batching := spec.dynamic_batching) is not None:
                policies[spec.key] = TimeoutConfig.of(batching)
            _check_run_sizes(policies.get(spec.key, self.policy.config()), spec, place)
        return policies

    def instance_configs(self, specs: Iterable[ModelSpec]) -> dict[str, InstanceConfig]:
        """The instance policies by model key, for models that have one: from `models`, else `instances`.

        Models whose requests belong to sequences, or are answered in order, never have one. Raises ConfigError if one
        is asked for by name.
        """
        specs = list(specs)
        policies = self.policies(specs)
        configs: dict[str, InstanceConfig] = {}
        for spec in specs:
            own = self.models.get(spec.name, ModelSettings()).instances
            config = instance_config(self.instances if own is None else own)
            if config is None:
                continue
            policy = policies.get(spec.key, self.policy.config())
            if spec.sequence_batching is None and not (isinstance(policy, TimeoutConfig) and policy.preserve_ordering):
                configs[spec.key] = config
            elif own is not None:
                reason = "has sequences" if spec.sequence_batching is not None else "is answered in order"
                raise ConfigError(
                    f"models.{spec.name}.instances: expected locality for a model that {reason}, got {config.name}"
                )
        return configs


def _check_run_sizes(policy: PolicyConfig, spec: ModelSpec, place: str) -> None:
    """Raise ConfigError unless a model takes all sizes that its batches are padded to; one row alone is not padded."""
    sizes, most = policy.run_sizes, spec.max_batch_size
    if sizes and 1 < most < sizes[-1] and not spec.sees_requests:
        raise ConfigError(
            f"{place}: expected sizes of batches up to {most}, the max_batch_size of model {public_key(spec.key)}, "
            f"got {list(sizes)}"
        )


def _check_percentile(percentile: float) -> None:
    try:
        check_percentile(percentile)
    except ValueError as error:
        raise ValueError(f"percentile: {error}") from error


def convert_settings(document: object, form: type[_T], path: str, *, at: str = "", lines: Lines = NO_LINES) -> _T:
    """Convert the content of a YAML file (None if it is empty), or what is at `at` in it, to settings.

    Raises ConfigError, whose message starts with `path`, the line and the place in the file.
    """
    batch_policies()  # a policy that is broken is no mistake of the document
    document = {} if document is None else document
    return convert(document, form, path, at, lines=lines, dec_hook=decode_policy, structs_of=policy_settings)
