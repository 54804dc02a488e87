"""Settings as people write them, for a server and for its simulation alike: in milliseconds and megabytes."""

import math
import re
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec
from msgspec import inspect

from sluice.batcher.interface.config import Limits, Objective, PolicyConfig, PolicyName, PriorityLevels
from sluice.batcher.settings.residency import ResidencySettings
from sluice.models.dynamic_batching import DynamicBatching
from sluice.models.errors import ConfigError
from sluice.models.spec import ModelSpec
from sluice.models.units import NS_PER_US, ms_to_ns
from sluice.mps.partitions.partition import CpuPartition, Partition

_T = TypeVar("_T", bound=msgspec.Struct)
_MIB = 1 << 20
_SECONDS_PER_HOUR = 3600
_FOREVER_NS = 1 << 62
_PLACE = re.compile(r"(?P<what>.*) - at (`key` in )?`\$(?P<where>.*)`", re.DOTALL)
_STEP = re.compile(r"\w+|\[[^]]*\]")


class PolicySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A batch policy; `preferred` sizes and `max_delay_ms` belong to `timeout`, `objective` to `deadline`."""

    name: PolicyName = PolicyName.DEADLINE
    preferred: tuple[int, ...] = ()
    max_delay_ms: float = 0.0
    objective: Objective = Objective.LATENCY

    def __post_init__(self) -> None:
        if not 0 <= self.max_delay_ms < math.inf or any(size < 1 for size in self.preferred):
            raise ValueError("expected preferred sizes of at least 1 and a max_delay_ms of at least 0")
        if self.name is not PolicyName.TIMEOUT and (self.preferred or self.max_delay_ms):
            raise ValueError(f"preferred and max_delay_ms belong to policy timeout, not to {self.name}")
        if self.name is not PolicyName.DEADLINE and self.objective is not Objective.LATENCY:
            raise ValueError(f"objective {self.objective} belongs to policy deadline, not to {self.name}")

    def config(self) -> PolicyConfig:
        """The policy as the scheduler takes it."""
        return PolicyConfig(self.name, self.preferred, ms_to_ns(self.max_delay_ms), self.objective)


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is different for one model, all its versions included; None stands for what goes for all."""

    max_batch_size: int | None = None
    policy: PolicySettings | None = None

    def __post_init__(self) -> None:
        if self.max_batch_size is not None and self.max_batch_size < 1:
            raise ValueError("expected a max_batch_size of at least 1")


class LimitSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of the scheduler: requests under way a pipeline, and megabytes of tensors in flight."""

    queue_requests: int = 4096
    memory_mb: float = 256
    hand_off_us: float = 150

    def __post_init__(self) -> None:
        if self.queue_requests < 1:
            raise ValueError(f"queue_requests: expected at least 1, got {self.queue_requests}")
        if not 0 < self.memory_mb < math.inf:
            raise ValueError(f"memory_mb: expected a finite number above 0, got {self.memory_mb:g}")
        if not 0 <= self.hand_off_us < math.inf:
            raise ValueError(f"hand_off_us: expected a finite number of at least 0, got {self.hand_off_us:g}")

    def config(self) -> Limits:
        """The limits as the scheduler takes them."""
        return Limits(
            queue_requests=self.queue_requests,
            memory_bytes=round(self.memory_mb * _MIB),
            hand_off_ns=round(self.hand_off_us * NS_PER_US),
        )


class PriceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an hour costs of a core and of a whole GPU, in whatever currency: dollars by default."""

    core_hour: float = 0.034
    gpu_hour: float = 4.69

    def __post_init__(self) -> None:
        for name in ("core_hour", "gpu_hour"):
            if not 0 <= (price := getattr(self, name)) < math.inf:
                raise ValueError(f"{name}: expected a finite price of at least 0, got {price:g}")

    def per_second(self, partition: Partition) -> float:
        """What a second of a partition costs: by its own price, else by its cores or its share of a GPU."""
        if partition.price is not None:
            return partition.price / _SECONDS_PER_HOUR
        if isinstance(partition, CpuPartition):
            hour = self.core_hour * len(partition.cores)
        else:
            hour = self.gpu_hour * partition.gpu_share
        return hour / _SECONDS_PER_HOUR


class ServingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How models are served, wherever that is; `models` has what is different for single ones, by name."""

    policy: PolicySettings = PolicySettings()
    max_batch_size: int = 64
    models: dict[str, ModelSettings] = {}
    default_slo_ms: float = 10_000
    residency: ResidencySettings = ResidencySettings()
    limits: LimitSettings = LimitSettings()
    prices: PriceSettings = PriceSettings()

    def __post_init__(self) -> None:
        if self.max_batch_size < 1:
            raise ValueError("expected a max_batch_size of at least 1")
        if not 0 < self.default_slo_ms < math.inf:
            raise ValueError(f"default_slo_ms: expected a finite number above 0, got {self.default_slo_ms:g}")

    def batch_sizes(self) -> dict[str, int]:
        """The maximum batch sizes that are not `max_batch_size`, by model name."""
        return {name: size for name, each in self.models.items() if (size := each.max_batch_size) is not None}

    def policies(self, specs: Iterable[ModelSpec]) -> dict[str, PolicyConfig]:
        """The policies that are not `policy`, by model key: those of `models`, else what a model itself asks for."""
        policies: dict[str, PolicyConfig] = {}
        for spec in specs:
            override = self.models.get(spec.name)
            if override is not None and override.policy is not None:
                policies[spec.key] = override.policy.config()
            elif (batching := spec.dynamic_batching) is not None:
                policies[spec.key] = _timeout_policy(batching)
        return policies


def _timeout_policy(batching: DynamicBatching) -> PolicyConfig:
    return PolicyConfig(
        PolicyName.TIMEOUT,
        batching.preferred,
        min(batching.max_queue_delay_us * NS_PER_US, _FOREVER_NS),
        levels=PriorityLevels(
            batching.priority_levels,
            batching.default_priority_level,
            batching.default_queue_policy,
            batching.priority_queue_policy,
        ),
        preserve_ordering=batching.preserve_ordering,
    )


def convert_settings(document: object, form: type[_T], path: str) -> _T:
    """Settings of a form from what a YAML file holds (None for an empty one).

    Raises ConfigError, whose message starts with `path` and the place in the file.
    """
    try:
        return msgspec.convert({} if document is None else document, form)
    except msgspec.ValidationError as error:
        match = _PLACE.fullmatch(str(error))
        what, where = (match["what"], match["where"].lstrip(".")) if match else (str(error), "")
        if "unknown field" in what:
            what = f"{what}; expected {', '.join(_fields(_forms(form, where)))}"
        elif what.startswith("Invalid") and (choices := _choices(_forms(form, where))):
            what = f"{what}; expected {' or '.join(choices)}"
        raise ConfigError(f"{path}: {where}: {what}" if where else f"{path}: {what}") from error


def _forms(form: type[msgspec.Struct], where: str) -> list[inspect.Type]:
    """What may be at a place in a form."""
    forms = [inspect.type_info(form)]
    for step in _STEP.findall(where):
        forms = [inner for each in forms for inner in _inside(each, step)]
    return forms


def _fields(forms: Iterable[inspect.Type]) -> list[str]:
    structs = [each for each in forms if isinstance(each, inspect.StructType)]
    return [field.encode_name for struct in structs for field in struct.fields]


def _choices(forms: Iterable[inspect.Type]) -> list[str]:
    """The texts that may stand at a place where only some may."""
    enums = (tuple(form.cls) for form in forms if isinstance(form, inspect.EnumType))
    literals = (form.values for form in forms if isinstance(form, inspect.LiteralType))
    return [str(choice) for choices in (*enums, *literals) for choice in choices]


def _inside(form: inspect.Type, step: str) -> Iterator[inspect.Type]:
    """What lies one step further: in a field of a struct, or in an element or a value (`[0]`, `[...]`)."""
    inner: list[inspect.Type] = []
    match form:
        case inspect.StructType():
            inner = [field.type for field in form.fields if field.encode_name == step]
            if step == form.tag_field:
                inner = [inspect.LiteralType((form.tag,))]
        case inspect.DictType():
            inner = [form.value_type]
        case inspect.VarTupleType():
            inner = [form.item_type]
    for each in inner:
        yield from each.types if isinstance(each, inspect.UnionType) else [each]
