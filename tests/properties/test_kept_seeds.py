"""Seeds that failed once stay mended."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_kept_seeds_of_the_scheduler_pass() -> None:
    """In a process of its own: Hypothesis tries constants of all modules that are imported."""
    command = [sys.executable, "-m", "scripts.simulate", "--machine", "scheduler", "--kept"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
