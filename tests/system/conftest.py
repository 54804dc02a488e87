"""Removes the directories that the MPS daemons of this process leave, for all tests of servers."""

import shutil
from collections.abc import Iterator

import pytest

from sluice.mps.isolation.mps_environment import device_directory
from tests.support.gpu.fake_mps import OWN_GPU


@pytest.fixture(scope="session", autouse=True)
def _files_of_daemons() -> Iterator[None]:
    yield
    shutil.rmtree(device_directory(OWN_GPU), ignore_errors=True)
