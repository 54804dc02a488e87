"""Writes a repository with one deep network: `python -m examples.digits.deep DIRECTORY`.

It takes some 10 ms a batch on a core, nearly as long for one row as for eight: what a server with it does is decided by
the worker and its batches, hardly by the gateway.
"""

import sys
from pathlib import Path

from examples.digits.build import GRAY_LEVELS, PIXELS, fit_random_features, load_digits, model_path, write_network

WIDTHS = [2048] * 6
"""84 MB of weights, which no usual cache holds."""


def build_deep(repository: Path) -> None:
    """Write the model `deep`."""
    digits = load_digits()
    x = digits.train_raw.reshape(-1, PIXELS) / GRAY_LEVELS
    write_network(model_path(repository, "deep"), fit_random_features(x, digits.train_labels, WIDTHS))


if __name__ == "__main__":
    build_deep(Path(sys.argv[1]))
