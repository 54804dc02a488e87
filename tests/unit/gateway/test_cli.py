import sys

import pytest

from gateway.cli import main


def test_another_platform_than_linux_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert main(["serve", "mlp.onnx"]) == 2
    assert "sluice runs on Linux only" in capsys.readouterr().err


def test_options_override_the_configuration_and_are_checked_alike(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "mlp.onnx", "--http-port", "70000"]) == 2
    assert capsys.readouterr().err == "sluice: command line: expected ports from 0 (any free one) to 65535\n"
