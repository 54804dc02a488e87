"""Reports of the server's load for load balancers, on the responses whose clients ask for them (ORCA).

The fields are those of `xds.data.orca.v3.OrcaLoadReport` (github.com/cncf/xds), the headers and texts those of Triton.
"""

import base64
import enum
import json
import struct
from collections.abc import Callable, Mapping

from sluice.batcher.interface.outcome import ANSWERED, Outcome
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.gateway.observability.meters import Meters
from sluice.models.units import NS_PER_MS, NS_PER_S

LOAD_FORMAT_HEADER = "endpoint-load-metrics-format"
"""The header of a request, or the metadata of a call, that asks for a report."""
LOAD_HEADER = "endpoint-load-metrics"
BINARY_LOAD_HEADER = "endpoint-load-metrics-bin"
LIFE_NS = 250 * NS_PER_MS
"""Reports within this time are the same, so that they cost next to nothing."""

_GOOD = [list(Outcome).index(each) for each in (*ANSWERED, Outcome.CANCELLED_CLIENT)]
"""The positions of the outcomes that are no errors of the server's: look-ups of members take longer."""
_UTILIZATION, _RPS, _EPS, _NAMED, _APPLICATION = 5, 6, 7, 8, 9
"""The numbers of the fields of the message."""


class LoadFormat(enum.StrEnum):
    """The format of a report: text or JSON in a header, or the message."""

    TEXT = "text"
    JSON = "json"
    BINARY = "bin"


def load_format(value: str) -> LoadFormat | None:
    """The format that a client asks for; None for one that is not known, which gets no report, as from Triton."""
    name = value.strip().lower()
    return LoadFormat(name) if name in _FORMATS else None


_FORMATS = frozenset(form.value for form in LoadFormat)


class LoadReport:
    """The load since the report before, which is at least LIFE_NS old.

    `in_flight` counts the requests without an outcome, `headrooms` are the headrooms of pipelines.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        meters: Meters,
        in_flight: Callable[[], int],
        headrooms: Callable[[], Mapping[str, float]],
        clock: Callable[[], int],
    ) -> None:
        self._scheduler = scheduler
        self._meters = meters
        self._in_flight = in_flight
        self._headrooms = headrooms
        self._clock = clock
        self._made_ns = clock()
        self._busy_ns: Mapping[str, int] = dict(meters.busy_ns)
        self._ended = self._failed = 0
        self._texts: dict[LoadFormat, str] = {}
        self._message = b""

    def header(self, form: LoadFormat) -> tuple[str, str]:
        """The report as a header over HTTP; the message is in base64."""
        self._renew()
        if form is LoadFormat.BINARY:
            return BINARY_LOAD_HEADER, base64.b64encode(self._message).decode()
        return LOAD_HEADER, self._texts[form]

    def metadata(self, form: LoadFormat) -> list[tuple[str, str | bytes]]:
        """The report as trailing metadata over gRPC: the message, and the text if that was asked for."""
        self._renew()
        binary: list[tuple[str, str | bytes]] = [(BINARY_LOAD_HEADER, self._message)]
        return binary if form is LoadFormat.BINARY else [(LOAD_HEADER, self._texts[form]), *binary]

    def _renew(self) -> None:
        now_ns = self._clock()
        if not self._texts or now_ns - self._made_ns >= LIFE_NS:
            self._make(now_ns)

    def _make(self, now_ns: int) -> None:
        elapsed_s = max(now_ns - self._made_ns, NS_PER_MS) / NS_PER_S
        busy_ns = dict(self._meters.busy_ns)
        busy = {
            name: min((total_ns - self._busy_ns.get(name, 0)) / NS_PER_S / elapsed_s, 1.0)
            for name, total_ns in busy_ns.items()
        }
        ended = failed = 0
        for meter in self._meters.pipelines.values():
            counts = tuple(meter.outcomes.values())
            total = sum(counts)
            ended += total
            failed += total - sum([counts[position] for position in _GOOD])
        partitions = self._scheduler.dispatcher.fleet.partitions.values()
        running = sum(len(batch.entries) for partition in partitions for batch in partition.batches)
        in_flight = self._in_flight()
        named = {"in_flight_requests": float(in_flight), "queue_requests": float(max(in_flight - running, 0))}
        if headrooms := self._headrooms():
            named["headroom"] = min(headrooms.values())
        numbers = {
            "application_utilization": sum(busy.values()) / len(busy) if busy else 0.0,
            # A pipeline whose stages have changed is counted from 0 again.
            "rps_fractional": max(ended - self._ended, 0) / elapsed_s,
            "eps": max(failed - self._failed, 0) / elapsed_s,
        }
        self._made_ns, self._busy_ns, self._ended, self._failed = now_ns, busy_ns, ended, failed
        self._texts = {LoadFormat.TEXT: _text(numbers, busy, named), LoadFormat.JSON: _json(numbers, busy, named)}
        self._message = _message(numbers, busy, named)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _text(numbers: Mapping[str, float], busy: Mapping[str, float], named: Mapping[str, float]) -> str:
    fields = {
        **numbers,
        **{f"utilization.{name}": value for name, value in busy.items()},
        **{f"named_metrics.{name}": value for name, value in named.items()},
    }
    return "TEXT " + ", ".join(f"{name}={_short(value)!r}" for name, value in fields.items())


def _json(numbers: Mapping[str, float], busy: Mapping[str, float], named: Mapping[str, float]) -> str:
    document = {
        **{name: _short(value) for name, value in numbers.items()},
        "utilization": {name: _short(value) for name, value in busy.items()},
        "named_metrics": {name: _short(value) for name, value in named.items()},
    }
    return "JSON " + json.dumps(document)


def _message(numbers: Mapping[str, float], busy: Mapping[str, float], named: Mapping[str, float]) -> bytes:
    return b"".join(
        [
            *(_entry(_UTILIZATION, name, value) for name, value in busy.items()),
            _double(_RPS, numbers["rps_fractional"]),
            _double(_EPS, numbers["eps"]),
            *(_entry(_NAMED, name, value) for name, value in named.items()),
            _double(_APPLICATION, numbers["application_utilization"]),
        ]
    )


def _double(field: int, value: float) -> bytes:
    return struct.pack("<Bd", field << 3 | 1, value)


def _entry(field: int, name: str, value: float) -> bytes:
    """An entry of a map from strings to doubles."""
    key = name.encode()
    entry = b"\x0a" + _varint(len(key)) + key + _double(2, value)
    return bytes([field << 3 | 2]) + _varint(len(entry)) + entry


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
