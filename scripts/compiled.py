"""Makes a tree with compiled modules, from a wheel that is built with SLUICE_COMPILE=1: `make compiled`.

    python -m scripts.compiled FOLDER

The tree is imported with FOLDER on the path. What was compiled is kept beside it for as long as the sources stay
the same. Where nothing can be compiled the reason is printed, and the exit status is 3.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from hatch_build import why_not

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "compiled"
CANNOT = 3
"""Exit status where there is no compiler, or no headers of Python."""


def build_wheel(folder: Path) -> Path:
    """A compiled wheel; raises CalledProcessError."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel:standard", "--directory", str(folder)]
    environment = {**os.environ, "SLUICE_COMPILE": "1", "SLUICE_COMPILE_CACHE": str(CACHE)}
    subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def build_tree(folder: Path) -> None:
    """Unpack such a wheel into `folder`, in place of what is there."""
    with tempfile.TemporaryDirectory(prefix="sluice-wheel-") as scratch:
        wheel = build_wheel(Path(scratch))
        shutil.rmtree(folder, ignore_errors=True)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the tree."""
    (folder,) = sys.argv[1:] if arguments is None else arguments
    if (reason := why_not()) is not None:
        print(f"nothing can be compiled here: {reason}")
        return CANNOT
    build_tree(Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
