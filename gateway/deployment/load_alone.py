"""Loads a model in a process of its own, to see whether it can be loaded; run as `python -m`.

A model may crash or hang the process that loads it.
"""

import os
import subprocess
import sys

import msgspec

from sluice.models.backends.configured import load_backend
from sluice.models.processes import module_environment
from sluice.models.repository.scan import ModelEntry

LOAD_ALONE_TIMEOUT_S = 120.0

_OUTCOME = b"\nsluice: "


class _Order(msgspec.Struct, frozen=True):
    backend: str
    path: str
    config: str


def why_not_loadable(entry: ModelEntry) -> str:
    """The reason why a model cannot be loaded on a CPU; "" if it can. Blocks until its process has ended."""
    order = _Order(entry.backend, str(entry.path), entry.spec.config)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "sluice.gateway.deployment.load_alone"],
            input=msgspec.json.encode(order),
            env=module_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=LOAD_ALONE_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        return f"{entry.path}: the process that loads it cannot be started: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"{entry.path}: was not loaded within {LOAD_ALONE_TIMEOUT_S:g} s"
    _, found, reason = done.stdout.rpartition(_OUTCOME)  # a model may print
    if not found:
        return f"{entry.path}: the process that loaded it ended with status {done.returncode}"
    return reason.decode("utf-8", "replace")


def main() -> None:
    """Read an order from standard input, write the reason to standard output."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=_Order)
    try:
        load_backend(order.backend, order.path, 1, order.config)
        reason = ""
    except BaseException as error:  # a backend may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
    sys.stdout.flush()
    with os.fdopen(1, "wb", closefd=False) as out:
        out.write(_OUTCOME + reason.encode("utf-8", "replace"))
    os._exit(0)  # threads of a model may go on


if __name__ == "__main__":
    main()
