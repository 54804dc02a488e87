"""Writes new model repositories in Triton's layout; an existing one is never changed."""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sluice.models.errors import ConfigError
from sluice.models.regular_file import beside
from sluice.models.triton_config.onnx_outline import is_inside, read_outline


class NewModel(NamedTuple):
    """A model of a new repository: its name, its file, and the name that the file gets."""

    name: str
    source: Path
    filename: str

    @property
    def files(self) -> dict[str, Path]:
        """The files to copy, with those of external weights, by their place in the folder of the version."""
        found = {self.filename: self.source}
        if self.source.suffix == ".onnx":
            for place in sorted(read_outline(self.source).external):
                if is_inside(place):
                    found[place] = beside(self.source, place)
        return found


def check_new(directory: Path) -> None:
    """Raise ConfigError unless a repository can be written to a directory: it is not there, or empty."""
    try:
        if any(directory.iterdir()):
            raise ConfigError(f"{directory}: there is something in it; expected a new or an empty directory")
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise ConfigError(f"{directory}: there is a file of that name; expected a new or an empty directory") from error


def create_repository(directory: Path, models: Sequence[NewModel], texts: Mapping[str, str]) -> list[str]:
    """Write a repository of copies of models, and of texts by their place in it; returns the places of all files.

    The directory appears as a whole, or not at all. Raises ConfigError if it cannot be new.
    """
    check_new(directory)
    parent = directory.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{directory.name}.", dir=parent) as scratch:
            root = Path(scratch) / "repository"
            written = _write(root, models, texts)
            os.rename(root, directory)  # replaces an empty directory, and refuses another one
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be written: {error.strerror or error}") from error
    return written


def _write(root: Path, models: Sequence[NewModel], texts: Mapping[str, str]) -> list[str]:
    written = []
    root.mkdir()
    for model in models:
        for place, source in model.files.items():
            target = root / model.name / "1" / place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            written.append(str(target.relative_to(root)))
    for place, text in texts.items():
        target = root / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        written.append(place)
    return written
