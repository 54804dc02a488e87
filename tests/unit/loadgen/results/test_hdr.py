import base64
import zlib

import numpy as np

from sluice.loadgen.records.record import Record, Status
from sluice.loadgen.results.hdr import encoded, latency_log
from sluice.loadgen.traffic.schedule import Schedule

MS = 1_000_000
HEAD = "1c84931300000011000000000000000300000000000000010000034630b8a0003ff0000000000000"


def payload(text: str) -> str:
    content = base64.b64decode(text)
    assert content[:4].hex() == "1c849314"
    assert int.from_bytes(content[4:8], "big") == len(content) - 8
    return zlib.decompress(content[8:]).hex()


def test_values_are_counted_and_encoded_as_hdr_histogram_does() -> None:
    values = np.array([1, 5, 2047, 2048, 5000, 1_000_000, 77_777_777])
    # The words are those of the Python package hdrhistogram 0.10.8 for these values.
    assert payload(encoded(values)) == HEAD + "01020502f11f0202c11302fb7a02ff6302"


def test_what_exceeds_the_largest_value_counts_as_that() -> None:
    hour_ns = 3600 * 10**9
    assert encoded(np.array([10 * hour_ns])) == encoded(np.array([hour_ns]))


def test_large_counts_take_several_bytes() -> None:
    # 300 values of 0: ZigZag makes 600 of the count, which is 0xd8 0x04 in LEB128.
    assert payload(encoded(np.zeros(300, np.int64)))[80:] == "d804"


def test_the_log_has_the_answers_after_the_warm_up_and_a_histogram_of_each_stream() -> None:
    record = Record.of(Schedule(np.array([0, 1000, 1500, 2000]) * MS, np.zeros(4, np.int64)))
    record.done_ns[:] = record.due_ns + np.array([9, 2, 4, 8]) * MS
    record.status[:] = [Status.OK, Status.OK, Status.OK, Status.SHED]
    record.stream = np.array([0, 0, 1, 1], np.uint16)
    lines = latency_log(record, 1.0, ["a", "b, c"]).splitlines()
    assert lines[:3] == [
        "#[Latency from due in nanoseconds]",
        "#[Histogram log format version 1.3]",
        '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"',
    ]
    two, four = np.array([2 * MS]), np.array([4 * MS])
    assert lines[3:] == [
        f"1.000,0.504,4.000,{encoded(np.array([2 * MS, 4 * MS]))}",
        f"Tag=a,1.000,0.002,2.000,{encoded(two)}",
        f"Tag=b__c,1.000,0.504,4.000,{encoded(four)}",
    ]


def test_a_run_without_answers_has_an_empty_log() -> None:
    record = Record.of(Schedule(np.zeros(1, np.int64), np.zeros(1, np.int64)))
    assert latency_log(record, 0).splitlines()[-1].startswith('"StartTimestamp"')
