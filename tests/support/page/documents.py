"""Made-up documents of `GET /v2/sluice/now`: the same for the same time, in the situations that a page must show."""

import math
from random import Random
from typing import Any

STARTED_S = 1_764_490_000
Document = dict[str, Any]
SITUATIONS = ("ready", "overload", "lost", "crowded", "long", "empty", "starting")


def document(situation: str, now_s: int, since_s: float = 0, bars_since: int = -1, chosen: str = "") -> Document:
    """The document of a situation at a time, with history after `since_s` and bars after number `bars_since`."""
    if situation in {"empty", "starting"}:
        return _empty(situation, now_s)
    bad = situation == "overload"
    pipelines = _pipelines(situation, now_s)
    names = [each["name"] for each in pipelines]
    name = chosen if chosen in names else names[0]
    stages = _stages(situation, name)
    models = [stage["model"] for stage in stages if stage["model"]]
    gated = [stage for stage in stages if stage["when"]]
    answering = [*gated, stages[-2]] if gated else stages[-1:]
    partitions = _partitions(situation, models)
    reasons = {
        "overload": [
            "requests are refused: queues of 'digits-cascade:1' are full (64 of 64 requests)",
            "p99 is 2.1 times the objective",
        ],
        "lost": ["partition cpu1 is down: worker exited with SIGKILL, restarting"],
    }.get(situation, [])
    state = {"overload": "overloaded", "lost": "degraded"}.get(situation, "ready")
    return {
        "server": {
            "name": "sluice",
            "version": "0.1.0",
            "compiled": True,
            "now_s": now_s + 0.12,
            "started_s": STARTED_S,
            "tick_s": 1.0,
            "state": state,
            "reasons": reasons,
            "front_ends": 0,
            "currency": "USD",
        },
        "totals": {
            "requests_per_s": 811.2 if bad else 311.2,
            "in_time": 0.713 if bad else 0.994,
            "p50_ms": 21.7 if bad else 3.7,
            "p99_ms": 104.2 if bad else 25.2,
            "late_per_s": 61.1 if bad else 0.1,
            "refused_per_s": 224.0 if bad else 2.0,
            "failed_per_s": 0.0,
            "cancelled_per_s": 0.0,
            "cost_per_1000_good": 0.00052,
            "in_flight": 12,
            "queued_rows": 30,
        },
        "pipelines": pipelines,
        "pipelines_more": 14 if situation == "crowded" else 0,
        "pipeline": {
            "name": name,
            "asked": "" if chosen in {"", name} else chosen,
            "kind": pipelines[names.index(name)]["kind"],
            "objective_ms": 50.0,
            "percentile": 99,
            "history": _history(situation, now_s, since_s),
            "stages": stages,
            "outputs": [{"name": "probs", "from": [stage["name"] for stage in answering]}],
            "plan": _plan(situation, now_s, stages),
        },
        "partitions": partitions,
        "partitions_more": 0,
        "timeline": _timeline(situation, now_s, bars_since, partitions, models),
        "troubles": _troubles(situation, now_s, name),
        "troubles_open": True,
        "not_served": _not_served(situation),
        "not_served_more": 960 if situation == "crowded" else 0,
    }


def _empty(situation: str, now_s: int) -> Document:
    starting = situation == "starting"
    return {
        "server": {
            "name": "sluice",
            "version": "0.1.0",
            "compiled": False,
            "now_s": now_s + 0.12,
            "started_s": now_s - 3,
            "tick_s": 1.0,
            "state": "starting" if starting else "ready",
            "reasons": ["2 of 8 models are loaded"] if starting else [],
            "front_ends": 0,
            "currency": "USD",
        },
        "totals": {
            "requests_per_s": 0,
            "in_time": None,
            "p50_ms": None,
            "p99_ms": None,
            "late_per_s": 0,
            "refused_per_s": 0,
            "failed_per_s": 0,
            "cancelled_per_s": 0,
            "cost_per_1000_good": None,
            "in_flight": 0,
            "queued_rows": 0,
        },
        "pipelines": [],
        "pipelines_more": 0,
        "pipeline": None,
        "partitions": [],
        "partitions_more": 0,
        "timeline": {
            "from_s": now_s - 3.0,
            "to_s": now_s + 0.1,
            "last": 0,
            "merged": False,
            "models": [],
            "bars": [],
            "planned": [],
        },
        "troubles": [],
        "troubles_open": True,
        "not_served": [],
        "not_served_more": 0,
    }


