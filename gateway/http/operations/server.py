"""The server itself: its health, metadata and metrics, its partitions, and the explanations of requests."""

from collections.abc import Mapping
from types import MappingProxyType

from sluice.gateway.http.operations.operation import TEXT, Body, Example, Operation, OperationParameter, answers

_METRICS = (
    "# HELP sluice_requests_total Requests by how they ended.\n"
    "# TYPE sluice_requests_total counter\n"
    'sluice_requests_total{outcome="completed",pipeline="digits-cascade:1"} 5.0\n'
)
_CORES = {
    "kind": "cpu",
    "name": "cpu0",
    "cores": [0],
    "slowdown": 1.0,
    "price": None,
    "memory_mb": None,
    "hard_memory_mb": None,
}
_MODELS = ("logreg:1", "prep:1")
_PARTITION = {
    "partition": _CORES,
    "profile_kind": "cpu1",
    "worker": 4711,
    "enforcement": "enforced",
    "reasons": [],
    "evidence": {
        "cores": [0],
        "processes": [4711],
        "thread_count": 1,
        "stray_threads": [],
        "data_limit_bytes": None,
        "providers": dict.fromkeys(_MODELS, "CPUExecutionProvider"),
        "refusals": [],
        "gpu": None,
        "mps": None,
        "threads": dict.fromkeys(_MODELS, 1),
    },
    "lost": "",
    "models": {"logreg:1": 2818, "prep:1": 155},
    "used_bytes": 118214656,
    "node": "",
    "url": "",
    "link": None,
}
_STAGE = {
    "stage": "small",
    "model": "logreg:1",
    "partition": "cpu0",
    "batch": 2,
    "batch_rows": 1,
    "rows": 1,
    "closed": "idle",
    "queue_ms": 0.02,
    "batch_wait_ms": 0.02,
    "hand_off_ms": 0.546,
    "compute_ms": 0.341,
    "return_ms": 0.078,
    "predicted_ms": 0.8,
    "actual_ms": 0.887,
    "cost": 3.2e-9,
    "failed": "",
    "accuracy": None,
    "min_accuracy": 0.0,
    "rule": "",
}
_EXPLANATION = {
    "id": "example-1",
    "pipeline": "digits-cascade:1",
    "rows": 1,
    "outcome": "completed",
    "reason": "",
    "deadline_ms": 50.0,
    "total_ms": 2.8,
    "cost": 7.3e-9,
    "max_cost": None,
    "stages": [{**_STAGE, "stage": "prep", "model": "prep:1", "batch": 1}, _STAGE],
    "cause": "hand_off",
    "sentence": "It was answered 47.2 ms before its deadline; the largest part of 2.8 ms was transfer to workers and "
    "back: 1.1 ms, 0.6 ms of it for stage 'prep' on cpu0.",
    "trace_id": "",
    "start_after_ms": 0.0,
}
_CLASS = {
    "wanted": 3,
    "needed": 3,
    "ready": 2,
    "leaving": 0,
    "min": 1,
    "max": 8,
    "panic": False,
    "busy": {"stable": 1.4, "panic": 1.9, "ahead": 2.0},
    "start_s": 8.2,
}

SERVER: Mapping[str, Operation] = MappingProxyType(
    {
        "GET /v2/health/live": Operation(
            "Is the server alive?", "Answers 200 while the server runs.", answers({"live": True})
        ),
        "GET /v2/health/ready": Operation(
            "Is the server ready?",
            "Answers 200 while the server takes requests, 503 while it stops, and 400 otherwise, as before the models "
            "are loaded.",
            answers({"ready": True}),
        ),
        "GET /ping": Operation(
            "Is the server ready? (SageMaker)",
            "Answers with the same status as `/v2/health/ready`.",
            answers({"ready": True}),
        ),
        "GET /v2": Operation(
            "Metadata of the server",
            "Names the server, its version, and the extensions of the protocol that it has switched on.",
            answers({"name": "sluice", "version": "0.1.0", "extensions": ["classification", "statistics"]}),
        ),
        "GET /metrics": Operation(
            "Metrics",
            "Has all metrics in Prometheus' text format. Prometheus may also read them from a port of their own "
            "(`metrics_port`).",
            (Example(Body(_METRICS, TEXT)),),
        ),
        "GET /v2/sluice/requests/{id}": Operation(
            "Explain a request",
            "Says where a request spent its time, what it cost, and in a sentence why it was late or refused. The "
            "server knows the latest requests, and as many that were not answered in time. In the example, `infer` was "
            "asked with its own example before. `sluice why ID` prints the same.",
            answers(_EXPLANATION),
        ),
        "GET /v2/sluice/partitions": Operation(
            "Show the partitions",
            "Shows the parts of the machine on which models run, with the models that each holds and their memory in "
            "bytes, and the proof that it keeps to its limits. `used_bytes` is the memory in use: of the worker's "
            "process, or of the GPU or MIG instance that is the partition's alone. `node`, `url` and `link` are of "
            "workers elsewhere.",
            answers({"partitions": [_PARTITION]}),
        ),
        "GET /v2/sluice/scaling": Operation(
            "Show the scaled classes",
            "Shows how many partitions each class is to have whose number follows the load, and how many are up. The "
            "scaler `metrics-api` of KEDA can read `classes.NAME.wanted`.",
            answers({"classes": {"edge": _CLASS}}),
        ),
        "POST /v2/sluice/partitions/{name}/resize": Operation(
            "Resize a partition",
            "Gives a partition other cores, or another share of its GPU, while it serves. The answer is sent when it "
            "serves there.",
            answers(_CORES, {"cores": [0]}),
            {"name": OperationParameter("the name of a partition", "cpu0")},
        ),
    }
)
