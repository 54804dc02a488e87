"""The accuracy of a run that sends every sample once: answers against labels or expected outputs."""

import msgspec
import numpy as np

from sluice.loadgen.records.outputs import ExpectedOutputs
from sluice.loadgen.run.result import RunResult
from sluice.models.errors import ConfigError


class AccuracyCount(msgspec.Struct, frozen=True):
    """Rows of samples: all of them, those of queries with an answer, and those whose answer is right.

    A row without an answer is not right.
    """

    rows: int
    answered: int
    right: int

    @property
    def accuracy(self) -> float:
        """Share of right rows."""
        return self.right / self.rows


def count_accuracy(result: RunResult, expected: ExpectedOutputs | None) -> AccuracyCount:
    """Count the right rows of a run, by its labels or else by expected outputs.

    Raises `ConfigError` for expected outputs that are not those of the samples.
    """
    # MLPerf's last query repeats samples to be full. A sample counts the first time.
    firsts = np.unique(result.record.sample, return_index=True)[1]
    if expected is not None:
        return _by_outputs(result, expected, firsts.tolist())
    assert result.predictions is not None
    assert result.expected is not None
    predictions, labels = result.predictions[firsts], result.expected[firsts]
    answered = (predictions >= 0) & (labels >= 0)
    return AccuracyCount(int((labels >= 0).sum()), int(answered.sum()), int((answered & (predictions == labels)).sum()))


def _by_outputs(result: RunResult, expected: ExpectedOutputs, queries: list[int]) -> AccuracyCount:
    size = result.config.rows
    if -(-expected.rows // size) != result.sample_count:
        raise ConfigError(
            f"--expected: expected one row for each of the samples' ({result.sample_count} queries of {size} rows), "
            f"got {expected.rows} rows"
        )
    rows = answered = right = 0
    for query in queries:
        sample = int(result.record.sample[query])
        part = slice(sample * size, (sample + 1) * size)
        count = len(range(expected.rows)[part])
        rows += count
        if (outputs := result.outputs.get(query)) is not None:
            answered += count
            right += expected.right_rows(outputs, part)
    return AccuracyCount(rows, answered, right)
