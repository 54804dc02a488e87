"""`sluice why`: asks a running server what took a request its time, and prints it."""

import http
import http.client
import urllib.error
import urllib.request
from urllib.parse import quote

import msgspec

from sluice.gateway.cli.http_client import Headers, check_url, open_url, unreachable
from sluice.gateway.cli.text.text_table import aligned
from sluice.gateway.observability.explanation import Explanation, StageTrace
from sluice.models.errors import NotFoundError, ServingError

TIMEOUT_S = 10
MAX_BODY_BYTES = 1 << 20

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


class _Refusal(msgspec.Struct):
    error: str


def fetch(url: str, request: str, headers: Headers = ()) -> tuple[str, Explanation]:
    """What a server at `url` knows of a request, as JSON and decoded.

    Raises NotFoundError when it knows nothing of it, ServingError when it cannot be reached, fails, or does not answer
    as one of ours.
    """
    check_url(url)
    where = f"{url.rstrip('/')}/v2/sluice/requests/{quote(request, safe='')}"
    try:
        with open_url(urllib.request.Request(where, headers=dict(headers)), timeout=TIMEOUT_S) as response:
            body = response.read(MAX_BODY_BYTES)
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(url, error) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise unreachable(url, error, TIMEOUT_S) from error
    try:
        return body.decode(), msgspec.json.decode(body, type=Explanation)
    except ValueError as error:
        raise ServingError(f"{url}: it answered, but not as a server of ours: {error}") from error


def table(explanation: Explanation) -> str:
    """The stages of a request as a table, what became of it, and why."""
    told = explanation
    lines = [
        f"request {told.id}: {told.pipeline}, {told.rows} row{'' if told.rows == 1 else 's'}, {told.outcome} in "
        f"{told.total_ms:.3f} of {told.deadline_ms:.3f} ms, cost {told.cost:.4g}"
        + ("" if told.max_cost is None else f" of at most {told.max_cost:.4g}")
    ]
    if told.stages:
        rows = [_COLUMNS, *(_cells(stage) for stage in told.stages)]
        lines += aligned(rows, left=len(_COLUMNS))
        lines.append("(queue to actual in ms; predicted and actual from the dispatch to the end of the batch)")
    return "\n".join([*lines, told.sentence])


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
        stage.closed,
        f"{stage.queue_ms:.3f}",
        *worker,
        predicted,
        f"{stage.actual_ms:.3f}",
        f"{stage.cost:.4g}",
    )


def _worker_times(stage: StageTrace) -> tuple[str, str, str]:
    return f"{stage.hand_off_ms:.3f}", f"{stage.compute_ms:.3f}", f"{stage.return_ms:.3f}"


def _refused(url: str, answer: urllib.error.HTTPError) -> ServingError:
    """What an answer that is an error comes to."""
    try:
        message = msgspec.json.decode(answer.read(MAX_BODY_BYTES), type=_Refusal).error
    except (OSError, http.client.HTTPException, ValueError):
        return ServingError(f"{url}: it answered {answer.code} {answer.reason}, and not as a server of ours")
    if answer.code == http.HTTPStatus.NOT_FOUND:
        return NotFoundError(f"{url}: {message}")
    return ServingError(f"{url}: it answered {answer.code} {answer.reason}: {message}")
