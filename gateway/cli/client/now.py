"""The document `GET /v2/sluice/now` as commands read it: only what they show, and nothing that must be there."""

from typing import Any
from urllib.parse import urlencode

import msgspec

from sluice.gateway.cli.client.http import ServerAddress, decode, request

PATH = "/v2/sluice/now"


class ServerNow(msgspec.Struct):
    """The server itself."""

    name: str = "sluice"
    version: str = ""
    compiled: bool = False
    now_s: float = 0.0
    started_s: float = 0.0
    tick_s: float = 1.0
    state: str = ""
    reasons: list[str] = []
    currency: str = ""


class TotalsNow(msgspec.Struct):
    """Rates and quantiles of all requests; None where they are not known."""

    requests_per_s: float | None = None
    in_time: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    late_per_s: float | None = None
    refused_per_s: float | None = None
    failed_per_s: float | None = None
    cancelled_per_s: float | None = None
    cost_per_1000_good: float | None = None
    in_flight: int | None = None
    queued_rows: int | None = None


class PipelineNow(TotalsNow):
    """Those of one pipeline, its objective, and its highest rate over its rate."""

    name: str = ""
    objective_ms: float | None = None
    percentile: float | None = None
    headroom: float | None = None


class HistoryNow(msgspec.Struct):
    """One figure for each step, the oldest first."""

    good: list[float | None] = []
    late: list[float | None] = []
    refused: list[float | None] = []
    failed: list[float | None] = []
    p99_ms: list[float | None] = []


class StageNow(msgspec.Struct):
    """A stage of the chosen pipeline; `when` says which rows it runs for, if not for all."""

    name: str = ""
    model: str = ""
    when: dict[str, Any] | None = None
    combiner: str = ""
    rows_per_s: float | None = None
    share: float | None = None
    mean_batch: float | None = None
    queued_requests: int | None = None
    latency_ms: float | None = None


class PlanNow(msgspec.Struct):
    """The plan in force of the chosen pipeline, predicted against seen; `reason` says why there is none."""

    in_force: bool = False
    reason: str = ""
    highest_rate: float | None = None
    headroom: float | None = None
    predicted_p99_ms: float | None = None
    seen_p99_ms: float | None = None


class ChosenNow(msgspec.Struct):
    """The chosen pipeline."""

    name: str = ""
    history: HistoryNow = msgspec.field(default_factory=HistoryNow)
    stages: list[StageNow] = []
    plan: PlanNow | None = None


class RunningNow(msgspec.Struct):
    """The batch that a partition runs."""

    model: str = ""
    rows: int = 0


class PartitionNow(msgspec.Struct):
    """A partition."""

    name: str = ""
    kind: str = ""
    node: str = ""
    state: str = ""
    reason: str = ""
    busy: float | None = None
    running: RunningNow | None = None
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    models: int | None = None


class TroubleNow(msgspec.Struct):
    """A request that was late, refused or failed."""

    id: str = ""
    pipeline: str = ""
    outcome: str = ""
    at_s: float = 0.0
    total_ms: float | None = None
    deadline_ms: float | None = None
    sentence: str = ""


class NotServedNow(msgspec.Struct):
    """A model that is not served."""

    name: str = ""
    version: str | None = ""
    reason: str = ""


class TimelineNow(msgspec.Struct):
    """The number of the last bar of the timeline, which is not shown."""

    last: int | None = None


class Now(msgspec.Struct):
    """The whole document."""

    server: ServerNow
    totals: TotalsNow = msgspec.field(default_factory=TotalsNow)
    pipelines: list[PipelineNow] = []
    pipelines_more: int = 0
    pipeline: ChosenNow | None = None
    partitions: list[PartitionNow] = []
    partitions_more: int = 0
    timeline: TimelineNow | None = None
    troubles: list[TroubleNow] = []
    not_served: list[NotServedNow] = []
    not_served_more: int = 0


def fetch_now(server: ServerAddress, pipeline: str = "", bars_since: int | None = None, timeout_s: float = 5.0) -> Now:
    """Ask a server for the document, with the details of one pipeline ("": the busiest).

    Bars of its timeline up to `bars_since` are left out. Raises as `client.http.request`.
    """
    query = {"pipeline": pipeline} if pipeline else {}
    if bars_since is not None:
        query["bars_since"] = str(bars_since)
    path = f"{PATH}?{urlencode(query)}" if query else PATH
    return decode(server.url, request(server, path, timeout_s=timeout_s), Now)
