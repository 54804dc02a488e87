import subprocess
import sys
from pathlib import Path

import pytest

from sluice.gateway.cli.main import main


def test_another_platform_than_linux_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert main(["serve", "mlp.onnx"]) == 2
    assert "sluice runs on Linux only" in capsys.readouterr().err


def test_options_override_the_configuration_and_are_checked_alike(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "mlp.onnx", "--http-port", "70000"]) == 2
    assert capsys.readouterr().err == (
        "sluice: command line: http_port: expected a port from 0 (any free one) to 65535, got 70000\n"
    )


def test_what_neither_a_repository_nor_clients_give_cannot_be_served(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert "expected --repository DIR, model files, a triton server in the configuration, or" in capsys.readouterr().err
    assert main(["serve", "mlp.onnx", "--load-model", "mlp"]) == 2
    assert "load_models requires control explicit, got control none" in capsys.readouterr().err


def test_what_is_no_journal_is_told_with_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes, absent = tmp_path / "notes.txt", tmp_path / "absent"
    notes.write_text("hello\n")
    for path in (notes, absent, tmp_path):
        assert main(["replay", str(path)]) == 2
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith(f"sluice: {notes}: journal line 1: expected the scheduler's spec in JSON: ")
    assert others == [
        f"sluice: {absent}: cannot be read: No such file or directory",
        f"sluice: {tmp_path}: cannot be read: Is a directory",
    ]


HEAVY = ("asyncio", "fastapi", "google.protobuf", "grpc", "numpy", "onnx", "onnxruntime", "uvicorn", "yaml")


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