def _pipelines(situation: str, now_s: int) -> list[Document]:
    long = "a-name-that-a-team-of-very-careful-people-agreed-on-after-a-meeting-of-two-hours_" + "x" * 120
    kinds = [
        ("digits-cascade:1", "cascade", 212.0),
        ("digits-ensemble:1", "ensemble", 98.0),
        ("rf1024:1", "model", 1.2),
        ("text:3", "chain", 0.0),
    ]
    if situation == "long":
        kinds[:2] = [(f"{long}:1", "cascade", 212.0), (f"名前-{long}:17", "dag", 98.0)]
    if situation == "crowded":
        kinds = [(f"team-{number % 7}-recommender-{number}:1", "cascade", 212.0 / (number + 1)) for number in range(50)]
    bad = situation == "overload"
    return [
        {
            "name": name,
            "kind": kind,
            "requests_per_s": rate,
            "in_time": (0.713 if bad and not index else 0.999) if rate else None,
            "p50_ms": 3.7 if rate else None,
            "p99_ms": (104.0 if bad and not index else 25.2) if rate else None,
            "objective_ms": None if kind == "model" else 50.0,
            "percentile": 99,
            "late_per_s": 61.0 if bad and not index else 0,
            "refused_per_s": 224.0 if bad and not index else 0,
            "failed_per_s": 0,
            "cost_per_1000_good": 0.0004,
            "headroom": (0.41 if bad else 3.8) if rate else None,
        }
        for index, (name, kind, rate) in enumerate(kinds)
    ]


def _stage(name: str, model: str, sources: list[str], rate: float, **values: Any) -> Document:
    return {
        "name": name,
        "model": model,
        "sources": sources,
        "when": None,
        "combiner": "",
        "rows_per_s": rate,
        "share": 1.0,
        "mean_batch": 1.6,
        "queued_requests": 0,
        "latency_ms": 0.16,
        **values,
    }


def _stages(situation: str, name: str) -> list[Document]:
    if "ensemble" in name or (situation == "long" and name.startswith("名")):
        members = [("forest", "rf1024:1"), ("logistic", "logreg:1"), ("kernel", "kernel:1")]
        return [
            _stage("prep", "prep:1", ["request"], 98.0),
            *(_stage(stage, model, ["prep"], 98.0, latency_ms=2.4) for stage, model in members),
            _stage(
                "vote", "", [stage for stage, _ in members], 98.0, combiner="mean", mean_batch=None, latency_ms=0.02
            ),
        ]
    if name.startswith(("rf1024", "text")):
        return [_stage("model", name, ["request"], 1.2)]
    suffix = "_of-a-model-with-a-name-that-nobody-can-remember" if situation == "long" else ""
    queued = 57 if situation == "overload" else 1
    return [
        _stage(f"prep{suffix}", f"prep{suffix}:1", ["request"], 212.0),
        _stage(f"small{suffix}", f"logreg{suffix}:1", [f"prep{suffix}"], 212.0, mean_batch=1.8, latency_ms=0.21),
        _stage(
            f"large{suffix}",
            f"rf1024{suffix}:1",
            [f"prep{suffix}"],
            69.5,
            share=0.328,
            mean_batch=3.4,
            latency_ms=4.7,
            queued_requests=queued,
            when={"stage": f"small{suffix}", "text": "max of probs below 0.9"},
        ),
    ]


