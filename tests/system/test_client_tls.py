"""The commands and the load generator reach a real server over TLS, with a certificate and a key of their own."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.gateway.cli import main as sluice
from sluice.gateway.config.restricted import ApiGroup
from sluice.loadgen.cli import main as loadgen
from sluice.models.tensors.spec import DataType
from tests.support.certificates import certificate
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity

HEADER = ("--header", "admin-key: s3cret")
RUN = ("run", "--model", "first", "--rate", "100", "--queries", "20", "--warmup", "0")
UNTRUSTED = "give the certificate of its authority with --cacert FILE"
UNKNOWN = "it may want a certificate of the client that it trusts (--cert)"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tls")
    for name, signer in (("authority", None), ("server", "authority"), ("client", "authority"), ("other", None)):
        certificate(directory, name, signer)
    return directory


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[GatewayServer]:
    repository = directory / "models"
    save_identity(repository / "first" / "1" / "model.onnx", DataType.FP32, [3])
    tls = {"certificate": "server.pem", "key": "server.key", "client_ca": "authority.pem"}
    restricted = {"groups": [group for group in ApiGroup if group != "explain"], "header": "admin-key"}
    config: dict[str, object] = {
        "partitions": 1,
        "control": "explicit",
        "load_models": ["first"],
        "tls": {key: str(directory / file) for key, file in tls.items()},
        "restricted": [restricted | {"value": "s3cret"}],
    }
    with gateway_server(repository, directory, config) as running:
        yield running


def trusting(directory: Path, authority: str = "authority", own: str = "client") -> list[str]:
    """The options of a client that trusts an authority and shows a certificate, unless that is ""."""
    files = ["--cert", str(directory / f"{own}.pem"), "--key", str(directory / f"{own}.key")] if own else []
    return ["--cacert", str(directory / f"{authority}.pem"), *files]


def commands(directory: Path) -> list[tuple[list[str], str]]:
    """All commands that talk to a server, and what they print."""
    model = str(directory / "models" / "first" / "1" / "model.onnx")
    return [
        (["model", "list"], "READY"),
        (["model", "config", "first"], '"max_batch_size"'),
        (["model", "load", "first"], "first: loaded"),
        (["model", "register", "second", "--file", model], "second: loaded"),
        (["model", "unload", "second"], "second: unloaded"),
        (["partitions", "resize", "cpu0", "--cores", str(min(os.sched_getaffinity(0)))], "cpu0: serves on cores"),
        (["why", "nobody"], "request 'nobody' is not remembered"),
        (["doctor"], "cpu0: "),
    ]


def test_commands_reach_a_server_that_knows_its_clients(
    server: GatewayServer, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reach = [*trusting(directory), *HEADER]
    for command, expected in commands(directory):
        sluice.main([*command, "--url", f"https://{server.http_url}", *reach])
        printed = capsys.readouterr()
        assert expected in printed.out + printed.err, printed
        for wrong, reason in (
            (trusting(directory, authority="other"), UNTRUSTED),
            (trusting(directory, own=""), UNKNOWN),
        ):
            assert sluice.main([*command, "--url", f"https://{server.http_url}", *wrong, *HEADER]) == 2
            assert capsys.readouterr().err.endswith(f"; {reason}\n")
        if command != ["doctor"]:
            assert sluice.main([*command, "--url", f"http://{server.http_url}", *HEADER]) == 2
            assert "it may expect TLS: https://" in capsys.readouterr().err
    assert sluice.main(["model", "list", "--url", f"https://{server.http_url}", *trusting(directory)]) == 2
    assert "expecting header 'admin-key'" in capsys.readouterr().err


@pytest.mark.parametrize("protocol", ["https", "grpcs"])
def test_the_load_generator_reaches_a_server_that_knows_its_clients(
    server: GatewayServer, directory: Path, protocol: str, capfd: pytest.CaptureFixture[str]
) -> None:
    target = f"{protocol}://{server.http_url if protocol == 'https' else server.grpc_url}"
    metrics, report = f"https://{server.http_url}/metrics", directory / "report.json"

    def run(target: str, *options: str) -> str:
        loadgen.main([*RUN, "--target", target, *options])
        return capfd.readouterr().err

    run(target, *trusting(directory), *HEADER, "--metrics-url", metrics, "--json", str(report))
    found = json.loads(report.read_bytes())
    assert found["metrics"]["ok"] == 20
    assert sum(each["batches"] * each["mean_rows"] for each in found["server"]["batches"]) == pytest.approx(20)
    assert "s3cret" not in report.read_text()
    assert run(target, *trusting(directory, authority="other"), *HEADER).endswith(f"; {UNTRUSTED}\n")
    assert loadgen.main([*RUN, "--target", target, *trusting(directory, authority="other"), *HEADER]) == 5
    capfd.readouterr()
    assert run(target, *trusting(directory, own=""), *HEADER).endswith(f"; {UNKNOWN}\n")
    assert "admin-key'" in run(target, *trusting(directory))
    assert "it may expect TLS" in run(target.replace("s://", "://"), *HEADER)
    unmeasured = run(target, *trusting(directory), *HEADER, "--metrics-url", metrics.replace("s://", "://"))
    assert unmeasured.startswith(f"loadgen: --metrics-url http://{server.http_url}/metrics: ")


def test_variables_of_the_environment_are_as_good_as_options(
    server: GatewayServer, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {
        "CACERT": str(directory / "authority.pem"),
        "CERT": str(directory / "client.pem"),
        "KEY": str(directory / "client.key"),
        "HEADER": HEADER[1],
    }.items():
        monkeypatch.setenv(f"SLUICE_{name}", value)
        monkeypatch.setenv(f"LOADGEN_{name}", value)
    monkeypatch.setenv("SLUICE_URL", f"https://{server.http_url}")
    monkeypatch.setenv("LOADGEN_TARGET", f"grpcs://{server.grpc_url}")
    assert sluice.main(["model", "list"]) == 0
    loadgen.main(list(RUN))
    assert "first at grpcs://" in capsys.readouterr().out
    assert sluice.main(["model", "list", "--cacert", str(directory / "other.pem")]) == 2
    assert UNTRUSTED in capsys.readouterr().err
