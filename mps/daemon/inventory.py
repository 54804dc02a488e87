"""The MPS daemons that run on this machine, with the protocol, servers and clients of each."""

from pathlib import Path

import msgspec

from sluice.models.errors import ControlFailed
from sluice.mps.daemon.channel import MpsChannel
from sluice.mps.daemon.control import MpsClient, MpsControl, MpsServer
from sluice.mps.daemon.processes import PROGRAM, control_daemons
from sluice.mps.daemon.protocol2 import Protocol2
from sluice.mps.daemon.protocol3 import Protocol3

DEFAULT_PIPES = Path("/tmp/nvidia-mps")
LOOK_S = 5.0
"""Time limit for a daemon's answer when all are listed."""


class RunningDaemon(msgspec.Struct, frozen=True):
    """A control daemon. `devices` is what it was started for, empty for all; `trouble` is why it does not answer."""

    pid: int
    pipes: Path
    devices: str = ""
    servers: tuple[MpsServer, ...] = ()
    clients: tuple[MpsClient, ...] = ()
    trouble: str = ""


def running_daemons(program: str = PROGRAM) -> tuple[RunningDaemon, ...]:
    """All daemons of this machine, by process id."""
    return tuple(_look(pid, variables, program) for pid, variables in control_daemons())


def connect_control(channel: MpsChannel) -> MpsControl:
    """Return the commands of the daemon behind a channel, in the protocol that it answers to.

    Raises ControlFailed, with its answer to protocol 2, when it answers to neither.
    """
    first: MpsControl = Protocol2(channel)
    try:
        first.ping()
    except ControlFailed as trouble:
        second: MpsControl = Protocol3(channel)
        try:
            second.ping()
        except ControlFailed:
            raise trouble from None
        return second
    return first


def _look(pid: int, variables: dict[str, str], program: str) -> RunningDaemon:
    pipes = Path(variables.get("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_PIPES))
    devices = variables.get("CUDA_VISIBLE_DEVICES", "")
    if not variables:
        return RunningDaemon(pid, pipes, trouble="it belongs to another user")
    try:
        control = connect_control(MpsChannel(pipes, program, LOOK_S))
        return RunningDaemon(pid, pipes, devices, control.servers(), control.clients())
    except ControlFailed as error:
        return RunningDaemon(pid, pipes, devices, trouble=str(error))