def _history(situation: str, now_s: int, since_s: float) -> Document:
    start = max(now_s - 299, int(since_s))
    seconds = range(start, now_s + 1)
    swings = [Random(second).random() for second in seconds]
    bad = [situation == "overload" and second > now_s - 100 for second in seconds]
    rates = [
        round(190 + 50 * math.sin(second / 30) + 30 * swing) for second, swing in zip(seconds, swings, strict=True)
    ]
    return {
        "start_s": start,
        "step_s": 1,
        "good": rates,
        "late": [round(61 * swing) if hot else int(swing > 0.97) for swing, hot in zip(swings, bad, strict=True)],
        "refused": [round(200 + 60 * swing) if hot else 0 for swing, hot in zip(swings, bad, strict=True)],
        "failed": [0] * len(seconds),
        "cancelled": [int(swing > 0.99) for swing in swings],
        "p50_ms": [
            round(21 + 4 * swing, 2) if hot else round(3 + swing, 2) for swing, hot in zip(swings, bad, strict=True)
        ],
        "p99_ms": [
            round(90 + 30 * swing, 1) if hot else round(20 + 8 * swing + 4 * math.sin(second / 15), 1)
            for second, swing, hot in zip(seconds, swings, bad, strict=True)
        ],
    }


def _plan(situation: str, now_s: int, stages: list[Document]) -> Document:
    bad = situation == "overload"
    return {
        "in_force": True,
        "reason": "",
        "planner": "exact",
        "built_s": now_s - 10.0,
        "rate": 212.0,
        "highest_rate": 810.0,
        "headroom": 0.41 if bad else 3.8,
        "cost_per_1000": 3.5e-4,
        "predicted_p50_ms": 3.1,
        "predicted_p99_ms": 21.0,
        "seen_p50_ms": 21.7 if bad else 3.7,
        "seen_p99_ms": 104.2 if bad else 25.2,
        "stages": [
            {
                "stage": stage["name"],
                "batch": 4,
                "kinds": [{"kind": "cpu1", "partitions": 2, "batch": 4}],
                "predicted_ms": round(stage["latency_ms"] * 0.9, 2),
                "seen_ms": stage["latency_ms"],
                "predicted_share": round(stage["share"] * 0.93, 2) if stage["when"] else 1.0,
                "seen_share": stage["share"],
                "rule": None,
            }
            for stage in stages
            if stage["model"]
        ],
    }


def _partitions(situation: str, models: list[str]) -> list[Document]:
    number = 8 if situation == "crowded" else 2
    found: list[Document] = [
        {
            "name": f"cpu{index}",
            "kind": "cpu1",
            "ready": True,
            "state": "ready",
            "reason": "",
            "proof": "enforced",
            "busy": (0.97 if situation == "overload" else (0.62, 0.41)[index % 2]),
            "running": {"model": models[-1], "rows": 8},
            "memory_bytes": 4 << 30,
            "memory_free_bytes": 3 << 30,
            "models": 125 if situation == "crowded" else len(models),
            "resident": models,
            "resident_more": 120 if situation == "crowded" else 0,
        }
        for index in range(number)
    ]
    found.append(
        {
            "name": "gpu0-half",
            "kind": "mps-50",
            "ready": True,
            "state": "ready",
            "reason": "",
            "proof": "not enforced: no MPS daemon",
            "busy": 0.18,
            "running": None,
            "memory_bytes": 40 << 30,
            "memory_free_bytes": 31 << 30,
            "models": 1,
            "resident": models[-1:],
            "resident_more": 0,
        }
    )
    if situation == "lost":
        found[1].update(
            ready=False, state="lost", reason="worker exited with SIGKILL, restarting", busy=0.0, running=None
        )
    return found


def _timeline(situation: str, now_s: int, after: int, partitions: list[Document], models: list[str]) -> Document:
    bars = []
    planned = []
    for index, partition in enumerate(partitions):
        if partition["state"] == "lost":
            continue
        for second in range(now_s - 3, now_s + 1):
            random = Random(second * 100 + index)
            at = random.random() * 0.004
            number = 0
            while at < 1:
                model = random.randrange(len(models))
                length = (0.4, 0.9, 5.0)[model % 3] * (0.7 + random.random())
                rows = random.choice((1, 1, 2, 4, 8)) if model % 3 == 2 else random.choice((1, 1, 1, 2))
                if second + at + length / 1000 > min(second + 1, now_s + 0.1):
                    break
                if situation != "crowded" or number < 12:
                    bars.append(
                        [
                            _number(second + at, index),
                            index,
                            model,
                            round(second - now_s + 3 + at, 5),
                            round(length, 3),
                            rows,
                            1,
                        ]
                    )
                number += 1
                gap = 0.0005 if situation == "overload" else 0.0045 * random.random() * (5 if index == 2 else 1)
                at += length / 1000 + gap * (20 if situation == "crowded" else 1)
        bars.append([_number(now_s + 0.097, index), index, len(models) - 1, 3.097, -1, 8, 1])
        planned.append([index, len(models) - 1, 3.1025, 5.2, 6])
        planned.append([index, 0, 3.109, 2.7, 2])
    bars.sort()
    bars = [bar for bar in bars if bar[0] > after]
    return {
        "from_s": now_s - 3.0,
        "to_s": now_s + 0.1,
        "last": max((bar[0] for bar in bars), default=after),
        "merged": situation == "crowded",
        "models": models,
        "bars": bars,
        "planned": planned,
    }


