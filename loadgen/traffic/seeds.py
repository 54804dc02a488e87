"""One master seed, one named sub-seed for each use of chance, so that no use disturbs another."""

import numpy as np

STREAMS = ("arrivals", "samples", "data", "verdicts", "service", "ways", "strays", "pace")
"""What chance is used for; a new use goes to the end, or the others' numbers change."""


def sub_seed(master: int, stream: str) -> int:
    """The seed of one stream, a 64-bit number that depends on the master seed and the stream only."""
    sequence = np.random.SeedSequence(master, spawn_key=(STREAMS.index(stream),))
    return int(sequence.generate_state(1, np.uint64)[0])


def generator(master: int, stream: str) -> np.random.Generator:
    """A generator seeded with `sub_seed(master, stream)`."""
    return np.random.default_rng(sub_seed(master, stream))
