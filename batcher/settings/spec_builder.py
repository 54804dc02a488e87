"""Builds the spec of a scheduler from model specs, pipelines and partitions."""

from collections.abc import Iterable, Mapping, Sequence

from sluice.batcher.interface.config import (
    CompeteConfig,
    ConfidenceSpec,
    Limits,
    PartitionConfig,
    PipelineConfig,
    PolicyConfig,
    ScheduledModel,
    SchedulerSpec,
    SequenceConfig,
    StageConfig,
    WhenConfig,
)
from sluice.batcher.interface.instance_config import InstanceConfig
from sluice.batcher.interface.planner_config import PlannerConfig, Replan, ServedPlanner
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.policies.registry import select_policy
from sluice.models.errors import ConfigError
from sluice.models.pipelines.pipeline import PERCENTILE, REQUEST, Compete, Late, OnLate, Pipeline, Stage
from sluice.models.sequence_batching import ControlKind
from sluice.models.slo import MAX_SLO_MS
from sluice.models.spec import ModelSpec, public_key
from sluice.models.tensors.spec import TensorSpec
from sluice.models.units import INFINITE_NS, NS_PER_US, ms_to_ns


def pipeline_key(pipeline: Pipeline) -> str:
    """The name under which the scheduler knows a revision of a pipeline, e.g. `digits-cascade:1`."""
    return pipeline.key


def build_spec(
    models: Iterable[ModelSpec],
    pipelines: Iterable[Pipeline],
    partitions: Iterable[PartitionConfig],
    *,
    limits: Limits | None = None,
    policies: Mapping[str, PolicyConfig] | None = None,
    default_policy: PolicyConfig | None = None,
    memory_of: Mapping[str, int] | None = None,
    confidences_of: Mapping[str, Sequence[ConfidenceSpec]] | None = None,
    uses_cache: bool = False,
    instances: Mapping[str, InstanceConfig] | None = None,
    planner: PlannerConfig | None = None,
) -> SchedulerSpec:
    """The spec from which the live gateway and the simulator both build their scheduler.

    By model key, `policies` are those that differ from the default, `memory_of` is the size of a model in bytes,
    `instances` are the instance policies of models that have one, and `confidences_of` are the confidences that a model
    reports already; further ones are added after them. With `uses_cache` the driver has a response cache, also for
    stages whose models have one.
    """
    default_policy = default_policy or DeadlineSettings()
    policies, memory_of = policies or {}, memory_of or {}
    specs = {spec.key: spec for spec in models}
    pipelines = tuple(pipelines)
    confidences = _confidences_of_models(pipelines, confidences_of or {})
    return SchedulerSpec(
        tuple(
            ScheduledModel(
                key,
                max(spec.max_batch_size, 1),
                policies.get(key, default_policy),
                tuple(confidences.get(key, ())),
                memory_of.get(key, 0),
                spec.replicas,
                decoupled=spec.decoupled,
                sequences=_sequences(spec),
                input_bytes=sum(tensor.item_bytes for tensor in spec.inputs),
                output_bytes=sum(tensor.item_bytes for tensor in spec.outputs),
                sees_requests=spec.sees_requests,
                instances=(instances or {}).get(key),
            )
            for key, spec in specs.items()
        ),
        tuple(_pipeline_config(pipeline, specs, confidences, uses_cache) for pipeline in pipelines),
        tuple(partitions),
        limits or Limits(),
        planner=planner or PlannerConfig(),
    )