def _number(start_s: float, index: int) -> int:
    return round(start_s % 100_000 * 100_000) * 10 + index


def _troubles(situation: str, now_s: int, name: str) -> list[Document]:
    late = {
        "outcome": "completed_late",
        "total_ms": 61.4,
        "deadline_ms": 50.0,
        "cause": "queue",
        "sentence": "It was 11.4 ms late; the largest cause was waiting behind other requests: 38.1 ms.",
    }
    refused = {
        "outcome": "rejected_deadline",
        "total_ms": 0.2,
        "deadline_ms": 50.0,
        "cause": "rejected_deadline",
        "sentence": "It ended as rejected_deadline after 0.2 ms: the best place was in 63 ms.",
    }
    came_s = now_s // 20 * 20 - 1.0  # three a minute
    count = 20 if situation in {"overload", "crowded", "long"} else 3
    return [
        {
            "id": f"sluice-{10231 - number * 7}",
            "pipeline": name,
            "at_s": came_s - 1.5 * number,
            **(refused if number % 3 == 1 else late),
        }
        for number in range(count)
    ]


def _not_served(situation: str) -> list[Document]:
    found = [{"name": "bert", "version": "1", "reason": "model.onnx: opset 99 is not supported; expected 7 to 23"}]
    if situation == "crowded":
        return [
            {"name": f"broken-{number}", "version": "1", "reason": "model.onnx: the file is empty"}
            for number in range(40)
        ]
    if situation == "long":
        return [{"name": "n" * 200, "version": "1", "reason": "model.onnx: " + "w" * 400}]
    return found if situation != "ready" else []


EXPLANATION = {
    "id": "sluice-10231",
    "pipeline": "digits-cascade:1",
    "rows": 1,
    "outcome": "completed_late",
    "reason": "",
    "deadline_ms": 50.0,
    "total_ms": 61.4,
    "cost": 1.2e-6,
    "max_cost": None,
    "cause": "queue",
    "sentence": "It was 11.4 ms late; the largest cause was waiting behind other requests: 38.1 ms.",
    "stages": [
        {
            "stage": "prep",
            "model": "prep:1",
            "partition": "cpu0",
            "batch": 81,
            "batch_rows": 2,
            "rows": 1,
            "closed": "idle",
            "queue_ms": 0.4,
            "hand_off_ms": 0.1,
            "compute_ms": 0.16,
            "return_ms": 0.05,
            "predicted_ms": 0.2,
            "actual_ms": 0.3,
            "cost": 1e-8,
            "failed": "",
        },
        {
            "stage": "small",
            "model": "logreg:1",
            "partition": "cpu0",
            "batch": 82,
            "batch_rows": 4,
            "rows": 1,
            "closed": "full",
            "queue_ms": 2.1,
            "hand_off_ms": 0.1,
            "compute_ms": 0.3,
            "return_ms": 0.05,
            "predicted_ms": 0.4,
            "actual_ms": 0.5,
            "cost": 2e-8,
            "failed": "",
        },
        {
            "stage": "large",
            "model": "rf1024:1",
            "partition": "cpu1",
            "batch": 88,
            "batch_rows": 12,
            "rows": 1,
            "closed": "deadline",
            "queue_ms": 38.1,
            "hand_off_ms": 3.2,
            "compute_ms": 14.8,
            "return_ms": 2.1,
            "predicted_ms": 11.0,
            "actual_ms": 18.2,
            "cost": 1e-6,
            "failed": "",
        },
    ],
}
