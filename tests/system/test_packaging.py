"""Installed from a wheel, from an sdist or as an editable install, Sluice is one package `sluice` and nothing else."""

import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("models", "mps", "batcher", "gateway", "loadgen")


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command that sees neither the checkout nor the variables of this process."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def build(source: Path, target: str, out: Path) -> Path:
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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel:standard", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("installed"))


def test_a_wheel_holds_the_five_packages_under_one_name(wheel: Path) -> None:
    found = contents(wheel)
    sources = {
        f"sluice/{path.relative_to(ROOT)}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packaged = {name for name in found if ".dist-info/" not in name}
    assert packaged == sources | {"sluice/__init__.py", "sluice/py.typed"}
    (entry_points,) = (text.decode() for name, text in found.items() if name.endswith("entry_points.txt"))
    assert entry_points.split("\n")[:3] == [
        "[console_scripts]",
        "loadgen = sluice.loadgen.cli.main:main",
        "sluice = sluice.gateway.cli.main:main",
    ]
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in found)


def test_an_sdist_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = build(ROOT, "sdist", tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    assert not (source / "tests").exists()
    assert contents(build(source, "wheel:standard", tmp_path / "wheel")) == contents(wheel)


def test_an_installed_wheel_runs_by_itself(installed: Path, tmp_path: Path) -> None:
    version = run(
        installed, "-c", "from importlib.metadata import version; print(version('sluice-gateway'))", cwd=tmp_path
    )
    assert run(installed.with_name("sluice"), "--version", cwd=tmp_path) == f"sluice {version}"
    assert "find-max" in run(installed.with_name("loadgen"), "--help", cwd=tmp_path)
    # The check of partitions starts processes of its own, which have to find Sluice as well.
    assert "partitions  cpu0: " in run("sh", "-c", f"{installed.with_name('sluice')} doctor; true", cwd=tmp_path)
    place = "import sluice.batcher.scheduler.scheduler as module; print(module.__file__)"
    assert Path(run(installed, "-c", place, cwd=tmp_path)).is_relative_to(installed.parents[1])


def test_an_installed_wheel_takes_no_name_but_its_own(installed: Path, tmp_path: Path) -> None:
    find = f"from importlib.util import find_spec; print(*[name for name in {PACKAGES!r} if find_spec(name)])"
    assert run(installed, "-c", find, cwd=tmp_path) == ""


def test_an_editable_install_imports_from_the_clone(tmp_path: Path) -> None:
    python = install(build(ROOT, "wheel:editable", tmp_path / "wheel"), tmp_path / "installed")
    place = "import sluice.batcher.scheduler.scheduler as module; print(module.__file__)"
    assert Path(run(python, "-c", place, cwd=tmp_path)).is_relative_to(ROOT / "src" / "sluice")
    find = f"from importlib.util import find_spec; print(*[name for name in {PACKAGES!r} if find_spec(name)])"
    assert run(python, "-c", find, cwd=tmp_path) == ""
