"""Brings a revision to the workers and to the scheduler, and removes from them what is not served any more."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.decisions import AcceptChange, RejectChange
from sluice.batcher.interface.events import ServingChanged
from sluice.batcher.interface.residency_config import Loading
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.batcher.settings.spec_builder import build_spec, check_competition, check_strictness
from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.deployment.load_waiter import LoadWaiter
from sluice.gateway.deployment.placement_notes import note_added, started_on_demand
from sluice.gateway.deployment.registry import ModelRegistry
from sluice.gateway.deployment.revision import Deployed
from sluice.gateway.deployment.stored_profiles import footprints, model_memory, stored_entries
from sluice.gateway.deployment.worker_files import worker_files
from sluice.gateway.executors.mixed import MixedExecutor
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.partitions.inventory import Inventory
from sluice.gateway.runtime.driver import Runtime
from sluice.gateway.tensors.pipeline_wiring import PipelineWiring, wire_pipeline
from sluice.models.errors import ConfigError
from sluice.models.pipelines.check import single_model
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.profiles.file import ProfileEntry
from sluice.models.repository.scan import ModelEntry
from sluice.models.spec import ModelSpec
from sluice.mps.ipc.messages import ModelFile


class PreparedRevision(NamedTuple):
    """The models and pipelines of a revision that are to be loaded, by name in `deployed`, and how.

    `outdated` are the names of models that lack a confidence which a new pipeline needs.
    """

    deployed: Mapping[str, Deployed]
    change: ServingChanged
    wirings: Mapping[str, PipelineWiring]
    specs: Mapping[str, ModelSpec]
    files: Mapping[str, Mapping[str, ModelFile]]
    outdated: frozenset[str]


class Rollout:
    """Applies changes to the scheduler, the runtime, the executor and the registry.

    `remote` are the models that Triton servers hold, which stay; `inventory` has the partitions of our workers.
    """

    def __init__(
        self,
        config: ServerConfig,
        remote: Mapping[str, ModelEntry],
        inventory: Inventory,
        scheduler: Scheduler,
        runtime: Runtime,
        executor: MixedExecutor,
        registry: ModelRegistry,
        metrics: ServerMetrics,
        load_waiter: LoadWaiter,
    ) -> None:
        self._config = config
        self._remote = remote
        self._inventory = inventory
        self._scheduler = scheduler
        self._runtime = runtime
        self._executor = executor
        self._registry = registry
        self._metrics = metrics
        self._load_waiter = load_waiter
        self._recycling = asyncio.Lock()
        runtime.carry_out_with(AcceptChange, load_waiter.answered)
        runtime.carry_out_with(RejectChange, load_waiter.answered)

    async def prepare(self, revision: Mapping[str, Deployed], deployed: Mapping[str, Deployed]) -> PreparedRevision:
        """Work out what has to be loaded to serve a revision beside what is deployed; raises ConfigError."""
        deployed = dict(deployed)  # a copy: others may be loaded meanwhile
        after = {**deployed, **revision}
        entries = {entry.spec.key: entry for each in after.values() for entry in each.models}
        before = {entry.spec.key for each in deployed.values() for entry in each.models}
        new = {key: entry for key, entry in entries.items() if key not in before}
        kinds = self._inventory.kinds
        stored = await asyncio.to_thread(
            lambda: {key: stored_entries(entry, list(kinds.values())) for key, entry in new.items()}
        )
        specs = {key: entry.spec for key, entry in {**self._remote, **entries}.items()}
        pipelines = [
            *(single_model(entry.spec) for entry in self._remote.values()),
            *(pipeline for each in after.values() for pipeline in each.pipelines),
        ]
        known = {model.key: model.confidences for model in self._scheduler.spec.models}
        spec = self._build(specs, pipelines, stored, new)
        models = tuple(model for model in spec.models if model.key in new)
        asked = {model.key: model.confidences for model in spec.models}
        served = {pipeline.key for each in deployed.values() for pipeline in each.pipelines}
        served |= {pipeline.key for pipeline in pipelines[: len(self._remote)]}
        added = [
            (pipeline, config)
            for pipeline, config in zip(pipelines, spec.pipelines, strict=True)
            if config.name not in served
        ]
        files = await asyncio.to_thread(worker_files, models, new, stored, kinds)
        if kinds != self._inventory.kinds:  # one was resized meanwhile, so other profiles count
            return await self.prepare(revision, deployed)
        is_reload = any(new[model.key].spec.name in deployed for model in models)
        return PreparedRevision(
            revision,
            ServingChanged(models, tuple(config for _, config in added), is_reload=is_reload),
            {
                config.name: wire_pipeline(pipeline, specs, [stage.confidences for stage in config.stages])
                for pipeline, config in added
            },
            {key: specs[key] for key in new},
            files,
            frozenset(specs[key].name for key, now in asked.items() if now != known.get(key, now)),
        )

    async def load(self, prepared: PreparedRevision) -> None:
        """Load and warm the models of a revision; those without room wait for demand, if that is possible.

        Raises ConfigError when one of them is on no partition afterwards, or never can be, and RejectedError when there
        is no room for it now. Then the pipelines are to be retired.
        """
        models = prepared.change.models
        coming = [self._load_waiter.wait_loaded(model.key) for model in models]
        try:
            self._executor.add(prepared.wirings, prepared.specs, prepared.files)
            self._runtime.serve(prepared.change)
            placed = await asyncio.gather(*coming)
        finally:
            for future in coming:
                future.cancel()
        if failure := next((each.failure for each in placed if each.failure), ""):
            raise ConfigError(failure)
        hosts = {model.key: each.partitions for model, each in zip(models, placed, strict=True)}
        note_added(models, hosts, self._registry)
        spec = self._scheduler.spec
        on_demand = hosts if spec.residency.loading is Loading.DEMAND else started_on_demand(spec)
        self._registry.mark_on_demand(key for key in hosts if key in on_demand)

    def retire(self, pipelines: Collection[str]) -> None:
        """Send no more requests to pipelines."""
        if pipelines:
            self._runtime.serve(ServingChanged(retired=tuple(sorted(pipelines))))

    async def end(self, pipelines: Collection[str], models: Collection[str]) -> None:
        """Wait until models that no pipeline needs have run their last batch and are held nowhere, and forget them."""
        for model in sorted(models):
            await self._runtime.wait_forgotten(model)
            await self._load_waiter.wait_unloaded(model)
            self._inventory.forget(model)
            self._registry.forget_model(model)
            self._metrics.meters.forget(model)
        self._executor.remove(pipelines, models)

    def memory_of(self, partition: str) -> int:
        """Bytes of the models that a partition holds or is loading."""
        held = self._scheduler.served.residency.held(partition)
        return sum(model.most_bytes for model in self._scheduler.spec.models if model.key in held)

    async def recycle(self, partitions: Sequence[str]) -> None:
        """Replace the workers of partitions of this machine, one after the other."""
        async with self._recycling:
            for partition in partitions:
                if self._executor.recycle(partition):
                    await self._load_waiter.wait_ready(partition)

    def _build(
        self,
        specs: Mapping[str, ModelSpec],
        pipelines: Sequence[Pipeline],
        stored: Mapping[str, Mapping[str, ProfileEntry]],
        new: Mapping[str, ModelEntry],
    ) -> SchedulerSpec:
        config = self._config
        spec = build_spec(
            specs.values(),
            config.with_defaults(pipelines),
            (),
            policies=config.policies(specs.values()),
            instances=config.instance_configs(specs.values()),
            default_policy=config.policy.config(),
            memory_of={key: model_memory(new[key], entries) for key, entries in stored.items()},
            confidences_of={model.key: model.confidences for model in self._scheduler.spec.models},
            uses_cache=config.cache_bytes > 0,
            planner=self._scheduler.spec.planner,
        )
        check_strictness(config.strict_pipelines(pipelines), spec)
        check_competition(spec.pipelines, self._scheduler.spec.partitions)
        return config.residency.apply(spec, {key: footprints(new[key], entries) for key, entries in stored.items()})
