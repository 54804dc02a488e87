"""The version of Sluice, and how it was built."""

from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec


def server_version() -> str:
    """The version of the installed distribution."""
    try:
        return version("sluice-gateway")
    except PackageNotFoundError:
        return "unknown"


@cache
def is_compiled() -> bool:
    """True if core and hot path were compiled, as in wheels built with SLUICE_COMPILE=1; False if all is Python."""
    spec = find_spec("sluice.batcher.state")
    return spec is not None and str(spec.origin).endswith(tuple(EXTENSION_SUFFIXES))
