"""The null server in a process of its own."""

import contextlib
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from sluice.models.errors import ConfigError
from sluice.mps.partitions.cpu import available_cores

_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 5.0


@contextmanager
def null_server(protocol: str) -> Iterator[str]:
    """Run the null server of a protocol (http or grpc) until the block ends; gives its URL.

    Where there are two cores, it has the first of them, and this process the others. Raises `ConfigError` when it does
    not start.
    """
    command = [sys.executable, "-m", "sluice.loadgen.selfcheck.null_server", protocol]
    # A session of its own: an interrupt at the terminal is for this process, at whose end the server ends.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            port = _port(process.stdout)
            with _apart(process.pid):
                yield f"{protocol}://127.0.0.1:{port}"
        finally:
            process.stdin.close()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _port(output: IO[bytes]) -> int:
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        line = output.readline() if selector.select(_START_TIMEOUT_S) else b""
    if not line.strip().isdigit():
        raise ConfigError(f"selfcheck: the null server did not start in {_START_TIMEOUT_S:g} s")
    return int(line)


@contextmanager
def _apart(server: int) -> Iterator[None]:
    first, *others = cores = available_cores()
    if not others:
        yield
        return
    os.sched_setaffinity(server, {first})
    os.sched_setaffinity(0, others)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # cores may have been taken away meanwhile
            os.sched_setaffinity(0, cores)
