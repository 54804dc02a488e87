"""The null servers answer every query of the client, and clients that others wrote."""

import asyncio
import http.client
import signal
import subprocess
import sys
from collections.abc import Iterator

import grpc
import pytest
import uvloop

from sluice.loadgen.cli.main import main
from sluice.loadgen.records.record import Record
from sluice.loadgen.run.issuer import Issuer
from sluice.loadgen.selfcheck.probe import closed_loop, probe
from sluice.loadgen.selfcheck.server import null_server
from sluice.loadgen.target.base import Target


@pytest.fixture(scope="module", params=["http", "grpc"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with null_server(request.param) as url:
        yield url


def test_every_query_of_a_probe_is_answered(url: str) -> None:
    tried = asyncio.run(probe(url, 2000, 0.2, seed=1))
    assert tried.queries > 300
    assert not any("not answered" in reason for reason in tried.reasons)
    assert tried.lateness_ms is not None
    assert tried.cpu_us_per_query > 0


def test_an_interrupt_is_for_the_whole_check(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Issuer.run

    async def interrupted(issuer: Issuer, target: Target, drain_timeout_s: float) -> Record:
        asyncio.get_running_loop().call_later(0.05, signal.raise_signal, signal.SIGINT)
        return await run(issuer, target, drain_timeout_s)

    monkeypatch.setattr(Issuer, "run", interrupted)
    with pytest.raises(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(probe(url, 100, 20.0, seed=1))


def test_a_closed_loop_goes_on_until_its_end(url: str) -> None:
    assert asyncio.run(closed_loop(url, 0.1)).per_s > 1000


def test_other_clients_are_answered_as_well(url: str) -> None:
    scheme, _, address = url.partition("://")
    if scheme == "http":
        connection = http.client.HTTPConnection(address)
        for body in (b"x", b"yz" * 100_000):
            connection.request("POST", "/v2/models/m/infer", body)
            response = connection.getresponse()
            assert (response.status, len(response.read())) == (200, 102)
        connection.close()
    else:
        with grpc.insecure_channel(address) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None)
            assert [call(body, timeout=60) for body in (b"x", b"yz" * 100_000)] == [b"", b""]


def test_a_null_server_ends_with_its_standard_input() -> None:
    command = [sys.executable, "-m", "sluice.loadgen.selfcheck.null_server", "http"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline().strip().isdigit()
        process.stdin.close()
        assert process.wait(60) == 0


def test_the_command_prints_a_safe_rate_or_says_that_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["selfcheck", "--quick", "--protocol", "http"])
    last = capsys.readouterr().out.splitlines()[-1]
    expected = {0: "Result: safe up to ", 4: "Result: no rate that was tried was kept over http"}
    assert last.startswith(expected[status])
