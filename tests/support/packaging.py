"""Builds wheels and sdists of Sluice, and installs wheels."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("models", "mps", "batcher", "gateway", "loadgen")


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command that sees neither the checkout nor the variables of this process."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def sources() -> set[str]:
    """The files of the clone that a wheel has, by their paths in it."""
    files = {
        f"sluice/{path.relative_to(ROOT)}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return files | {"sluice/__init__.py", "sluice/py.typed"}


def build(source: Path, target: str, out: Path) -> Path:
    """The wheel or sdist that hatchling makes of `source`."""
    run(sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", out, cwd=source)
    (built,) = out.iterdir()
    return built


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel, without its own list of them."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith(".dist-info/RECORD")}


def install(wheel: Path, directory: Path) -> Path:
    """The interpreter of a new environment that has the wheel, and the dependencies of this one."""
    venv.create(directory, with_pip=False, symlinks=True)
    python = directory / "bin" / "python"
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=directory))
    # Python does not look for .pth files in a directory that a .pth file names: the editable install stays unseen.
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", wheel, cwd=directory)
    return python
