"""A compiled wheel, and the two builds side by side."""

from pathlib import Path
from zipfile import ZipFile

import pytest

from hatch_build import why_not
from scripts.compiled import build_wheel
from tests.support.packaging import ROOT


@pytest.fixture(scope="session")
def compiled_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that was built with SLUICE_COMPILE=1."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    return build_wheel(tmp_path_factory.mktemp("compiled-wheel"))


@pytest.fixture(scope="session")
def trees(compiled_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders from which the package is imported, by its build."""
    tree = tmp_path_factory.mktemp("compiled-tree")
    with ZipFile(compiled_wheel) as archive:
        archive.extractall(tree)
    return {"pure": ROOT / "src", "compiled": tree}
