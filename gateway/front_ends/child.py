"""Starts the process of a front end."""

import os

from sluice.mps.supervisor.child import ChildProcess, launch_module


def launch_front_end() -> ChildProcess:
    """Start a front end on this machine. Raises OSError, and leaves nothing behind then."""
    return launch_module("sluice.gateway.front_ends.main", [str(os.getpid())])
