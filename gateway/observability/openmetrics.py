"""OpenMetrics: the text format of Prometheus rewritten for scrapers that ask for it, with exemplars.

Source: https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence

from sluice.gateway.observability.meters import DURATION_BOUNDS_NS, PipelineMeter
from sluice.models.units import NS_PER_S

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""The content type."""
END = b"# EOF\n"
"""The last line of the format."""

_FAMILY = re.compile(rb"^# HELP (\S+) ([^\n]*)\n# TYPE \1 (\w+)\n", re.MULTILINE)
_WHOLE_BOUND = re.compile(rb'([{,]le="\d+)"')
_DURATION = re.compile(rb"^(sluice_request_duration_seconds_bucket\{[^\n]*\} \S+)$", re.MULTILINE)
_PIPELINE = re.compile(rb'[{,]pipeline="([^"]*)"')
_LE = re.compile(rb'[{,]le="([^"]*)"')
_TOTAL = b"_total"
_BUCKETS = {bound / NS_PER_S: index for index, bound in enumerate(DURATION_BOUNDS_NS)} | {
    float("inf"): len(DURATION_BOUNDS_NS)
}


def wants_openmetrics(accept: str) -> bool:
    """True if a scraper's `Accept` names the format, as Prometheus does before all others."""
    for entry in accept.split(","):
        kind, *parameters = (part.strip() for part in entry.split(";"))
        if kind == "application/openmetrics-text":
            return not any(re.fullmatch(r"q=0(\.0*)?", each) for each in parameters)
    return False


def as_openmetrics(text: bytes, pipelines: Mapping[str, PipelineMeter]) -> bytes:
    """Whole lines of the text format in OpenMetrics, without END.

    Buckets of durations have the exemplars of the `pipelines`. A counter whose samples do not end in `_total`, as those
    of Triton, has no type there that it could have.
    """
    converted = _WHOLE_BOUND.sub(rb'\1.0"', _FAMILY.sub(_family, text))
    if not any(meter.exemplars for meter in pipelines.values()):
        return converted
    return _DURATION.sub(lambda line: line[1] + _exemplar(line[1], pipelines), converted)


async def openmetrics_in_slices(pieces: Sequence[bytes], pipelines: Mapping[str, PipelineMeter]) -> list[bytes]:
    """As `as_openmetrics` for each of some pieces; the loop gets its turn after each."""
    converted = []
    for piece in pieces:
        converted.append(as_openmetrics(piece, pipelines))
        await asyncio.sleep(0)
    return converted


def _family(found: re.Match[bytes]) -> bytes:
    name, meaning, kind = found.groups()
    if kind == b"counter":
        if name.endswith(_TOTAL):
            name = name.removesuffix(_TOTAL)
        else:
            kind = b"unknown"
    elif kind == b"untyped":
        kind = b"unknown"
    return b"# HELP %b %b\n# TYPE %b %b\n" % (name, meaning, name, kind)


def _exemplar(line: bytes, pipelines: Mapping[str, PipelineMeter]) -> bytes:
    """The exemplar of a bucket, with the space before it; nothing if it has none."""
    pipeline, bound = _PIPELINE.search(line), _LE.search(line)
    if pipeline is None or bound is None:
        return b""
    meter = pipelines.get(pipeline[1].decode())
    found = None if meter is None else meter.exemplars.get(_BUCKETS.get(float(bound[1]), -1))
    if found is None:
        return b""
    duration_ns, trace_id = found
    return f' # {{trace_id="{trace_id}"}} {duration_ns / NS_PER_S!r}'.encode()
