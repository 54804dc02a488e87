"""The files of reports: checked before the run that they are to hold, and written as a whole."""

import os
from pathlib import Path

from sluice.models.errors import ConfigError


def check_parent(path: Path) -> None:
    """Raise `ConfigError` unless the folder of a file or folder can be written to, or made."""
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise ConfigError(f"{path}: cannot be written: {parent} is not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{path}: cannot be written: no permission to write to {parent}")


def check_file(path: Path) -> None:
    """Raise `ConfigError` unless a file can be written: it is no folder, and its own can be written to, or made."""
    if path.is_dir():
        raise ConfigError(f"{path}: cannot be written: it is a folder; expected a file")
    check_parent(path)


def write_file(path: Path, content: bytes) -> None:
    """Write a file, and its folder where there is none; a reader sees the old file or the new one.

    Raises `ConfigError` with the file and the reason if that fails; the old file stays.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        if path.exists() and not path.is_file():  # a pipe or a device
            path.write_bytes(content)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(content)
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
