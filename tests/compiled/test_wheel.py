"""A wheel that is built with SLUICE_COMPILE=1 has the core and the hot path compiled beside their sources."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest

from hatch_build import PACKAGES, compiled_modules, compiled_tree
from tests.support.packaging import ROOT, contents, install, run, sources

VERSION = f"cp{sys.version_info.major}{sys.version_info.minor}"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def test_it_has_all_that_a_pure_one_has_and_the_compiled_modules(compiled_wheel: Path) -> None:
    names = {name for name in contents(compiled_wheel) if ".dist-info/" not in name}
    modules = {f"sluice/{path.relative_to(ROOT).with_suffix(SUFFIX)}" for path in compiled_modules(ROOT)}
    assert names == sources() | modules | {f"sluice_compiled__mypyc{SUFFIX}"}


def test_its_tag_is_that_of_the_interpreter_and_the_platform(compiled_wheel: Path) -> None:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert compiled_wheel.name.endswith(f"-{VERSION}-{VERSION}-{platform}.whl")
    with ZipFile(compiled_wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
        assert "Root-Is-Purelib: false" in archive.read(name).decode().splitlines()


def test_it_runs_by_itself_and_says_that_it_is_compiled(compiled_wheel: Path, tmp_path: Path) -> None:
    python = install(compiled_wheel, tmp_path / "installed")
    found = run("sh", "-c", f"{python.with_name('sluice')} doctor; true", cwd=tmp_path)
    assert "hot path compiled" in found.splitlines()[0]
    place = "import sluice.batcher.scheduler.scheduler as module; print(module.__file__)"
    assert Path(run(python, "-c", place, cwd=tmp_path)).name == f"scheduler{SUFFIX}"
    tools = "{'mypy', 'librt', 'mypy_extensions'}"
    imported = f"import sys, sluice.batcher.scheduler.scheduler; print({tools} & {{*sys.modules}})"
    assert run(python, "-c", imported, cwd=tmp_path) == "set()"


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"SLUICE_COMPILE": "1", "CC": "/nowhere/cc"}, "SLUICE_COMPILE=1: no C compiler (/nowhere/cc)"),
        ({"SLUICE_COMPILE": "yes"}, "SLUICE_COMPILE: expected 1 (compile) or 0, got 'yes'"),
    ],
)
def test_a_build_that_cannot_compile_says_why(variables: dict[str, str], problem: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel:standard", "--directory", str(tmp_path)]
    environment = {"PATH": "/usr/bin:/bin", **variables}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert problem in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_class_whose_options_would_be_lost_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(ROOT / "src" / "sluice", root / "src" / "sluice", symlinks=True)
    for package in PACKAGES:
        (root / package).mkdir()
    (root / "batcher" / "state.py").write_text("import msgspec\n\n\nclass Entry(msgspec.Struct, frozen=True): ...\n")
    (tmp_path / "scratch").mkdir()
    with pytest.raises(RuntimeError, match=r"^batcher/state.py:4: class Entry has keywords, so its module cannot be"):
        compiled_tree(root, tmp_path / "scratch")
