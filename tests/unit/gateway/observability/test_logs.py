import json
import logging
from collections.abc import Iterator

import pytest

from sluice.gateway.observability.logs import LogFormat, configure, log

logger = logging.getLogger("gateway.test")


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_carry_the_fields_of_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogFormat.JSON, "info")
    log(logger, logging.INFO, "worker ready", partition="cpu0", cores=[0, 1])
    log(logger, logging.DEBUG, "not shown")
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert record.pop("time").endswith("+00:00")
    assert record == {
        "level": "info",
        "logger": "gateway.test",
        "event": "worker ready",
        "partition": "cpu0",
        "cores": [0, 1],
    }


def test_text_lines_end_with_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogFormat.TEXT, "warning")
    log(logger, logging.ERROR, "worker lost", partition="cpu0", reason="killed by SIGKILL")
    assert capsys.readouterr().err.endswith("error gateway.test: worker lost partition=cpu0 reason=killed by SIGKILL\n")


def test_an_exception_stays_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogFormat.JSON, "info")
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("a batch could not be started")
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError: no" in json.loads(line)["traceback"]
