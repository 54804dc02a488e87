import subprocess
import sys

import pytest

from sluice.gateway.cli.main import main


def test_another_platform_than_linux_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert main(["serve", "mlp.onnx"]) == 2
    assert "sluice runs on Linux only" in capsys.readouterr().err


HEAVY = ("asyncio", "fastapi", "google.protobuf", "grpc", "numpy", "onnx", "onnxruntime", "rich", "uvicorn", "yaml")


@pytest.mark.parametrize("command", [["--help"], ["serve", "--help"], ["model", "list", "--url", "http://127.0.0.1:1"]])
def test_commands_import_what_they_need_only(command: list[str]) -> None:
    program = f"""
import sys
from sluice.gateway.cli.main import main
try:
    main({command})
except SystemExit:
    pass
print(*[name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stderr.splitlines()[-1] == ""
