"""The configuration and the files that a request to load a model gives in place of those of the repository."""

import base64
import binascii
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from sluice.models.errors import ForbiddenRequest, RequestError
from sluice.models.repository.scan import ModelEntry

_FILE = "file:"

CODE_BACKEND = "python"
"""The backend that runs the file of a model as code."""
CODE_SUFFIXES = (".py", ".pyc", ".pyd", ".pyz", ".pth", ".so", ".dll", ".dylib", ".sh", ".exe")
"""The endings of names that are refused as code, whether the model would run the file or not."""
CODE_BEGINNINGS = (b"\x7fELF", b"#!")
"""The beginnings of programs and scripts, which are refused as well."""


class Override:
    """A configuration in JSON, and the files that belong to it, which `write` puts into a directory of their own.

    `files` are contents by path relative to the model's directory; without any, those of the repository are used.
    They may be code only if `allows_code`.
    """

    def __init__(self, config: str, files: Mapping[str, bytes], *, allows_code: bool = False) -> None:
        self.config = config
        self._allows_code = allows_code
        self._files = dict(files)
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self.entry: Path | None = None

    def write(self, name: str) -> None:
        """Write the files, if there are any, until `discard`."""
        if not self._files:
            return
        self._directory = tempfile.TemporaryDirectory(prefix="sluice-")
        self.entry = Path(self._directory.name) / name
        for relative, content in self._files.items():
            path = self.entry / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self._files.clear()

    def check(self, models: Iterable[ModelEntry]) -> None:
        """Raise ForbiddenRequest if one of the models that were read would run a file of the client, but may not."""
        if self.entry is None or self._allows_code:
            return
        for each in models:
            if each.backend == CODE_BACKEND and each.path.is_relative_to(self.entry):
                raise _forbidden(str(each.path.relative_to(self.entry)))

    def without_directory(self, message: str) -> str:
        """A message about the files without the temporary directory, which the client does not know."""
        return message if self._directory is None else message.replace(f"{self._directory.name}/", "")

    def discard(self) -> None:
        """Remove the files."""
        if self._directory is not None:
            self._directory.cleanup()


def read_override(parameters: Mapping[str, object], *, allows_code: bool = False) -> Override | None:
    """Read the parameters of a request to load a model; None without any.

    Over HTTP, files are in base64. Raises RequestError for a parameter that is unknown, of a wrong type, or names a
    file outside of the model's directory, and for files without a configuration; ForbiddenRequest for a file that is
    code by its name or its beginning, unless `allows_code`.
    """
    if not parameters:
        return None
    config: str | None = None
    files: dict[str, bytes] = {}
    for name, value in parameters.items():
        if name == "config":
            if not isinstance(value, str):
                raise RequestError(f"parameter 'config' must be a configuration in JSON, got {type(value).__name__}")
            config = value
        elif name.startswith(_FILE):
            path, content = _path(name), _content(name, value)
            if not allows_code and (path.lower().endswith(CODE_SUFFIXES) or content.startswith(CODE_BEGINNINGS)):
                raise _forbidden(path)
            files[path] = content
        else:
            raise RequestError(f"parameter '{name:.80}' is unknown; expected 'config' and 'file:<version>/<name>'")
    if config is None:
        raise RequestError("a request that gives files must have the parameter 'config', too")
    return Override(config, files, allows_code=allows_code)


def _forbidden(path: str) -> ForbiddenRequest:
    return ForbiddenRequest(
        f"parameter 'file:{path:.80}' is code, which this server does not take from clients: expected the option "
        "--allow-upload of `sluice serve`, or files that are data, such as model.onnx"
    )


def _path(name: str) -> str:
    path = PurePosixPath(name.removeprefix(_FILE))
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in name or "\0" in name:
        raise RequestError(f"parameter '{name:.80}' must name a file inside of the directory of the model")
    return str(path)


def _content(name: str, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except binascii.Error as error:
            raise RequestError(f"parameter '{name:.80}' must be in base64: {error}") from error
    raise RequestError(f"parameter '{name:.80}' must be the contents of a file, got {type(value).__name__}")
