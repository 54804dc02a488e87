"""The directory from which Python finds Sluice."""

from pathlib import Path

import sluice

IMPORT_ROOT = str(Path(sluice.__file__).parents[1])
"""It stands on the path of every process of ours: `site-packages`, or `src` in a clone of the repository."""
