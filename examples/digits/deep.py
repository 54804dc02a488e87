"""Writes a repository with one deep network: `python -m examples.digits.deep DIRECTORY`.

A batch takes about 10 ms on a core, nearly as long for one row as for eight. The performance of a server with this
model depends on the worker and its batches, and hardly on the gateway.
"""

import sys
from pathlib import Path

from examples.digits.build import GRAY_LEVELS, PIXELS, fit_random_features, load_digits, model_path, write_network

WIDTHS = [2048] * 6
"""84 MB of weights, more than usual caches hold."""


def build_deep(repository: Path) -> None:
    """Write the model `deep`."""
    digits = load_digits()
    x = digits.train_raw.reshape(-1, PIXELS) / GRAY_LEVELS
    write_network(model_path(repository, "deep"), fit_random_features(x, digits.train_labels, WIDTHS))


if __name__ == "__main__":
    build_deep(Path(sys.argv[1]))
