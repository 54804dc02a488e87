"""The samples of queries, by the mode of a run."""

import numpy as np
import numpy.typing as npt

from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.traffic.seeds import generator


def choose_samples(config: RunConfig, samples: int, queries: int, group: int = 1) -> npt.NDArray[np.int64]:
    """The samples of `queries` groups, int64 (queries * group,).

    Performance mode draws the first sample of a group uniformly with replacement, and the others follow it in the set.
    Accuracy mode has each sample once in random order, and begins that order again to fill the last group.
    """
    rng = generator(config.seed, "samples")
    if config.each_once:
        return np.resize(rng.permutation(samples).astype(np.int64), queries * group)
    first = rng.integers(samples, size=queries, dtype=np.int64)
    return np.asarray((first[:, np.newaxis] + np.arange(group)) % samples, np.int64).reshape(-1)
