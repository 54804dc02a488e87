import sys
from importlib import import_module
from pathlib import Path

import pytest

from sluice.batcher.extensions import import_modules
from sluice.models.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ndef broken(:\n", ":2: invalid syntax"),
        ("x = 1\n\nimport no_such_module\n", ":3: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f():\n    raise TypeError('no')\n\nf()\n", ":2: TypeError: no"),
    ],
)
def test_a_broken_file_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    (tmp_path / "some_room").mkdir()
    (tmp_path / "some_room" / "__init__.py").touch()
    (tmp_path / "some_room" / "added.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with pytest.raises(ConfigError) as error:
            import_modules(import_module("some_room"))
    finally:
        sys.modules.pop("some_room", None)
    assert str(error.value) == f"{tmp_path / 'some_room' / 'added.py'}{message}"
