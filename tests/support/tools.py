"""Programs that some tests need and a machine may lack."""

import os
import shutil

import pytest


def require_tool(name: str) -> str:
    """The path of a program. Without it the test is skipped, or fails where SLUICE_REQUIRE_TOOLS is set."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is not None:
        return path
    message = f"'{name}' is not installed; expected it on the path (on Debian: see .ci/run)"
    if os.environ.get("SLUICE_REQUIRE_TOOLS"):
        pytest.fail(message)
    pytest.skip(message)
