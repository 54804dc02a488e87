"""Windows: the rates of pipelines over the last seconds, from counts that are taken now and then."""

from collections import deque
from collections.abc import Mapping
from itertools import pairwise

from sluice.models.units import NS_PER_S


class RateWindows:
    """Counts of rows that came, by pipeline, over a window of `longest_ns`.

    Counts never fall. Between two samples the rows are taken to have come evenly. Of a pipeline that was not there
    before, the count is taken to have been 0.
    """

    __slots__ = ("_longest_ns", "_samples")

    def __init__(self, longest_ns: int) -> None:
        self._longest_ns = longest_ns
        self._samples: deque[tuple[int, dict[str, int]]] = deque()

    def sample(self, now_ns: int, counts: Mapping[str, int]) -> None:
        """Record the counts of all pipelines; later than the sample before."""
        samples = self._samples
        samples.append((now_ns, dict(counts)))
        while len(samples) > 2 and samples[1][0] <= now_ns - self._longest_ns:
            samples.popleft()

    def rates(self, window_ns: int) -> dict[str, float]:
        """Rows a second by pipeline within a window before the last sample.

        Empty before the second sample. A window that begins before the first sample is as long as there are samples.
        """
        samples = self._samples
        if len(samples) < 2:
            return {}
        now_ns, counts = samples[-1]
        from_ns = max(now_ns - window_ns, samples[0][0])
        before, after = next(pair for pair in pairwise(samples) if pair[1][0] > from_ns)
        part = (from_ns - before[0]) / (after[0] - before[0])
        elapsed_s = (now_ns - from_ns) / NS_PER_S
        rates = {}
        for name, count in counts.items():
            first, second = before[1].get(name, 0), after[1].get(name, 0)
            rates[name] = max(count - (first + part * (second - first)), 0.0) / elapsed_s
        return rates
