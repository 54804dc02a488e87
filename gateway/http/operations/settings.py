"""Settings that clients change while a server runs: shared memory, traces, the log."""

from collections.abc import Mapping
from types import MappingProxyType

from sluice.gateway.http.operations.operation import Operation, answers, done

_REGION = {"name": "example", "key": "/example", "offset": 0, "byte_size": 64}
_TRACE = {
    "trace_level": ["OFF"],
    "trace_rate": "500",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
_LOG = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
_CHANGE_TRACES = (
    "One of every `trace_rate` requests is traced, `trace_count` in all (-1: without end). The level `TIMESTAMPS` "
    "needs a server with a trace file. A setting that is null goes back to what it was at the start"
)

SETTINGS: Mapping[str, Operation] = MappingProxyType(
    {
        "GET /v2/systemsharedmemory/status": Operation(
            "List the regions of shared memory",
            "Lists the regions that clients have registered.",
            answers([_REGION]),
        ),
        "GET /v2/systemsharedmemory/region/{region}/status": Operation(
            "Show a region of shared memory",
            "Shows one region that a client has registered; 400 if there is none of that name.",
            answers([_REGION]),
        ),
        "POST /v2/systemsharedmemory/region/{region}/register": Operation(
            "Register a region of shared memory",
            "Maps a part of a shared memory object of this machine, here `/dev/shm/example`, which must exist. Tensors "
            "of requests can then name the region (`shared_memory_region`) in place of their data. Only a server with "
            "`--allow-client-shm` allows it; others answer 501.",
            done({"key": "/example", "offset": 0, "byte_size": 64}),
        ),
        "POST /v2/systemsharedmemory/region/{region}/unregister": Operation(
            "Unregister a region of shared memory",
            "Ends the use of a region. Requests that use it already go on.",
            done(),
        ),
        "POST /v2/systemsharedmemory/unregister": Operation(
            "Unregister all shared memory",
            "Ends the use of all regions. Requests that use them already go on.",
            done(),
        ),
        "GET /v2/trace/setting": Operation(
            "Show the trace settings",
            "Shows which requests are written to the trace file.",
            answers(_TRACE),
        ),
        "POST /v2/trace/setting": Operation(
            "Change the trace settings",
            f"Changes which requests are written to the trace file, and shows the result. {_CHANGE_TRACES}.",
            answers(_TRACE, {"trace_rate": "500"}),
        ),
        "GET /v2/models/{name}/trace/setting": Operation(
            "Show the trace settings of a model",
            "Shows which requests for a model or pipeline are written to the trace file.",
            answers(_TRACE),
        ),
        "POST /v2/models/{name}/trace/setting": Operation(
            "Change the trace settings of a model",
            "Changes which requests for a model or pipeline are written to the trace file, and shows the result. "
            f"{_CHANGE_TRACES}, that is, to the settings for all models.",
            answers(_TRACE, {"trace_rate": "500"}),
        ),
        "GET /v2/logging": Operation(
            "Show the log settings",
            "Shows which lines the server logs, and their format.",
            answers(_LOG),
        ),
        "POST /v2/logging": Operation(
            "Change the log settings",
            "Changes which lines the server logs, and shows the result. A `log_verbose_level` above 0 adds debug "
            "messages. `log_format` is `default`, `ISO8601` or `json`.",
            answers(_LOG, {"log_verbose_level": 0}),
        ),
    }
)
