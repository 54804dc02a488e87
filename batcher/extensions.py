"""Files that extend the core: every module of a room is imported, so that it registers what it adds."""

import pkgutil
import traceback
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from sluice.models.errors import ConfigError


def import_modules(room: ModuleType) -> None:
    """Import all modules of a room; ConfigError names the file and the line of one that is broken."""
    for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
        try:
            import_module(module.name)
        except SyntaxError as error:
            raise ConfigError(f"{error.filename}:{error.lineno}: {error.msg}") from error
        except ConfigError:
            raise
        except Exception as error:  # a module may raise anything
            raise ConfigError(f"{_place(module.name, error)}: {type(error).__name__}: {error}") from error


def _place(name: str, error: Exception) -> str:
    """The file of a module, with the line that raised."""
    spec = find_spec(name)
    file = (spec and spec.origin) or name
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{file}:{lines[-1]}" if lines else file
