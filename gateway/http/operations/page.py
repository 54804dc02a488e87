"""The page: what the server does now, and its plan."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sluice.gateway.http.operations.operation import EVENTS, Body, Example, Operation, OperationParameter, answers

_RATES = {
    "requests_per_s": 212.0,
    "in_time": 0.999,
    "p50_ms": 3.7,
    "p99_ms": 25.2,
    "late_per_s": 0.2,
    "refused_per_s": 0.0,
    "failed_per_s": 0.0,
}
_STAGE = {
    "name": "prep",
    "model": "prep:1",
    "sources": ["request"],
    "when": None,
    "combiner": "",
    "rows_per_s": 212.0,
    "share": 1.0,
    "mean_batch": 1.6,
    "queued_requests": 0,
    "latency_ms": 0.16,
}
_PLAN = {
    "in_force": True,
    "reason": "",
    "planner": "exact",
    "built_s": 1767225590.0,
    "rate": 212.0,
    "highest_rate": 810.0,
    "headroom": 3.8,
    "cost_per_1000": 3.5e-4,
    "predicted_p50_ms": 3.1,
    "predicted_p99_ms": 21.0,
    "seen_p50_ms": 3.7,
    "seen_p99_ms": 25.2,
    "stages": [
        {
            "stage": "prep",
            "batch": 1,
            "kinds": [{"kind": "cpu1", "partitions": 2, "batch": 1}],
            "predicted_ms": 0.16,
            "seen_ms": 0.17,
            "predicted_share": 1.0,
            "seen_share": 1.0,
            "rule": None,
        }
    ],
    "stages_more": 0,
}
_NOW: dict[str, Any] = {
    "server": {
        "name": "sluice",
        "version": "0.1.0",
        "compiled": False,
        "now_s": 1767225600.12,
        "started_s": 1767222000.0,
        "tick_s": 1.0,
        "state": "ready",
        "reasons": [],
        "front_ends": 0,
        "currency": "",
    },
    "totals": {**_RATES, "cancelled_per_s": 0.0, "cost_per_1000_good": 4.0e-4, "in_flight": 12, "queued_rows": 30},
    "pipelines": [
        {
            "name": "digits-cascade:1",
            "kind": "cascade",
            **_RATES,
            "cost_per_1000_good": 4.0e-4,
            "objective_ms": 50.0,
            "percentile": 99.0,
            "headroom": 3.8,
        }
    ],
    "pipelines_more": 7,
    "pipeline": {
        "name": "digits-cascade:1",
        "kind": "cascade",
        "objective_ms": 50.0,
        "asked": "",
        "percentile": 99.0,
        "history": {
            "start_s": 1767225598,
            "step_s": 1,
            "good": [210, 214],
            "late": [0, 1],
            "refused": [0, 0],
            "failed": [0, 0],
            "cancelled": [0, 0],
            "p50_ms": [3.6, 3.7],
            "p99_ms": [25.0, 25.2],
        },
        "stages": [_STAGE],
        "stages_more": 2,
        "outputs": [{"name": "probs", "from": ["large", "small"]}],
        "plan": _PLAN,
    },
    "partitions": [
        {
            "name": "cpu0",
            "kind": "cpu1",
            "ready": True,
            "state": "ready",
            "reason": "",
            "node": "",
            "url": "",
            "proof": "enforced",
            "busy": 0.62,
            "running": {"model": "logreg:1", "rows": 8},
            "memory_bytes": None,
            "memory_free_bytes": None,
            "models": 6,
            "resident": ["logreg:1", "prep:1"],
            "resident_more": 4,
        }
    ],
    "partitions_more": 1,
    "timeline": {
        "from_s": 1767225597.0,
        "to_s": 1767225600.12,
        "last": 81234,
        "merged": False,
        "models": ["prep:1", "logreg:1"],
        "bars": [[81234, 0, 1, 0.12, 3.4, 8, 1]],
        "bars_more": 0,
        "planned": [],
    },
    "troubles": [],
    "troubles_open": True,
    "not_served": [],
    "not_served_more": 0,
}
_PLANNED_STAGE = {
    "stage": "prep",
    "model": "prep:1",
    "kind": "cpu1",
    "simulated": False,
    "batch": 1,
    "rows": 1,
    "probability": 1.0,
    "rate": 212.0,
    "counted": True,
    "critical": True,
    "p50_ms": 0.32,
    "p99_ms": 0.35,
    "cost_per_1000_rows": 1.6e-6,
    "utilisation": 0.05,
    "arithmetic": None,
    "rule": None,
}
_PLANS = {
    "in_force": True,
    "built_s": 1767225590.0,
    "planner": "exact",
    "replan": "dispatch",
    "partitions": {"cpu1": 2},
    "residency": {},
    "latencies": [{"model": "prep:1", "kind": "cpu1", "ms_by_rows": {"1": 0.17, "2": 0.18}}],
    "pipelines": [
        {
            "pipeline": "digits-cascade:1",
            "slo_ms": 50.0,
            "percentile": 99.0,
            "rate": 212.0,
            "reason": "",
            "feasible": True,
            "plan": {"stages": [_PLANNED_STAGE], "p50_ms": 3.1, "p99_ms": 21.0, "cost_per_1000": 3.5e-4},
            "highest_rate": 810.0,
            "probabilities": {"prep": 1.0, "small": 1.0, "large": 0.33},
        }
    ],
}
_QUESTIONS = {
    "pipeline": OperationParameter("the pipeline to show; the one with most requests without it", "digits-cascade"),
}

PAGE: Mapping[str, Operation] = MappingProxyType(
    {
        "GET /": Operation(
            "The page",
            "Shows what the server is doing, to browsers. Clients that do not accept HTML get `alive`, as KServe's V1 "
            "has it.",
            answers({"status": "alive"}),
        ),
        "GET /v2/sluice/now": Operation(
            "What the server does now",
            "Has what the page shows, in at most 20 kB: rates and latencies of the last seconds, one pipeline with its "
            "stages and its last five minutes, the partitions with their last batches, and the latest requests that "
            "were late or refused. Null stands for what is not known. Sampling begins when somebody looks, and ends "
            "five minutes after the last look. Lists are bounded, and `..._more` counts what is left out.",
            answers(_NOW),
            _QUESTIONS,
        ),
        "GET /v2/sluice/now/events": Operation(
            "What the server does now, as events",
            "Sends the same every second as a server-sent event, until the client leaves or the server stops. From the "
            "second one on, the history and the bars are only those that are new. `curl -N` shows them; a page such as "
            "`/docs` waits for the end of an answer, which this one has not.",
            (Example(Body(f"data: {json.dumps(_NOW, separators=(',', ':'))}\n\n", EVENTS)),),
            _QUESTIONS,
        ),
        "GET /v2/sluice/plan": Operation(
            "The plan in force",
            "Shows the plan of every pipeline as `sluice plan` does: the batch size and the partitions of each stage, "
            "with the rates and latencies that led to it.",
            answers(_PLANS),
            {"pipeline": OperationParameter("only this pipeline", "digits-cascade")},
        ),
    }
)