def check_competition(pipelines: Iterable[PipelineConfig], partitions: Sequence[PartitionConfig]) -> None:
    """Raise ConfigError for a stage that is to compete on more partitions than may hold its model.

    A model that no partition names yet may go to each that is not fixed.
    """
    for pipeline in pipelines:
        for stage in pipeline.stages:
            if stage.compete is None or stage.model is None:
                continue
            for key in stage.variants or (stage.model,):
                named = [each for each in partitions if each.models is not None and key in each.models]
                open_to_all = [each for each in partitions if each.models is None]
                hosts = len(named) + len(open_to_all) if named else sum(not each.fixed for each in partitions)
                if hosts < stage.compete.copies:
                    count = "1 partition" if hosts == 1 else f"{hosts} partitions"
                    raise ConfigError(
                        f"pipeline {public_key(pipeline.name)}: stages.{stage.name}.compete: {count} may hold model "
                        f"{public_key(key)}; "
                        f"expected at least {stage.compete.copies}, one for each copy"
                    )


def check_strictness(places: Mapping[str, str], spec: SchedulerSpec) -> None:
    """Raise ConfigError for a pipeline that is to run strictly as planned (`places`, by key, says where) and cannot.

    That takes models with a policy by deadlines and no instance policy, and a planner that leaves dispatch free.
    """
    models = {model.key: model for model in spec.models}
    fixes = spec.planner.name != ServedPlanner.EXACT or spec.planner.replan is Replan.ONCE
    for pipeline in spec.pipelines:
        if pipeline.name not in places:
            continue
        lacking = "planner exact with replan dispatch" if fixes else ""
        for stage in pipeline.stages:
            for key in stage.variants or filter(None, (stage.model,)):
                if not select_policy(models[key].policy, spec.limits).by_deadline:
                    lacking = f"policy deadline for model {public_key(key)}"
                elif models[key].instances is not None:
                    lacking = f"instances locality for model {public_key(key)}"
        if lacking:
            raise ConfigError(
                f"{places[pipeline.name]}: expected a percentile below 100, or {lacking}, got 100, with which batches "
                "run strictly as planned"
            )


def _sequences(spec: ModelSpec) -> SequenceConfig | None:
    """The sequences of a model, None if its requests are independent."""
    batching = spec.sequence_batching
    if batching is None:
        return None
    name, datatype = "", ""
    if (found := batching.control(ControlKind.ID)) is not None:
        name, control = found
        datatype = "BYTES" if control.data_type == "TYPE_STRING" else control.data_type.removeprefix("TYPE_")
    return SequenceConfig(
        batching.slots(spec.max_batch_size), min(batching.idle_us * NS_PER_US, INFINITE_NS), name, datatype
    )


def _confidences_of_models(
    pipelines: Sequence[Pipeline], known: Mapping[str, Sequence[ConfidenceSpec]]
) -> dict[str, list[ConfidenceSpec]]:
    """The confidences that the conditions of stages need from each model, each once.

    A condition names a confidence by its number, whichever variant ran, so models that may run the same stage have the
    same list.
    """
    confidences: dict[str, list[ConfidenceSpec]] = {}
    groups: dict[str, list[str]] = {}
    for pipeline in pipelines:
        for stage in pipeline.stages:
            group = list(dict.fromkeys(key for model in stage.models for key in groups.get(model, [model])))
            shared = list(dict.fromkeys(each for key in group for each in known.get(key, ())))
            for key in group:
                groups[key], confidences[key] = group, shared
    for pipeline in pipelines:
        stages = {stage.name: stage for stage in pipeline.stages}
        for stage in pipeline.stages:
            if stage.when is not None and (model := stages[stage.when.stage].model) is not None:
                asked = ConfidenceSpec(stage.when.output, stage.when.confidence)
                if asked not in confidences[model]:
                    confidences[model].append(asked)
    return confidences


