"""Plans a pipeline of a repository on some partitions: from files and profiles to the answer."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sluice.batcher.planner.registry import DEFAULT
from sluice.batcher.settings.spec_builder import pipeline_key
from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.what_if.answer import PlanAnswer
from sluice.gateway.what_if.latency_tables import latency_tables
from sluice.gateway.what_if.planned_pipeline import objective_ms, planned_spec, stage_probabilities
from sluice.gateway.what_if.planning import WhatIf
from sluice.gateway.what_if.question import PlanQuestion, answer_question
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.repository.scan import ModelEntry, Repository
from sluice.models.units import ms_to_ns
from sluice.mps.partitions.partition import Partition

PERCENTILE = 99.0


class PlanInput(NamedTuple):
    """The load of a pipeline and how it is planned.

    `rate` is in requests of one row a second, 0 for lone requests. `slo_ms` is the objective (None: that of the
    pipeline or the server). `escalation` are shares of the rows by conditional stage.
    """

    rate: float = 0.0
    slo_ms: float | None = None
    escalation: Sequence[tuple[str, float]] = ()
    percentile: float = PERCENTILE
    planner: str = DEFAULT
    planner_settings: Mapping[str, object] = {}


class Planning(NamedTuple):
    """The surroundings of plans: settings, models, the directory that these are from (None: a file), and partitions.

    `announce` gets a sentence before each timing of a model without a profile.
    """

    config: ServerConfig
    repository: Repository
    directory: Path | None
    partitions: tuple[Partition, ...]
    announce: Callable[[str], None]

    def models(self, pipeline: Pipeline) -> list[ModelEntry]:
        """The models that a pipeline may run."""
        keys = dict.fromkeys(key for stage in pipeline.stages for key in stage.models)
        return [self.repository.models[key] for key in keys]

    def plan(self, pipeline: Pipeline, load: PlanInput, note: str = "") -> PlanAnswer:
        """The answer; `note` is a further assumption ("": none).

        Raises ConfigError for an unknown stage, and as `latency_tables` and `answer_question`.
        """
        assumptions: list[str] = []
        slo_ms = objective_ms(load.slo_ms, pipeline, self.config, assumptions)
        if not load.rate:
            assumptions.append("lone requests (--rate 0)")
        probabilities = stage_probabilities(pipeline, list(load.escalation), assumptions)
        models = self.models(pipeline)
        if note:
            assumptions.append(note)
        spec = planned_spec(self.config, models, pipeline, self.partitions, assumptions)
        tables, used = latency_tables(models, self.partitions, self.directory, self.announce)
        what_if = WhatIf(spec, tables, {pipeline_key(pipeline): probabilities}, load.percentile / 100)
        settings = load.planner, load.planner_settings
        question = PlanQuestion(ms_to_ns(slo_ms), load.rate, *settings, tuple(assumptions), tuple(used))
        return answer_question(what_if, question)
