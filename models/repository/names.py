"""Entries of a repository, by their names."""

import re
from pathlib import Path

from sluice.models.errors import ConfigError
from sluice.models.pipelines.pipeline import REQUEST
from sluice.models.regular_file import printable

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
SYSTEM_DIRECTORIES = frozenset({"lost+found", "@eaDir", "__pycache__", "__MACOSX", "System Volume Information"})
"""Directories that systems and tools make by themselves."""


def is_foreign(name: str) -> bool:
    """True if a directory of that name is not meant as a model, and makes nobody wait for one."""
    return name in SYSTEM_DIRECTORIES or _NAME.fullmatch(name) is None


def why_foreign(name: str) -> str:
    """The reason why a directory of a name is not served, for people."""
    if name in SYSTEM_DIRECTORIES:
        return f"'{name}' is no model: systems and tools make directories of that name"
    return (
        f"'{printable(name)}' cannot name a model or a pipeline; expected letters, digits, '_', '.' and '-', "
        f"and not '{REQUEST}'"
    )


def is_entry(path: Path) -> bool:
    """True for a directory that is not hidden, also one that cannot be looked into."""
    try:
        return path.name[0] != "." and path.is_dir()
    except OSError:  # a link into a directory that the user may not search
        return True


def entries_of(directory: Path) -> list[Path]:
    """The entries of a repository, by name; raises OSError if the directory cannot be read."""
    return sorted(path for path in directory.iterdir() if is_entry(path))


def check_name(place: object, name: str) -> None:
    """Raise ConfigError, whose message starts with `place`, for an invalid name of a model or a pipeline."""
    if is_foreign(name) or name == REQUEST:
        raise ConfigError(f"{place}: {why_foreign(name)}")
