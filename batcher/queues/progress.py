"""Progress of a request through its pipeline: which stage comes next, and for which rows."""

from sluice.batcher.interface.config import StageConfig, WhenConfig
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.state import Entry, Request, StageRun, StageState

PROBABILITY_WEIGHT = 0.005
"""Weight of one request in the smoothed share of rows that a conditional stage runs for."""


def rows_for(request: Request, stage: StageState) -> StageRun:
    """The rows that a stage runs for, once its sources and the stage of its condition are settled.

    A row runs if all the stage's sources ran it and, under `when`, its confidence is below the threshold. Cascades
    decide per row, so a row is escalated without the others of its request. `row_index` None stands for all rows. A
    combiner that joins what is there goes by the sources that are done.
    """
    selected: tuple[int, ...] | None = None
    for source in stage.config.sources:
        run = request.runs[source]
        if stage.config.partial and (run is None or not run.is_done):
            continue
        assert run is not None, "a stage starts when its sources are settled"
        if run.row_index is not None:
            selected = run.row_index if selected is None else tuple(sorted(set(selected) & set(run.row_index)))
    when = stage.config.when
    if when is not None:
        unsure = _unsure_rows(request, when)
        selected = unsure if selected is None else tuple(sorted(set(selected) & set(unsure)))
    if selected is None or len(selected) == request.rows:
        return StageRun(None, request.rows)
    return StageRun(selected, len(selected))


def _unsure_rows(request: Request, when: WhenConfig) -> tuple[int, ...]:
    """The rows whose confidence is below the threshold; rows that the stage of the condition skipped are not."""
    run = request.runs[when.stage]
    assert run is not None, "a stage starts when the stage of its condition is settled"
    if not run.rows:
        return ()
    confidences = run.confidences[when.confidence]
    rows = range(request.rows) if run.row_index is None else run.row_index
    return tuple(row for row, confidence in zip(rows, confidences, strict=True) if confidence < when.below)


def observe_share(stage: StageState, run: StageRun, request: Request) -> None:
    """Update the smoothed share of offered rows that a conditional stage runs for."""
    when = stage.config.when
    if when is None:
        return
    asked = request.runs[when.stage]
    if asked is not None and asked.rows:
        stage.run_probability += PROBABILITY_WEIGHT * (run.rows / asked.rows - stage.run_probability)


def planned_order(entry: Entry) -> tuple[int, int]:
    """The order of an entry among those of other queues: that of its planned batch, else its deadline (ns)."""
    place = entry.place
    return (entry.stage_deadline_ns, 0) if place is None else (place[0].order_ns, place[0].serial)


def request_batch_key(event: RequestArrived, config: StageConfig) -> str:
    """As `batch_key_for`, for a stage whose key depends on the request alone."""
    if not config.request_keyed:
        return "" if config.compete is None else config.compete.batch_key
    parts = _own_parts(config)
    return "|".join([*parts, event.batch_key]) if parts else event.batch_key


def _own_parts(config: StageConfig) -> list[str]:
    """The parts of a stage's batch keys that do not depend on the request."""
    parts = [] if config.compete is None else [config.compete.batch_key]
    return [*parts, config.renamed] if config.renamed else parts


def batch_key_for(request: Request, stage: StageState) -> str:
    """The key that requests must share to be batched at this stage: variable dimensions, and how it competes."""
    config = stage.config
    parts = _own_parts(config)
    if config.request_keyed:
        parts.append(request.arrival.batch_key)
    if config.source_keyed:
        parts += [run.batch_key for source in config.sources if (run := request.runs[source]) is not None]
    return "|".join(parts)
