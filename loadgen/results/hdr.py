"""Latencies as HdrHistogram's log: histograms of nanoseconds in the V2 encoding, compressed and in base64.

The format is that of HdrHistogram's `HistogramLogWriter` and `HistogramLogReader`, version 1.3.
"""

import base64
import struct
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.record import Record, Status
from sluice.models.units import NS_PER_MS, NS_PER_S

SIGNIFICANT_DIGITS = 3
HIGHEST_NS = 3600 * NS_PER_S
"""Largest value of a histogram; longer latencies count as this long."""
_SUB_BUCKETS = 2048
"""The smallest power of two that tells values apart to three digits."""
_COUNTS = (HIGHEST_NS.bit_length() - _SUB_BUCKETS.bit_length() + 3) * (_SUB_BUCKETS // 2)
_CHUNK = 1 << 16
_COOKIE, _COMPRESSED_COOKIE = 0x1C849313, 0x1C849314
"""V2 encodings with counts as ZigZag LEB128 words, plain and compressed."""

Integers = npt.NDArray[np.int64]


def latency_log(record: Record, warmup_s: float, streams: Sequence[str] = ()) -> str:
    """The latencies from due of the answered queries after the warm-up, as a log of one interval.

    With several `streams`, each has a further histogram with its name as the tag.
    """
    measured = (record.due_ns >= round(warmup_s * NS_PER_S)) & (record.status == Status.OK)
    lines = [
        "#[Latency from due in nanoseconds]",
        "#[Histogram log format version 1.3]",
        '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"',
    ]
    if measured.any():
        lines.append(_line(record, measured, warmup_s))
        if len(streams) > 1:
            lines.extend(_stream_lines(record, measured, warmup_s, streams))
    return "\n".join(lines) + "\n"


def _stream_lines(
    record: Record, measured: npt.NDArray[np.bool_], warmup_s: float, streams: Sequence[str]
) -> Iterator[str]:
    for number, name in enumerate(streams):
        chosen = measured & (record.stream == number)
        if chosen.any():
            # Commas and spaces would end a tag.
            tag = "".join("_" if each in ", \t" else each for each in name)
            yield f"Tag={tag},{_line(record, chosen, warmup_s)}"


def _line(record: Record, chosen: npt.NDArray[np.bool_], start_s: float) -> str:
    latency_ns = record.done_ns[chosen] - record.due_ns[chosen]
    length_s = float(record.done_ns[chosen].max()) / NS_PER_S - start_s
    return f"{start_s:.3f},{length_s:.3f},{latency_ns.max() / NS_PER_MS:.3f},{encoded(latency_ns)}"


def encoded(values_ns: Integers) -> str:
    """A histogram of values in base64, as `HdrHistogram.decode` reads it."""
    counts = np.zeros(_COUNTS, np.int64)
    for start in range(0, len(values_ns), _CHUNK):  # which bounds the memory
        places = _places(np.clip(values_ns[start : start + _CHUNK], 0, HIGHEST_NS))
        counts += np.bincount(places, minlength=_COUNTS)
    words = b"".join(_words(counts))
    # Payload length, index offset, digits, smallest and largest value, and the ratio of units; all big-endian.
    head = struct.pack(">iiiiqqd", _COOKIE, len(words), 0, SIGNIFICANT_DIGITS, 1, HIGHEST_NS, 1.0)
    compressed = zlib.compress(head + words)
    return base64.b64encode(struct.pack(">ii", _COMPRESSED_COOKIE, len(compressed)) + compressed).decode()


def _places(values: Integers) -> Integers:
    """The index of each value's count: buckets of doubling width, each of 1024 counts after the first 2048."""
    bits = np.frexp(values.astype(np.float64))[1]
    buckets = np.maximum(bits.astype(np.int64) - _SUB_BUCKETS.bit_length() + 1, 0)
    return np.asarray(buckets * (_SUB_BUCKETS // 2) + (values >> buckets), np.int64)


def _words(counts: Integers) -> Iterator[bytes]:
    """Counts as ZigZag LEB128; a negative word is a number of zeros."""
    end = 0
    for place in counts.nonzero()[0].tolist():
        if place > end:
            yield _leb128(2 * (place - end) - 1)
        yield _leb128(2 * int(counts[place]))
        end = place + 1


def _leb128(value: int) -> bytes:
    """Seven bits a byte, the lowest first; of nine bytes the last has all eight."""
    word = bytearray()
    while value > 0x7F and len(word) < 8:
        word.append(value & 0x7F | 0x80)
        value >>= 7
    word.append(value)
    return bytes(word)
