import os
from pathlib import Path

from sluice.gateway.cli.text.partition_report import mps_lines
from sluice.mps.daemon.control import MpsClient, MpsServer
from sluice.mps.daemon.inventory import RunningDaemon

PIPES = Path("/tmp/mps")


def test_a_daemon_is_reported_with_its_servers_and_their_clients() -> None:
    name = Path("/proc/self/comm").read_text(encoding="utf-8").strip()
    pid = os.getpid()
    found = RunningDaemon(
        4194301,
        PIPES,
        "GPU-5d1f",
        (MpsServer(4194302, "ACTIVE"), MpsServer(4194303, "FAULT")),
        (MpsClient(pid, 4194302), MpsClient(4194304, 4194302)),
    )
    assert mps_lines(found) == [
        "MPS daemon (pid 4194301) of GPU-5d1f, in /tmp/mps",
        f"  server (pid 4194302): ACTIVE, in use by {name} (pid {pid}), pid 4194304",
        "  server (pid 4194303): FAULT, without clients",
    ]


def test_a_daemon_that_does_not_answer_is_reported_with_the_reason() -> None:
    assert mps_lines(RunningDaemon(4194301, PIPES, trouble="it belongs to another user")) == [
        "MPS daemon (pid 4194301) of all devices, in /tmp/mps: it belongs to another user"
    ]
