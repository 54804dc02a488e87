"""Settings of residency as users write them: which models stay, which are evicted first, and when others are loaded."""

import enum
import math

import msgspec

from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.residency_config import (
    Eviction,
    Footprint,
    Likelihood,
    Loading,
    OnMiss,
    Prewarm,
    ResidencyConfig,
)
from sluice.models.spec import public_key
from sluice.models.units import ms_to_ns
from sluice.mps.packing.policies import POLICIES, AnyPolicy, PackingName


class LoadingMode(enum.StrEnum):
    """The reason to load a model: a plan, a request, or (`auto`) a request only where not all models have room."""

    AUTO = "auto"
    PLAN = "plan"
    DEMAND = "demand"


class ResidencySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Loading and eviction; `pinned` and `priorities` name models, or pipelines, which stand for all their models.

    With `loading: plan` the other settings have no effect, except `packing`: a policy, or the name of one.
    """

    loading: LoadingMode = LoadingMode.AUTO
    eviction: Eviction = Eviction.LRU
    pinned: tuple[str, ...] = ()
    priorities: dict[str, int] = {}
    min_resident_ms: float = 100
    loads: int = 4
    default_load_ms: float = 1000
    prewarm: Prewarm = Prewarm.JIT
    path: Likelihood = Likelihood.PRODUCT
    min_probability: float = 0
    on_miss: OnMiss = OnMiss.REPLAN
    packing: PackingName | AnyPolicy | None = None

    def __post_init__(self) -> None:
        if not all(0 <= each < math.inf for each in (self.min_resident_ms, self.default_load_ms)) or self.loads < 1:
            raise ValueError("expected at least 1 of loads, and finite times of at least 0")
        if not 0 <= self.min_probability <= 1:
            raise ValueError(f"expected a min_probability from 0 to 1, got {self.min_probability:g}")

    @property
    def names(self) -> set[str]:
        """The models and pipelines that are named."""
        return {*self.pinned, *self.priorities}

    @property
    def packing_policy(self) -> AnyPolicy | None:
        """The policy that says which models may share a partition; None if all may."""
        return POLICIES[self.packing] if isinstance(self.packing, PackingName) else self.packing

    def config(self, loading: Loading) -> ResidencyConfig:
        """The settings as the scheduler takes them."""
        return ResidencyConfig(
            loading,
            self.eviction,
            ms_to_ns(self.min_resident_ms),
            self.loads,
            ms_to_ns(self.default_load_ms),
            self.prewarm,
            self.path,
            self.min_probability,
            self.packing_policy,
            self.on_miss,
        )

    def apply(self, spec: SchedulerSpec, footprints: dict[str, dict[str, Footprint]]) -> SchedulerSpec:
        """A spec whose models have the pins and priorities of these settings, and the `footprints`, by key.

        A model that is given several priorities has the highest.
        """
        names = {model.key: {_name(model.key)} for model in spec.models}
        for pipeline in spec.pipelines:
            for stage in pipeline.stages:
                for key in stage.variants or filter(None, (stage.model,)):
                    names[key].add(_name(pipeline.name))
        models = (
            msgspec.structs.replace(
                model,
                footprints=footprints.get(model.key, {}),
                pinned=not names[model.key].isdisjoint(self.pinned),
                priority=max((self.priorities[name] for name in names[model.key] & self.priorities.keys()), default=0),
            )
            for model in spec.models
        )
        return msgspec.structs.replace(spec, models=tuple(models))


def _name(key: str) -> str:
    """The name of a model or pipeline, without version and revision."""
    return public_key(key).rpartition(":")[0]
