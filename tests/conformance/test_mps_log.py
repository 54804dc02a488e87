"""The log of a daemon about servers, clients and faults: the fake uses the words of the real one."""

import os
import re
from collections.abc import Callable

from sluice.mps.daemon.daemon import MpsDaemon
from tests.support.gateway.processes import until
from tests.support.gpu import fake_mps
from tests.support.gpu.cuda_process import CudaProcess

LINE = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} Control +\d+\] (?P<text>.*)")


def test_servers_clients_and_faults_are_logged(fake: MpsDaemon, clients: Callable[..., CudaProcess]) -> None:
    client = clients(fake)
    (server,) = fake.control.servers()
    fake_mps.inject(fake.pipes, "fault")
    client.close()

    def said() -> list[str]:
        text = (fake.logs / "control.log").read_text(encoding="utf-8")
        lines = [match["text"] for line in text.splitlines() if (match := LINE.fullmatch(line))]
        # Others of this machine may look, too.
        return [line for line in lines if re.match(r"Starting new|NEW (CLIENT|SERVER)|Status|Server is|Client", line)]

    until(lambda: said()[-1].endswith("disconnected"))
    assert said() == [
        f"NEW CLIENT {client.pid} from user {os.getuid()}: Server is not ready, push client to pending list",
        f"Starting new server {server.pid} for user {os.getuid()}",
        f"NEW SERVER {server.pid}: Ready",
        f"Status of client {{PID: {client.pid}, Context ID: 1}} is ACTIVE",
        "Server is handling a fatal GPU error",
        f"Client process {client.pid} disconnected",
    ]
