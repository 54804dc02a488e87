"""Random streams: one master seed, and a named sub-seed for each use of randomness, so that uses are independent."""

import numpy as np

STREAMS = (
    "arrivals",
    "samples",
    "data",
    "verdicts",
    "service",
    "ways",
    "strays",
    "pace",
    "trace",
    "mix",
    "mix samples",
    "cancellations",
    "deadlines",
)
"""The uses of randomness. New ones are appended: a stream's numbers depend on its position."""


def sub_seed(master: int, stream: str) -> int:
    """The 64-bit seed of one stream, which depends only on the master seed and the stream."""
    sequence = np.random.SeedSequence(master, spawn_key=(STREAMS.index(stream),))
    return int(sequence.generate_state(1, np.uint64)[0])


def generator(master: int, stream: str) -> np.random.Generator:
    """A generator seeded with `sub_seed(master, stream)`."""
    return np.random.default_rng(sub_seed(master, stream))
