"""Installed from a wheel, from an sdist or as an editable install, Sluice is one package `sluice` and nothing else."""

import tarfile
from pathlib import Path

import pytest

from tests.support.packaging import PACKAGES, ROOT, build, contents, install, run, sources


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel:standard", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("installed"))


def test_a_wheel_holds_the_five_packages_under_one_name(wheel: Path) -> None:
    found = contents(wheel)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert {name for name in found if ".dist-info/" not in name} == sources()
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
        if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and later
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(tmp_path / "source")
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
