"""Fair shares: the rows that pipelines which contend for a model leave to each other, by weight."""

from sluice.batcher.queues.fair_queue import LATE_SHARE, Queue
from sluice.batcher.state import ModelState, PipelineState


def rows_ahead(
    pipeline: PipelineState, model: ModelState, queue: Queue, order_ns: int, left_ns: int, now_ns: int
) -> float:
    """The rows that are served before an entry of that order, in a queue whose flows share by weight.

    While a flow's rows are served, every other flow gets as many rows as its weight allows. These are waiting rows and
    rows that arrive within `left_ns`, before the entry must start. Late entries get their own share in addition.
    Entries with a reserved slot are not in the queue. O(pipelines of the model).
    """
    flows = queue.flows
    own = 0.0
    flow = flows.get(pipeline.number)
    if flow is not None and flow.live:
        own = float(flow.rows)
        if (order_ns < flow.last_ns or flow.late_live) and model.by_deadline:
            own -= own * min(flow.behind(order_ns), flow.live) / flow.live
    ahead = own
    for rival in model.pipelines:
        if rival is not pipeline:
            flow = flows.get(rival.number)
            rows = rival.inflow.within(left_ns, now_ns) * rival.expected_runs.get(model, 0.0)
            rows += 0 if flow is None else flow.rows
            ahead += min(rows, own * rival.config.weight / pipeline.config.weight)
    late = queue.rows * queue.late / queue.live
    return ahead + min(late, ahead * LATE_SHARE / (1 - LATE_SHARE))


def beyond_share(pipeline: PipelineState, rows: int, left_ns: int, now_ns: int) -> tuple[ModelState, int] | None:
    """A model on which a request of `rows` rows would exceed its pipeline's share, and its time to completion.

    None if there is no such model. The request must start `left_ns` minus its own time from now. Until then, the model
    must be able to run the rows that its pipeline has under way, and the rows that other pipelines demand, as far as
    their weights allow; a pipeline that ever had requests counts with at least one row. A pipeline may always have
    about one batch under way, however little time there is. O(pipelines of the models).
    """
    if not pipeline.rows_under_way:
        return None
    start_ns = max(left_ns - pipeline.critical_path_ns, pipeline.critical_path_ns)
    for model, reach in pipeline.expected_runs.items():
        rivals = model.pipelines
        if len(rivals) > 1:
            own = (pipeline.rows_under_way + rows) * reach
            taken = 0.0
            for rival in rivals:
                if rival is not pipeline and (asked := rival.asked.within(start_ns, now_ns, least=1)):
                    share = own * rival.config.weight / pipeline.config.weight
                    taken += min(asked * rival.expected_runs.get(model, 0.0), share)
            took_ns = int((own + taken) * model.spread_row_ns) if taken else 0
            if took_ns > start_ns:
                return model, took_ns + pipeline.critical_path_ns
    return None
