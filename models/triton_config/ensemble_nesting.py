"""Ensembles among the steps of others: the order to read them in, and the inlining of one into another."""

from collections.abc import Mapping

from sluice.models.pipelines.graph import find_cycle, reachable, topological_order
from sluice.models.pipelines.pipeline import REQUEST, Pipeline, Stage, TensorSource
from sluice.models.triton_config.model_config import EnsembleStep, TritonModelConfig

MAX_DEPTH = 16
"""Levels of ensembles."""
MAX_STAGES = 256
"""Stages of an ensemble, including those of the ensembles among its steps."""


def nesting_order(ensembles: Mapping[str, TritonModelConfig]) -> dict[str, str]:
    """Return the names of all ensembles, each after those among its steps, with the problem of their nesting, or ""."""
    needs = {
        name: [] if config.ensemble_scheduling is None else _inner(config.ensemble_scheduling.step, ensembles)
        for name, config in ensembles.items()
    }
    depths = {name: 1 for name, inner in needs.items() if not inner}
    outer = {name: [each for each in inner if needs[each]] for name, inner in needs.items() if inner}
    for name in topological_order(outer):
        depths[name] = 1 + max(depths[each] for each in needs[name])
    problems = {
        name: f"ensembles are nested {depth} deep here; expected at most {MAX_DEPTH}" if depth > MAX_DEPTH else ""
        for name, depth in depths.items()
    }
    for name in [each for each in outer if each not in depths]:
        involved = reachable(outer, [name])
        cycle = find_cycle({each: inner for each, inner in outer.items() if each in involved})
        assert cycle is not None
        problems[name] = f"cycle of ensembles {' -> '.join(cycle)}; expected steps that do not need the ensemble itself"
    return problems


def inline_ensemble(inner: Pipeline, inputs: Mapping[str, TensorSource], names: Mapping[str, str]) -> list[Stage]:
    """Return the stages of an ensemble as stages of another one, under other `names`.

    `inputs` are the sources of its inputs there; missing ones are left out.
    """
    stages = []
    for stage in inner.stages:
        sources = {}
        for name, source in stage.inputs.items():
            if source.stage != REQUEST:
                sources[name] = TensorSource(names[source.stage], source.tensor)
            elif source.tensor in inputs:
                sources[name] = inputs[source.tensor]
        stages.append(Stage(names[stage.name], sources, model=stage.model))
    return stages


def _inner(steps: tuple[EnsembleStep, ...], ensembles: Mapping[str, TritonModelConfig]) -> list[str]:
    return [step.model_name for step in steps if step.model_name in ensembles]
