"""The version of the server is that of its distribution."""

import tomllib

from sluice.gateway.version import server_version
from tests.support.documents import ROOT


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert server_version() == project["version"]
