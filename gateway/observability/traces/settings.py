"""The trace settings of the protocol, which clients change while the server runs."""

import logging
import re
from collections.abc import Callable, Container, Mapping
from typing import Any

from sluice.gateway.config.tracing import MAX_NUMBER, TraceFileSettings, TraceLevel, TraceMode
from sluice.gateway.observability.traces.context import new_context, new_span_id
from sluice.gateway.observability.traces.file import TraceFile
from sluice.gateway.observability.traces.trace import Trace
from sluice.models.errors import RequestError, UnsupportedRequest
from sluice.models.units import NS_PER_S

logger = logging.getLogger(__name__)

RETRY_NS = 60 * NS_PER_S
"""The time after which a trace file that could not be written is tried again."""

_NUMBER = re.compile(r"-?[0-9]{1,10}")


class _Sampler:
    """The settings in force, and their counts."""

    __slots__ = ("left", "log_frequency", "on", "rate", "seen")

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.on = settings["trace_level"] != [TraceLevel.OFF.value]
        self.rate = int(settings["trace_rate"])
        self.left = int(settings["trace_count"])
        self.log_frequency = int(settings["log_frequency"])
        self.seen = 0

    def takes(self) -> bool:
        """True if the next request is traced."""
        if not self.on or not self.left or not self.rate:
            return False
        self.seen += 1
        if self.seen < self.rate:
            return False
        self.seen = 0
        if self.left > 0:
            self.left -= 1
        return True


class TraceSettings:
    """The trace settings for all requests, and the deviating ones of single models or pipelines.

    A change restarts the counts of `trace_rate` and `trace_count`. In mode opentelemetry, `export` gets each traced
    request that has its outcome.
    """

    def __init__(
        self, start: TraceFileSettings, names: Container[str], export: Callable[[Trace], None] | None = None
    ) -> None:
        self._names = names
        self._start = start
        self._export = export
        self._file = TraceFile(start.file, start.max_bytes, start.max_files) if start.file else None
        self._retry_ns = 0
        """The time from which a file that could not be written is tried again; 0 if it could be written."""
        self._lost = 0
        """The requests that were not written since."""
        self._defaults: dict[str, Any] = {
            "trace_level": [start.start_level.value],
            "trace_rate": str(start.rate),
            "trace_count": str(start.count),
            "log_frequency": str(start.log_frequency),
            "trace_file": start.file,
            "trace_mode": start.mode.value,
        }
        self._changes: dict[str, dict[str, Any]] = {"": {}}
        self._samplers: dict[str, _Sampler] = {}
        self._reset_samplers()

    @property
    def available(self) -> bool:
        """True if there is a trace file, or a collector."""
        return self._file is not None or self.has_spans

    @property
    def has_spans(self) -> bool:
        """True in mode opentelemetry."""
        return self._start.mode is TraceMode.OPENTELEMETRY

    def get(self, model: str = "") -> dict[str, Any]:
        """The settings for a model, or those for all: strings, except the level, which is a list.

        Raises RequestError.
        """
        self._check_model(model)
        return self._defaults | self._changes[""] | self._changes.get(model, {})

    def update(self, model: str, changes: Mapping[str, object]) -> None:
        """Change some settings; None resets one. If one of the values is wrong, change none and raise RequestError."""
        self._check_model(model)
        checked = {name: self._check(name, value) for name, value in changes.items()}
        if not checked:
            return
        merged = self._changes.get(model, {}) | checked
        self._changes[model] = {name: value for name, value in merged.items() if value is not None}
        self._reset_samplers()

    def began(self, trace: Trace) -> None:
        """Decide, in mode opentelemetry, whether the spans of a request are exported.

        Its client decides if it has sent a trace context; otherwise it may be the request's turn. A call of a model
        belongs to the trace of the request that makes it, or to none.
        """
        context = trace.context
        if not context.trace_id and trace.arrival.is_call:
            return
        sampler = self._sampler(trace)
        if context.trace_id:
            if context.sampled and sampler.on:
                trace.span_id = new_span_id()
        elif sampler.takes():
            trace.context, trace.span_id = new_context(context.transport), new_span_id()

    def ended(self, trace: Trace) -> None:
        """Export the spans of a traced request that has its outcome, or write it to the trace file if it is its turn.

        A file that cannot be written is tried again every RETRY_NS.
        """
        if trace.span_id and self._export is not None:
            self._export(trace)
        if self._file is None:
            return
        sampler = self._sampler(trace)
        if not sampler.takes():
            return
        if trace.ended_ns < self._retry_ns:
            self._lost += 1
            return
        try:
            self._file.add(trace, sampler.log_frequency)
        except OSError as error:
            self._lost += 1
            if not self._retry_ns:
                every = RETRY_NS // NS_PER_S
                logger.error("the trace file cannot be written; it is tried again every %d s: %s", every, error)
            self._retry_ns = trace.ended_ns + RETRY_NS
            return
        if self._retry_ns:
            logger.warning("the trace file is written again; the traces of %d requests are lost", self._lost)
            self._retry_ns = self._lost = 0

    def _sampler(self, trace: Trace) -> _Sampler:
        return self._samplers.get(trace.arrival.pipeline.rpartition(":")[0]) or self._samplers[""]

    def _reset_samplers(self) -> None:
        self._samplers = {model: _Sampler(self.get(model)) for model in self._changes}

    def _check_model(self, model: str) -> None:
        if model and model not in self._names:
            raise RequestError(f"Request for unknown model: '{model:.80}' is not found")

    def _check(self, name: str, value: object) -> Any:
        if name not in self._defaults:
            raise RequestError(f"trace setting '{name:.80}' is unknown; expected one of {', '.join(self._defaults)}")
        if name == "trace_file":
            raise UnsupportedRequest("trace file location can not be updated through network protocol")
        if name == "trace_mode":
            raise UnsupportedRequest("trace mode can not be updated through network protocol")
        if value is None:
            return None
        if name == "trace_level":
            return self._check_level(value)
        return _check_number(name, value, self._start.least(name))

    def _check_level(self, value: object) -> list[str]:
        levels = [value] if isinstance(value, str) else value
        if levels == [TraceLevel.OFF]:
            return [TraceLevel.OFF.value]
        if isinstance(levels, list) and "TENSORS" in levels:
            raise UnsupportedRequest("trace level TENSORS is not supported; expected OFF or TIMESTAMPS")
        if levels != [TraceLevel.TIMESTAMPS]:
            raise RequestError(f"trace setting 'trace_level' must be ['OFF'] or ['TIMESTAMPS'], got {value!r:.80}")
        if not self.available:
            raise RequestError("trace level TIMESTAMPS needs a trace file, and the server was started without one")
        return [TraceLevel.TIMESTAMPS.value]


def _check_number(name: str, value: object, least: int) -> str:
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= MAX_NUMBER:
        raise RequestError(
            f"trace setting '{name}' must be a whole number from {least} to {MAX_NUMBER}, got {value!r:.80}"
        )
    return str(int(text))
