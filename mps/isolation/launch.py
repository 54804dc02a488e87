"""Starting processes: modules of Sluice, and programs that keep to given cores and end with their parent."""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

from sluice.models.errors import PartitionError
from sluice.models.processes import IMPORT_ROOT, TELEMETRY_OFF, python_path
from sluice.mps.isolation.mps_environment import environment_without_mps
from sluice.mps.isolation.pinning import pin_to_cores

CANNOT_START = 127
"""Exit status when a command cannot be started, as a shell's."""

_PR_SET_PDEATHSIG = 1
# No PYTHONPATH: the command, which may be Python as well, must not find Sluice's modules.
_PROGRAM = (
    f"import sys; sys.path.insert(0, {IMPORT_ROOT!r}); "
    "from sluice.mps.isolation.launch import main; sys.exit(main(sys.argv[1:]))"
)


def module_environment() -> dict[str, str]:
    """The environment of a process that runs a module of Sluice: it finds the package and has no settings of MPS.

    Libraries that such a process loads report nothing to their makers.
    """
    return environment_without_mps() | TELEMETRY_OFF | {"PYTHONPATH": python_path()}


def launch_command(cores: Sequence[int]) -> list[str]:
    """Return the words to put before a command line so that the command runs on `cores` (none: on any core).

    The command gets SIGTERM when the thread that starts it ends for any reason. A command that cannot be started says
    so on standard error and exits with CANNOT_START.
    """
    return [sys.executable, "-P", "-c", _PROGRAM, str(os.getpid()), ",".join(map(str, cores))]


def end_with_parent(parent: int, signal_number: int) -> bool:
    """Have this process get a signal when the thread that started it ends; False if process `parent` has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number)
    return os.getppid() == parent


def main(arguments: Sequence[str]) -> int:
    """Become the command that follows the parent's process id and the cores; returns only on failure."""
    parent, cores, *command = arguments
    if not end_with_parent(int(parent), signal.SIGTERM):  # the setting survives the exec
        return CANNOT_START
    try:
        if cores:
            pin_to_cores([int(core) for core in cores.split(",")])
        os.execvp(command[0], command)
    except (OSError, PartitionError) as error:
        print(f"cannot start {command[0]}: {error}", file=sys.stderr)
        return CANNOT_START
