"""`sluice health` says by its status whether a server is ready."""

import pytest

from sluice.gateway.cli.main import main
from tests.unit.gateway.cli.client.test_http import answering, http


@pytest.mark.parametrize(
    ("answer", "options", "status", "printed"),
    [
        (http("200 OK", b'{"ready":true}'), [], 0, "ready\n"),
        (http("200 OK", b'{"live":true}'), ["--live"], 0, "live\n"),
        (http("400 Bad Request", b'{"ready":false}'), [], 1, "not ready\n"),
        (http("503 Service Unavailable", b'{"ready":false}'), [], 1, "not ready\n"),
        (http("403 Forbidden", b'{"error":"this API is restricted, expecting header \'k\'"}'), [], 1, "restricted"),
    ],
)
def test_the_answer_is_in_the_status(
    answer: bytes, options: list[str], status: int, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(answer) as url:
        assert main(["health", "--url", url, *options]) == status
    output = capsys.readouterr()
    assert printed in (output.err if status else output.out)


def test_no_server_is_unhealthy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--url", "http://127.0.0.1:1"]) == 1
    assert "cannot be reached" in capsys.readouterr().err
