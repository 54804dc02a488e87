"""The samples of queries, by the mode of a run."""

import numpy as np
import numpy.typing as npt

from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.scenarios.mlperf import is_mlperf, mlperf_accuracy_samples, mlperf_samples
from sluice.loadgen.traffic.seeds import generator


def choose_samples(config: RunConfig, samples: int, queries: int, group: int = 1) -> npt.NDArray[np.int64]:
    """The samples of `queries` groups, int64 (queries * group,).

    Performance mode draws the first sample of a group uniformly with replacement, and the others follow it in the set.
    Accuracy mode has the beginning of `accuracy_order`.
    """
    if config.each_once:
        return accuracy_order(config, samples, group)[: queries * group]
    if is_mlperf(config):
        return mlperf_samples(config, samples, queries, group)
    first = generator(config.seed, "samples").integers(samples, size=queries, dtype=np.int64)
    return np.asarray((first[:, np.newaxis] + np.arange(group)) % samples, np.int64).reshape(-1)


def accuracy_order(config: RunConfig, samples: int, group: int = 1) -> npt.NDArray[np.int64]:
    """Each sample once in random order, int64 (queries * group,); a last group is filled with the first samples."""
    if is_mlperf(config):
        return mlperf_accuracy_samples(config, samples, group)
    order = generator(config.seed, "samples").permutation(samples).astype(np.int64)
    return np.resize(order, -(-samples // group) * group)
