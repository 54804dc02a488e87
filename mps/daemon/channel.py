"""Runs commands of an MPS control daemon through the program that NVIDIA's driver brings for it."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from sluice.models.errors import ControlFailed
from sluice.mps.daemon.processes import PROGRAM
from sluice.mps.isolation.mps_environment import environment_without_mps

TIMEOUT_S = 10.0
"""Time limit of a command."""

_SHOWN = 400
"""Most characters of a program's output in an error message."""


def mps_variables(pipes: Path, logs: Path | None = None) -> dict[str, str]:
    """This process's environment with the daemon of that directory and no other setting of MPS."""
    found = environment_without_mps() | {"CUDA_MPS_PIPE_DIRECTORY": str(pipes)}
    return found if logs is None else found | {"CUDA_MPS_LOG_DIRECTORY": str(logs)}


class NoAnswer(ControlFailed):
    """The daemon has not answered in time: it may be busy, or hang."""


class MpsChannel:
    """The daemon that listens in `pipes`, which need not exist yet; every command starts a short process."""

    def __init__(self, pipes: Path, program: str = PROGRAM, timeout_s: float = TIMEOUT_S) -> None:
        self.pipes = pipes
        self._program = program
        self._timeout_s = timeout_s

    def send(self, command: str, timeout_s: float | None = None) -> str:
        """Send a command of protocol 2, which the program reads, and return the answer; raises ControlFailed."""
        return run_program(
            (self._program,), f"{command}\n", command, mps_variables(self.pipes), timeout_s or self._timeout_s
        )

    def call(self, *arguments: str, timeout_s: float | None = None) -> str:
        """Run a command of protocol 3, given as arguments, and return the answer; raises ControlFailed."""
        command = (self._program, *arguments)
        return run_program(command, "", " ".join(arguments), mps_variables(self.pipes), timeout_s or self._timeout_s)


def run_program(command: Sequence[str], text: str, name: str, environment: Mapping[str, str], timeout_s: float) -> str:
    """Return the output of a program that reads `text`; raises ControlFailed, with the output, if it fails."""
    try:
        done = subprocess.run(
            command,
            input=text,
            env=environment,
            timeout=timeout_s,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"MPS command '{name}': no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise ControlFailed(f"MPS command '{name}': {command[0]} cannot be run: {error.strerror}") from None
    output = done.stdout.strip()
    if done.returncode:
        raise ControlFailed(f"MPS command '{name}' failed with status {done.returncode}: {quoted_output(output)}")
    return output


def unexpected_answer(name: str, output: str, expected: str) -> ControlFailed:
    """The error of an answer that the command does not define."""
    return ControlFailed(f"MPS command '{name}' answered {quoted_output(output)}, expected {expected}")


def quoted_output(output: str) -> str:
    """A program's output as part of a sentence."""
    text = " | ".join(line.strip() for line in output.splitlines() if line.strip())
    return f"'{text[:_SHOWN]}'" if text else "nothing"
