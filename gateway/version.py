"""The version of Sluice."""

from importlib.metadata import PackageNotFoundError, version


def server_version() -> str:
    """The version of the installed distribution."""
    try:
        return version("sluice-gateway")
    except PackageNotFoundError:
        return "unknown"
