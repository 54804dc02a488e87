"""`sluice why`: asks a running server where a request spent its time, and prints the answer."""

import argparse
from urllib.parse import quote

from sluice.gateway.cli.client.http import ServerAddress, add_server_arguments, decode, request
from sluice.gateway.observability.traces.explanation import Explanation, StageTrace
from sluice.models.text_table import table_lines

_COLUMNS = (
    "stage",
    "model",
    "partition",
    "batch",
    "size",
    "rows",
    "closed",
    "queue",
    "hand-off",
    "compute",
    "return",
    "predicted",
    "actual",
    "cost",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.set_defaults(command=_why)
    parser.add_argument(
        "request", metavar="REQUEST_ID", help="the client's id of the request, or the id in the header x-sluice-request"
    )
    add_server_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")


def _why(options: argparse.Namespace) -> int:
    body, explanation = fetch(ServerAddress.of(options), options.request)
    print(body if options.json else table(explanation))
    return 0


def fetch(server: ServerAddress, id: str) -> tuple[str, Explanation]:
    """The explanation of a request by a server, as JSON and decoded; raises as `client.http.request`."""
    body = request(server, f"/v2/sluice/requests/{quote(id, safe='')}", shows_status=True)
    explanation = decode(server.url, body, Explanation)
    return body.decode(), explanation


def table(explanation: Explanation) -> str:
    """The outcome of a request, a table of its stages, and the main cause of its latency."""
    rows = f"{explanation.rows} row{'' if explanation.rows == 1 else 's'}"
    lines = [
        f"request {explanation.id}: {explanation.pipeline}, {rows}, {explanation.outcome} in "
        f"{explanation.total_ms:.3f} of {explanation.deadline_ms:.3f} ms, cost {explanation.cost:.4g}"
        + ("" if explanation.max_cost is None else f" of at most {explanation.max_cost:.4g}")
        + (f", to begin {explanation.start_after_ms:.3f} ms after it came" if explanation.start_after_ms else "")
    ]
    if explanation.stages:
        cells = [_COLUMNS, *(_cells(stage) for stage in explanation.stages)]
        lines += table_lines(cells, left=len(_COLUMNS))
        lines.append("(times in ms; predicted and actual run from the dispatch to the end of the batch)")
    if explanation.trace_id:
        lines.append(f"trace {explanation.trace_id}")
    return "\n".join([*lines, explanation.sentence])


def _cells(stage: StageTrace) -> tuple[str, ...]:
    predicted = "-" if stage.predicted_ms is None else f"{stage.predicted_ms:.3f}"
    worker = ("-", stage.failed, "-") if stage.failed else _worker_times(stage)
    return (
        stage.stage,
        stage.model,
        stage.partition,
        str(stage.batch),
        str(stage.batch_rows),
        str(stage.rows),
        f"{stage.closed} ({stage.rule})" if stage.rule else stage.closed,
        f"{stage.queue_ms:.3f}",
        *worker,
        predicted,
        f"{stage.actual_ms:.3f}",
        f"{stage.cost:.4g}",
    )


def _worker_times(stage: StageTrace) -> tuple[str, str, str]:
    return f"{stage.hand_off_ms:.3f}", f"{stage.compute_ms:.3f}", f"{stage.return_ms:.3f}"
