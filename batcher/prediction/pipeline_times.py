"""Predictions for a pipeline: the times of its stages, and the stages at which requests wait."""

from collections.abc import Sequence

from sluice.batcher.estimates.latency import QUANTILE
from sluice.batcher.prediction.unloaded_run import Span, unloaded_run
from sluice.batcher.state import ModelState, PartitionGroup, PipelineState, StageState, WaitingStage


def predict(pipeline: PipelineState, hand_off_ns: int) -> None:
    """Make the predictions of a pipeline from the present estimates and groups.

    O(stages^2 * groups), so it is done only for the first request after `pipeline.changes`.
    """
    probabilities = [1.0] * pipeline.stage_count
    expected_runs: dict[ModelState, float] = {}
    for stage in pipeline.stages:
        offered = min((probabilities[source] for source in stage.waits_for), default=1.0)
        probabilities[stage.index] = stage.run_probability * offered
        if stage.model is not None:
            expected_runs[stage.model] = expected_runs.get(stage.model, 0.0) + probabilities[stage.index]
    pipeline.expected_runs = expected_runs
    pipeline.reach = probabilities
    for stage in reversed(pipeline.stages):
        stage.remaining_path_ns = max(
            (_from_start_ns(pipeline.stages[later], hand_off_ns) for later in stage.dependents), default=0
        )
    pipeline.critical_path_ns = max(_from_start_ns(stage, hand_off_ns) for stage in pipeline.roots)
    spans: list[Span] = []
    if pipeline.has_parallel_stages:
        counts = [probability > 1 - QUANTILE for probability in probabilities]

        def usual_ns(model: ModelState, group: PartitionGroup) -> int:
            rows = model.usual_rows
            return model.estimates[group.kind].service_ns(rows) + hand_off_ns + group.way_ns(model, rows)

        spans = unloaded_run(pipeline.stages, counts, usual_ns)
        pipeline.critical_path_ns = max(pipeline.critical_path_ns, *(end_ns for _, end_ns in spans))
    pipeline.steps = _waiting_stages(pipeline.stages, probabilities, spans, hand_off_ns)
    pipeline.predicted_changes = pipeline.changes


def unloaded_latency_ns(pipeline: PipelineState, hand_off_ns: int) -> int:
    """Time of a request by itself on an idle machine by the measured tables alone."""

    def took_ns(model: ModelState, group: PartitionGroup) -> int:
        return model.estimates[group.kind].profile_ns(1) + hand_off_ns + group.way_ns(model, 1)

    return max(end_ns for _, end_ns in unloaded_run(pipeline.stages, [True] * pipeline.stage_count, took_ns))


def _waiting_stages(
    stages: Sequence[StageState],
    probabilities: Sequence[float],
    spans: Sequence[Span],
    hand_off_ns: int,
) -> list[WaitingStage]:
    """The first stages, and later stages on other groups whose rows are so numerous that late rows matter.

    Of the stages on the same groups, only the one with the longest time to come waits for the planned work there.
    With `spans`, the times of a request by itself, that time lasts until its later stages on these groups end.
    """
    steps: list[WaitingStage] = []
    longest_ns: dict[frozenset[PartitionGroup], int] = {}
    for stage in stages:
        model = stage.model
        if model is None or not model.groups:
            continue
        groups = frozenset(model.groups)
        rest_ns = _from_start_ns(stage, hand_off_ns)
        if spans:
            begin_ns = spans[stage.index][0]
            ends_ns = [
                spans[other.index][1] + other.remaining_path_ns
                for other in stages
                if other.model is not None
                and groups.issuperset(other.model.groups)
                and spans[other.index][0] >= begin_ns
            ]
            rest_ns = max(rest_ns, max(ends_ns) - begin_ns)
        is_longest = rest_ns > longest_ns.get(groups, 0)
        if not stage.waits_for or (is_longest and probabilities[stage.index] > 1 - QUANTILE):
            steps.append((stage, model, rest_ns))
            longest_ns[groups] = max(rest_ns, longest_ns.get(groups, 0))
    return steps


def _from_start_ns(stage: StageState, hand_off_ns: int) -> int:
    return stage.service_ns(hand_off_ns) + stage.remaining_path_ns
