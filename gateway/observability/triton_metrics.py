"""The counts of models and pipelines under the names of Triton's metrics, for dashboards that expect these."""

from collections.abc import Iterator, Mapping, Sequence

from sluice.gateway.observability.exposition import ExposedMetric, Group, pairs
from sluice.gateway.observability.statistics import ModelStatistics, Statistics

_MODEL = ("model", "version")
REQUEST_SUCCESS = ExposedMetric(
    "nv_inference_request_success",
    "counter",
    "Requests that succeeded, those from the response cache included.",
    _MODEL,
)
REQUEST_FAILURE = ExposedMetric(
    "nv_inference_request_failure",
    "counter",
    "Requests that failed, by reason: REJECTED, CANCELED, BACKEND or OTHER.",
    (*_MODEL, "reason"),
)
INFERENCE = (
    ExposedMetric("nv_inference_count", "counter", "Rows of requests that the model has run.", _MODEL),
    ExposedMetric("nv_inference_exec_count", "counter", "Batches that the model has run.", _MODEL),
)
DURATIONS = (
    ExposedMetric(
        "nv_inference_request_duration_us",
        "counter",
        "Time from arrival to answer of successful requests, added up, in microseconds.",
        _MODEL,
    ),
    ExposedMetric(
        "nv_inference_queue_duration_us",
        "counter",
        "Time that requests waited until a worker was free for them, added up, in microseconds.",
        _MODEL,
    ),
    ExposedMetric(
        "nv_inference_compute_input_duration_us",
        "counter",
        "Time of the inputs of requests on the way to the worker, added up, in microseconds.",
        _MODEL,
    ),
    ExposedMetric(
        "nv_inference_compute_infer_duration_us",
        "counter",
        "Time of requests in the model's backend, added up, in microseconds.",
        _MODEL,
    ),
    ExposedMetric(
        "nv_inference_compute_output_duration_us",
        "counter",
        "Time of the outputs of requests on the way back from the worker, added up, in microseconds.",
        _MODEL,
    ),
)
PENDING = ExposedMetric(
    "nv_inference_pending_request_count", "gauge", "Requests that wait in the queues of the model.", _MODEL
)
CACHE = (
    ExposedMetric("nv_cache_num_hits_per_model", "counter", "Requests answered from the response cache.", _MODEL),
    ExposedMetric(
        "nv_cache_num_misses_per_model", "counter", "Requests that the response cache could not answer.", _MODEL
    ),
    ExposedMetric(
        "nv_cache_hit_duration_per_model",
        "counter",
        "Time of look-ups in the response cache that hit, added up, in microseconds.",
        _MODEL,
    ),
    ExposedMetric(
        "nv_cache_miss_duration_per_model",
        "counter",
        "Time of look-ups in the response cache and of insertions after a miss, added up, in microseconds.",
        _MODEL,
    ),
)
_FAMILIES = (REQUEST_SUCCESS, REQUEST_FAILURE, *INFERENCE, *DURATIONS, PENDING)
_NAMES = tuple(family.name for family in _FAMILIES)


def triton_groups(
    statistics: Statistics, keys: Sequence[str], pending: Mapping[str, int], *, counter_latencies: bool = True
) -> Iterator[Group]:
    """The counts of `keys` (`name:version`), and their waiting requests; those of latencies can be left out."""
    texts = (_texts(key, statistics.of(key), pending.get(key, 0)) for key in keys)
    if counter_latencies:
        yield Group(_FAMILIES, texts)
    else:
        shown = [index for index, family in enumerate(_FAMILIES) if family not in DURATIONS]
        yield Group(
            tuple(_FAMILIES[index] for index in shown), (tuple(each[index] for index in shown) for each in texts)
        )
    yield Group(CACHE, (_cache_texts(key, statistics.of(key)) for key in keys))


def _labels(key: str) -> str:
    name, _, version = key.rpartition(":")
    return pairs(_MODEL, (name, version))


def _texts(key: str, counted: ModelStatistics, pending: int) -> tuple[str, ...]:
    labels = _labels(key)
    requests = counted.requests
    failures = [
        f'{REQUEST_FAILURE.name}{{{labels},reason="{reason}"}} {count}\n' for reason, count in counted.failures.items()
    ]
    values = (
        requests.count + counted.cache_hits,
        None,
        counted.inference_count,
        counted.execution_count,
        counted.success_ns // 1000,
        counted.queue_ns // 1000,
        requests.input_ns // 1000,
        requests.infer_ns // 1000,
        requests.output_ns // 1000,
        pending,
    )
    return tuple(
        [
            "".join(failures) if value is None else f"{name}{{{labels}}} {value}\n"
            for name, value in zip(_NAMES, values, strict=True)
        ]
    )


def _cache_texts(key: str, counted: ModelStatistics) -> tuple[str, ...]:
    """The counts of the response cache; nothing for what has not used it."""
    if not (counted.cache_hits or counted.cache_misses):
        return ()
    labels = _labels(key)
    values = (
        counted.cache_hits,
        counted.cache_misses,
        counted.cache_hit_ns // 1000,
        counted.cache_miss_ns // 1000,
    )
    return tuple(f"{family.name}{{{labels}}} {value}\n" for family, value in zip(CACHE, values, strict=True))
