"""A document of `GET /v2/sluice/now`, with something in each of its parts."""

from typing import Any

AT_S = 1_764_500_000.0


def document() -> dict[str, Any]:
    """A busy server with a lost partition."""
    figures = {
        "requests_per_s": 212.0,
        "in_time": 0.999,
        "p50_ms": 3.7,
        "p99_ms": 25.2,
        "late_per_s": 0.1,
        "refused_per_s": 0,
        "failed_per_s": 0,
    }
    return {
        "server": {
            "name": "sluice",
            "version": "0.1.0",
            "compiled": True,
            "now_s": AT_S,
            "started_s": AT_S - 9999,
            "tick_s": 0.05,
            "state": "degraded",
            "reasons": ["partition cpu1 is down: worker exited with SIGKILL, restarting"],
            "currency": "USD",
            "of a later version": 1,
        },
        "totals": {**figures, "cost_per_1000_good": 0.00052, "in_flight": 12, "queued_rows": 30},
        "pipelines": [
            {"name": f"digits-cascade-{index}:1", **figures, "objective_ms": 50.0, "percentile": 99, "headroom": 2.1}
            for index in range(9)
        ],
        "pipelines_more": 3,
        "pipeline": {
            "name": "digits-cascade-1:1",
            "history": {
                "good": [100.0 + index % 7 for index in range(100)],
                "late": [0.0] * 100,
                "p99_ms": [None, *(10.0 + index % 5 for index in range(99))],
            },
            "stages": [
                {"name": "prep", "model": "prep:1", "when": None, "rows_per_s": 212.0, "share": 1.0, "mean_batch": 1.6},
                {
                    "name": "large",
                    "model": "rf1024:1",
                    "when": {"stage": "small", "text": "max of probs below 0.9"},
                    "rows_per_s": 70.0,
                    "share": 0.328,
                    "mean_batch": 3.3,
                    "queued_requests": 4,
                    "latency_ms": 1.16,
                },
            ],
            "plan": {
                "in_force": True,
                "highest_rate": 810.0,
                "headroom": 3.8,
                "predicted_p99_ms": 21.0,
                "seen_p99_ms": 25.2,
            },
        },
        "partitions": [
            {
                "name": "cpu0",
                "kind": "cpu1",
                "state": "ready",
                "busy": 0.62,
                "running": {"model": "logreg:1", "rows": 8},
                "memory_bytes": 123 << 20,
                "memory_free_bytes": None,
                "models": 12,
            },
            {"name": "cpu1", "kind": "cpu1", "state": "lost", "reason": "worker exited with SIGKILL", "models": 0},
        ],
        "timeline": {"last": 7},
        "troubles": [
            {
                "id": "sluice-10231",
                "pipeline": "digits-ensemble:1",
                "outcome": "completed_late",
                "at_s": AT_S - 3,
                "total_ms": 61.4,
                "deadline_ms": 50.0,
                "sentence": "It was 11.4 ms late; the largest cause was waiting for a partition.",
            }
        ],
        "not_served": [{"name": "bert", "version": None, "reason": "model.onnx: cut off"}],
    }
