"""Triton's perf_analyzer, from an older wheel of tritonclient, kept under `.cache/perf_analyzer`.

The program needs two libraries that its wheel lacks; they come from Triton's own wheel.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from tests.support.triton.setup import scratch_of
from tests.support.triton.setup import set_up as set_up_triton

WHEEL = "tritonclient==2.51.0"
DIRECTORY = Path(__file__).parents[3] / ".cache" / "perf_analyzer"
TIMEOUT_S = 120.0
_NOT_LOADED = 127
"""Exit status when a library is missing or too old."""
_LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}


class PerfAnalyzerUnavailable(Exception):
    """The program cannot be installed or run here; the message gives the reason."""


def set_up() -> Path:
    """Install the program if needed; returns its path. Raises PerfAnalyzerUnavailable or TritonUnavailable."""
    triton = set_up_triton()
    program = DIRECTORY / "perf_analyzer"
    if not program.exists():
        try:
            with scratch_of(DIRECTORY) as scratch:
                if not program.exists():
                    _unpack(scratch)
                    for name, pattern in _LIBRARIES.items():
                        (library,) = (triton / "wheel" / "nvidia_pytriton.libs").glob(pattern)
                        shutil.copy(library, scratch / name)
                    shutil.rmtree(DIRECTORY, ignore_errors=True)
                    scratch.rename(DIRECTORY)
        except (OSError, ValueError) as error:
            raise PerfAnalyzerUnavailable(f"perf_analyzer could not be set up: {error}") from error
    run("--version")
    return program


def run(*arguments: str) -> str:
    """Run the program, which must succeed; returns its output.

    Raises PerfAnalyzerUnavailable when it cannot start, and subprocess.TimeoutExpired when it does not end.
    """
    environment = {**os.environ, "LD_LIBRARY_PATH": str(DIRECTORY)}
    command = [str(DIRECTORY / "perf_analyzer"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode == _NOT_LOADED:
        raise PerfAnalyzerUnavailable(done.stderr.strip())
    assert done.returncode == 0, (done.stdout + done.stderr)[:2000]
    return done.stdout


def profile(directory: Path, *arguments: str) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    """Run the program and read its exports to `directory`, which must be empty: CSV rows and JSON experiments."""
    table, export = directory / "table.csv", directory / "export.json"
    run(*arguments, "-f", str(table), "--profile-export-file", str(export))
    header, *rows = (line.split(",") for line in table.read_text().splitlines() if line)
    experiments: list[dict[str, Any]] = json.loads(export.read_text())["experiments"]
    return [dict(zip(header, row, strict=False)) for row in rows], experiments


def _unpack(scratch: Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
    try:
        subprocess.run(
            [*command, "--only-binary", ":all:", "--dest", str(scratch), WHEEL],
            check=True,
            timeout=TIMEOUT_S,
            capture_output=True,
            text=True,
        )
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
        raise PerfAnalyzerUnavailable(f"perf_analyzer could not be set up: {lines[-1]}") from error
    except subprocess.TimeoutExpired as error:
        raise PerfAnalyzerUnavailable(f"perf_analyzer could not be set up: it took over {TIMEOUT_S:g} s") from error
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith("/bin/perf_analyzer"))
        with archive.open(member) as source, (scratch / "perf_analyzer").open("wb") as target:
            shutil.copyfileobj(source, target)
    (scratch / "perf_analyzer").chmod(0o755)
    wheel.unlink()
