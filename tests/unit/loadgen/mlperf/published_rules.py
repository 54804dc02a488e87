"""Readers of MLPerf's log files that follow the rules of the published scripts, in words of their own.

The rules are those of `tools/submission/log_parser.py` and of `verify_performance.py` and `verify_accuracy.py` in
`compliance/` of mlcommons/inference:

- The first line of a detail log starts with the marker, and every line that does is the marker and a JSON object.
- Of several lines with one key the first counts. `num_errors` counts the errors, or else the lines that are marked.
- The scenario names the key of the score. A log has to be VALID to be compared.
- In a summary the scenario comes before the line of the score, and the score is what follows the first ": ".
- An accuracy log is a list of objects with the number of a sample and bytes in hexadecimal. Those of a performance run
  have to begin with the same element as those of the accuracy run, and one at least has to be compared.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

MARKER = ":::MLLOG"
SCORES = {
    "Offline": "result_samples_per_second",
    "SingleStream": "early_stopping_latency_ss",
    "MultiStream": "early_stopping_latency_ms",
    "Server": "result_completed_samples_per_sec",
}
SUMMARY_SCORES = {
    "Offline": r"Samples per second",
    "SingleStream": r".*Early stopping (90th|90.0th|99.9th) percentile estimate",
    "MultiStream": r".*Early stopping (99th|99.0th) percentile estimate",
    "Server": r"Completed samples per second",
}


class PublishedLog:
    """A detail log."""

    def __init__(self, file: Path) -> None:
        lines = file.read_text("utf-8").splitlines()
        assert lines[0].startswith(MARKER)
        self.messages: list[dict[str, Any]] = [
            json.loads(line.removeprefix(MARKER)) for line in lines if line.startswith(MARKER)
        ]
        self.values: dict[str, Any] = {}
        for message in self.messages:
            assert set(message) == {"key", "value", "time_ms", "namespace", "event_type", "metadata"}
            assert message["namespace"] == "mlperf::logging"
            assert message["event_type"] in ("POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END")
            self.values.setdefault(message["key"], message["value"])

    @property
    def errors(self) -> int:
        return int(self.values.get("num_errors", sum(each["metadata"]["is_error"] for each in self.messages)))

    @property
    def warnings(self) -> int:
        return sum(message["metadata"]["is_warning"] for message in self.messages)

    @property
    def score(self) -> float:
        return float(self.values[SCORES[self.values["effective_scenario"]]])


def performance_verdict(reference: Path, test: Path, threshold: float) -> bool:
    """The verdict of TEST01's `verify_performance.py` on two detail logs."""
    logs = [PublishedLog(file) for file in (reference, test)]
    assert all(log.values["result_validity"] == "VALID" for log in logs)
    assert len({log.values["effective_scenario"] for log in logs}) == 1
    assert len({log.values["effective_target_latency_ns"] for log in logs}) == 1
    first, second = (log.score for log in logs)
    return first * (1 - threshold) <= second <= first * (1 + threshold)


def summary_score(file: Path) -> tuple[str, float, bool]:
    """The scenario, the score (queries a second) and the validity that TEST04's `verify_performance.py` reads."""
    scenario, score, valid = "", 0.0, True
    for line in file.read_text().splitlines():
        if re.match("Scenario", line):
            scenario = line.split(": ", 1)[1].strip()
        elif scenario and re.match(SUMMARY_SCORES[scenario], line):
            score = float(line.split(": ", 1)[1].strip())
            score = 1e9 / score if "Stream" in scenario else score
        elif re.match("Result is", line):
            valid = line.split(": ", 1)[1].strip() != "INVALID"
    return scenario, score, valid


def accuracy_verdict(reference: Path, test: Path) -> bool:
    """The verdict of TEST01's `verify_accuracy.py` on two accuracy logs, with data of bytes."""
    expected = {each["qsl_idx"]: each["data"] for each in json.loads(reference.read_text())}
    compared = wrong = 0
    for each in json.loads(test.read_text()):
        if each["qsl_idx"] not in expected:
            continue
        compared += 1
        one, other = (np.frombuffer(bytes.fromhex(data), np.byte) for data in (each["data"], expected[each["qsl_idx"]]))
        wrong += one.size != other.size if not (one.size and other.size) else bool(one[0] != other[0])
    return compared > 0 and wrong == 0
