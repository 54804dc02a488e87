"""From what is served (model specs, pipelines, partitions) to the spec that builds a scheduler."""

from collections.abc import Iterable, Mapping

from batcher.config import (
    Limits,
    ModelConfig,
    PartitionConfig,
    PipelineConfig,
    PolicyConfig,
    SchedulerSpec,
    StageConfig,
    Verdict,
    WhenConfig,
)
from models.pipeline import REQUEST, Pipeline, Stage
from models.spec import ModelSpec
from models.tensor import TensorSpec


def pipeline_key(pipeline: Pipeline) -> str:
    """The name under which the scheduler knows a revision of a pipeline, e.g. `digits-cascade:1`."""
    return f"{pipeline.name}:{pipeline.version}"


def build_spec(
    models: Iterable[ModelSpec],
    pipelines: Iterable[Pipeline],
    partitions: Iterable[PartitionConfig],
    *,
    limits: Limits | None = None,
    policies: Mapping[str, PolicyConfig] | None = None,
    default_policy: PolicyConfig | None = None,
) -> SchedulerSpec:
    """The one spec that both drivers build their scheduler from; `policies` are by model key."""
    default_policy = default_policy or PolicyConfig()
    policies = policies or {}
    specs = {spec.key: spec for spec in models}
    pipelines = tuple(pipelines)
    verdicts = _verdicts_of_models(pipelines)
    return SchedulerSpec(
        tuple(
            ModelConfig(
                key, max(spec.max_batch_size, 1), tuple(verdicts.get(key, ())), policies.get(key, default_policy)
            )
            for key, spec in specs.items()
        ),
        tuple(_pipeline_config(pipeline, specs, verdicts) for pipeline in pipelines),
        tuple(partitions),
        limits or Limits(),
    )


def _verdicts_of_models(pipelines: Iterable[Pipeline]) -> dict[str, list[Verdict]]:
    """All that some stage's condition asks of each model, each once."""
    verdicts: dict[str, list[Verdict]] = {}
    for pipeline in pipelines:
        stages = {stage.name: stage for stage in pipeline.stages}
        for stage in pipeline.stages:
            if stage.when is not None and (model := stages[stage.when.stage].model) is not None:
                asked = Verdict(stage.when.output, stage.when.confidence)
                known = verdicts.setdefault(model, [])
                if asked not in known:
                    known.append(asked)
    return verdicts


def _pipeline_config(
    pipeline: Pipeline, specs: Mapping[str, ModelSpec], verdicts: Mapping[str, list[Verdict]]
) -> PipelineConfig:
    index = {stage.name: position for position, stage in enumerate(pipeline.stages)}
    combiners = {stage.name: _combiner_verdicts(stage.name, pipeline) for stage in pipeline.stages if stage.combine}
    configs = []
    for stage in pipeline.stages:
        when = None
        if stage.when is not None:
            asked = pipeline.stages[index[stage.when.stage]]
            known = verdicts[asked.model] if asked.model is not None else combiners[asked.name]
            verdict = known.index(Verdict(stage.when.output, stage.when.confidence))
            when = WhenConfig(index[asked.name], verdict, stage.when.below)
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
            )
        )
    return PipelineConfig(pipeline_key(pipeline), tuple(configs), pipeline.late)


def _combiner_verdicts(name: str, pipeline: Pipeline) -> list[Verdict]:
    asked = [stage.when for stage in pipeline.stages if stage.when is not None and stage.when.stage == name]
    return list(dict.fromkeys(Verdict(when.output, when.confidence) for when in asked))


def _variable_inputs(stage: Stage, specs: Mapping[str, ModelSpec]) -> list[str]:
    """The inputs of a model stage that have a variable dimension."""
    if stage.model is None:
        return []
    by_name: dict[str, TensorSpec] = {tensor.name: tensor for tensor in specs[stage.model].inputs}
    return [name for name in stage.inputs if not by_name[name].fixed]
