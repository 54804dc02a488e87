"""Predictions for a pipeline: the times of its stages, the stages at which requests wait, and the work of a row."""

from collections.abc import Mapping, Sequence

from sluice.batcher.estimates.latency import QUANTILE, LatencyEstimate
from sluice.batcher.prediction.unloaded_run import Span, unloaded_run
from sluice.batcher.state import ModelState, PartitionGroup, PipelineState, Shares, StageState, WaitingStage, Work


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
    row_ns = {model: model.spread_row_ns for model in expected_runs}
    pipeline.expected_runs = expected_runs
    pipeline.work = _work(pipeline.stages, row_ns, probabilities)
    for stage in reversed(pipeline.stages):
        stage.remaining_path_ns = max(
            (_from_start_ns(pipeline.stages[later], hand_off_ns) for later in stage.dependents), default=0
        )
    pipeline.critical_path_ns = max(_from_start_ns(stage, hand_off_ns) for stage in pipeline.roots)
    spans: list[Span] = []
    if pipeline.has_parallel_stages:
        counts = [probability > 1 - QUANTILE for probability in probabilities]
        spans = unloaded_run(
            pipeline.stages, counts, lambda model, estimate: estimate.service_ns(model.usual_rows) + hand_off_ns
        )
        pipeline.critical_path_ns = max(pipeline.critical_path_ns, *(end_ns for _, end_ns in spans))
    pipeline.steps = _waiting_stages(pipeline.stages, probabilities, row_ns, spans, hand_off_ns)
    pipeline.shared = any(len(model.pipelines) > 1 for model in expected_runs)
    pipeline.predicted_changes = pipeline.changes


def unloaded_latency_ns(pipeline: PipelineState, hand_off_ns: int) -> int:
    """Time of a request by itself on an idle machine by the measured tables alone."""

    def took_ns(model: ModelState, estimate: LatencyEstimate) -> int:
        return estimate.profile_ns(1) + hand_off_ns

    return max(end_ns for _, end_ns in unloaded_run(pipeline.stages, [True] * pipeline.stage_count, took_ns))


def unplanned_work(stage_count: int) -> Work:
    """The work of a row of a pipeline before anything is predicted: none."""
    nothing: tuple[Shares, ...] = tuple(() for _ in range(stage_count))
    return Work(nothing, nothing)


def _work(stages: Sequence[StageState], row_ns: Mapping[ModelState, float], probabilities: Sequence[float]) -> Work:
    """The work of a row, spread over the partitions that hold each model so that all are equally busy."""
    whole: tuple[Shares, ...] = tuple(
        ()
        if stage.model is None
        else tuple((group, round(row_ns[stage.model] * len(group.partitions))) for group in stage.model.groups)
        for stage in stages
    )
    expected = tuple(
        shares if share == 1 else tuple((group, round(group_ns * share)) for group, group_ns in shares)
        for shares, share in zip(whole, probabilities, strict=True)
    )
    return Work(expected, whole)


def _waiting_stages(
    stages: Sequence[StageState],
    probabilities: Sequence[float],
    row_ns: Mapping[ModelState, float],
    spans: Sequence[Span],
    hand_off_ns: int,
) -> list[WaitingStage]:
    """The first stages, and later stages on other groups with so many rows that late rows matter.

    Of the stages on the same groups, only the one with the longest time to come waits for the promised work there.
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
            steps.append((stage, model, rest_ns, row_ns[model]))
            longest_ns[groups] = max(rest_ns, longest_ns.get(groups, 0))
    return steps


def _from_start_ns(stage: StageState, hand_off_ns: int) -> int:
    return stage.service_ns(hand_off_ns) + stage.remaining_path_ns
