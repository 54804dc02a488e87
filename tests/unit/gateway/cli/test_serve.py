import pytest

from sluice.gateway.cli.main import main


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
