"""A client of an MPS daemon that hangs is ended in the documented order, and its neighbours do not notice."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import cast

from sluice.mps.daemon.channel import MpsChannel
from sluice.mps.daemon.control import MpsClient, MpsControl
from sluice.mps.daemon.daemon import MpsDaemon
from sluice.mps.daemon.protocol2 import Protocol2
from sluice.mps.supervisor.fault_domain import end_client
from sluice.mps.supervisor.process import WorkerProcess
from tests.support.gpu import fake_mps
from tests.support.gpu.cuda_process import CudaProcess

Clients = Callable[..., CudaProcess]


class Hung:
    """A process that does not go on; `terminated` are the clients without contexts when it is killed."""

    def __init__(self, client: CudaProcess) -> None:
        self.pid = client.pid
        self.control: Control | None = None
        self.terminated: list[int] = []
        self.reason = ""
        os.kill(self.pid, signal.SIGSTOP)

    def kill(self, reason: str) -> None:
        assert self.control is not None
        self.terminated = list(self.control.terminated)
        self.reason = reason
        os.kill(self.pid, signal.SIGKILL)


class Control:
    """A control of a daemon that notes which clients it has terminated."""

    def __init__(self, control: MpsControl) -> None:
        self._control = control
        self.terminated: list[int] = []

    def clients(self) -> tuple[MpsClient, ...]:
        return self._control.clients()

    def terminate_client(self, client: MpsClient) -> None:
        self._control.terminate_client(client)
        self.terminated.append(client.pid)


def ended(hung: Hung, control: MpsControl, terminate_s: float) -> list[int]:
    """The clients that were terminated before it was killed."""
    hung.control = Control(control)
    asyncio.run(end_client(cast(WorkerProcess, hung), cast(MpsControl, hung.control), "it hangs", terminate_s))
    assert hung.reason == "it hangs"
    return hung.terminated


def test_its_contexts_are_destroyed_before_it_is_killed(fake: MpsDaemon, clients: Clients) -> None:
    neighbour, hung = clients(fake), Hung(clients(fake))
    assert ended(hung, fake.control, terminate_s=60) == [hung.pid]
    assert neighbour.ask("check") == 0


def test_one_that_cannot_be_terminated_is_killed_all_the_same(fake: MpsDaemon, program: str, clients: Clients) -> None:
    hung = Hung(clients(fake))
    fake_mps.inject(fake.pipes, "wedge", hung.pid)
    # A thread waits for the answer for longer, and with it the end of the loop.
    control = Protocol2(MpsChannel(fake.pipes, program, timeout_s=2))
    assert ended(hung, control, terminate_s=0.5) == []