def _pipeline_config(
    pipeline: Pipeline,
    specs: Mapping[str, ModelSpec],
    confidences: Mapping[str, list[ConfidenceSpec]],
    uses_cache: bool,
) -> PipelineConfig:
    cached = _cached_stages(pipeline, specs) if uses_cache else ()
    index = {stage.name: position for position, stage in enumerate(pipeline.stages)}
    combiners = {stage.name: _combiner_confidences(stage.name, pipeline) for stage in pipeline.stages if stage.combine}
    configs = []
    for stage in pipeline.stages:
        when = None
        if stage.when is not None:
            asked = pipeline.stages[index[stage.when.stage]]
            known = confidences[asked.model] if asked.model is not None else combiners[asked.name]
            number = known.index(ConfidenceSpec(stage.when.output, stage.when.confidence))
            when = WhenConfig(index[asked.name], number, stage.when.below)
        sources = sorted({index[source.stage] for source in stage.inputs.values() if source.stage != REQUEST})
        variable = _variable_inputs(stage, specs)
        configs.append(
            StageConfig(
                stage.name,
                stage.model,
                tuple(sources),
                when,
                tuple(combiners.get(stage.name, ())),
                any(stage.inputs[name].stage == REQUEST for name in variable),
                any(stage.inputs[name].stage != REQUEST for name in variable),
                stage.variants,
                _renamed(stage, variable, index),
                stage.name in cached,
                _source_bytes(stage, specs),
                _compete(stage.compete),
                stage.accuracies,
                stage.on_late is OnLate.PARTIAL,
            )
        )
    slo_ns = 0 if pipeline.slo_ms is None else max(ms_to_ns(min(pipeline.slo_ms, MAX_SLO_MS)), 1)
    late = Late.SERVE if pipeline.late is None else pipeline.late
    percentile = PERCENTILE if pipeline.percentile is None else pipeline.percentile
    return PipelineConfig(pipeline_key(pipeline), tuple(configs), late, slo_ns, pipeline.weight, percentile)


def _compete(compete: Compete | None) -> CompeteConfig | None:
    if compete is None:
        return None
    return CompeteConfig(compete.copies, ms_to_ns(compete.after_ms), compete.percentile)


def _combiner_confidences(name: str, pipeline: Pipeline) -> list[ConfidenceSpec]:
    asked = [stage.when for stage in pipeline.stages if stage.when is not None and stage.when.stage == name]
    return list(dict.fromkeys(ConfidenceSpec(when.output, when.confidence) for when in asked))


def _cached_stages(pipeline: Pipeline, specs: Mapping[str, ModelSpec]) -> set[str]:
    """The stages whose outputs are cached; not the stage of a single model, whose whole answers are cached."""
    asked = {stage.when.stage for stage in pipeline.stages if stage.when is not None}
    return {
        stage.name
        for stage in pipeline.stages
        if stage.model is not None
        and stage.model != pipeline_key(pipeline)
        and not stage.variants
        and stage.name not in asked  # its confidence would have to be cached as well
        and specs[stage.model].response_cache
    }


def _renamed(stage: Stage, variable: Sequence[str], index: Mapping[str, int]) -> str:
    """The source and tensor of every variable input; "" if one source has them all, by the same names."""
    sources = {name: stage.inputs[name] for name in variable}
    if len({source.stage for source in sources.values()}) < 2 and all(
        source.tensor == name for name, source in sources.items()
    ):
        return ""
    parts = sorted(dict.fromkeys(source.stage for source in sources.values()), key=lambda name: index.get(name, -1))
    return ",".join(f"{name}={parts.index(source.stage)}.{source.tensor}" for name, source in sorted(sources.items()))


def _source_bytes(stage: Stage, specs: Mapping[str, ModelSpec]) -> int:
    """Bytes of a row of the inputs of a model stage that come from other stages, as far as their sizes are fixed."""
    if stage.model is None:
        return 0
    inputs = specs[stage.model].inputs
    return sum(
        each.item_bytes for each in inputs if each.name in stage.inputs and stage.inputs[each.name].stage != REQUEST
    )


def _variable_inputs(stage: Stage, specs: Mapping[str, ModelSpec]) -> list[str]:
    """The inputs of a model stage that have a variable dimension or are optional."""
    if stage.model is None:
        return []
    by_name: dict[str, TensorSpec] = {tensor.name: tensor for tensor in specs[stage.model].inputs}
    return [name for name in stage.inputs if by_name[name].keyed]
