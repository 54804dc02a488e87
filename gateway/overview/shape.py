"""The parts of a pipeline that stay while it is served: its kind, its stages and its outputs, for the document."""

from typing import Any

from sluice.models.pipelines.pipeline import Pipeline, Stage
from sluice.models.spec import public_key


def public_name(pipeline: Pipeline) -> str:
    """The name under which the metrics count a pipeline, `name:version`."""
    return public_key(pipeline.key)


def kind_of(pipeline: Pipeline) -> str:
    """The kind of a pipeline in a word: `model`, `cascade`, `ensemble`, `chain` or `dag`."""
    stages = pipeline.stages
    if len(stages) == 1 and any(public_key(key) == public_name(pipeline) for key in stages[0].models):
        return "model"
    if any(stage.when is not None for stage in stages):
        return "cascade"
    if any(stage.combine is not None for stage in stages):
        return "ensemble"
    sources = [sources_of(stage) for stage in stages]
    is_chain = all(len(each) == 1 for each in sources) and len({each[0] for each in sources}) == len(stages)
    return "chain" if is_chain else "dag"


def sources_of(stage: Stage) -> list[str]:
    """The stages that a stage takes tensors of, and `request`; each once."""
    return list(dict.fromkeys(each.stage for each in stage.inputs.values()))


def stage_shape(stage: Stage) -> dict[str, Any]:
    """A stage without its numbers."""
    when = stage.when
    text = None if when is None else f"{when.confidence.value} of {when.output} below {when.below:g}"
    return {
        "name": stage.name,
        "model": "" if stage.model is None else public_key(stage.model),
        "sources": sources_of(stage),
        "when": None if when is None else {"stage": when.stage, "text": text},
        "combiner": "" if stage.combine is None else stage.combine.value,
    }


def outputs_of(pipeline: Pipeline) -> list[dict[str, Any]]:
    """The outputs, and the stages that they may come from."""
    return [
        {"name": name, "from": list(dict.fromkeys(each.stage for each in sources))}
        for name, sources in pipeline.sources.items()
    ]
