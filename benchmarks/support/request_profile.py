"""Where the microseconds of a small request go, in the gateway and in its worker.

    python -m benchmarks.support.request_profile [--protocol http|grpc] [--clients N] [--rows N]

The processor time of both processes is measured first, without a profiler. Then the profiler of Python counts the own
time of modules, with that of built-in functions and of the kernel that they call. It is scaled to the time before, but
the profiler slows calls down, so the shares of modules with many calls are too large. It does not see what the event
loop does by itself, such as reading, or what compiled functions call.
"""

import argparse
import os
import pstats
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.support.closed_loop import Closed, drive_grpc, drive_http, grpc_request, http_request
from benchmarks.support.processes import ServerProcess, gateway, pinned, process_cpu_s
from tests.support.models.onnx_models import save_mlp

SERVER_CORE, CLIENT_CORE = 0, 1
CONFIG = f"partitions: [{{name: cpu0, cores: [{SERVER_CORE}]}}]\nmax_batch_size: 64\n"
SECONDS = 2.0
HTTP_REQUEST = http_request("/v2/models/mlp/infer", "x", (1, 64))
GRPC_REQUEST = grpc_request("mlp", "x", (1, 64))
DUMP_TIMEOUT_S = 20.0
BUILT_IN = "~"
"""The file of functions in C."""
PROFILER = """
import cProfile, os, signal, time
profiler, counting = cProfile.Profile(time.process_time), []
def switch(*_):
    if counting:
        profiler.disable()
        path = os.path.join({folder!r}, f"{{os.getpid()}}")
        profiler.dump_stats(path + ".new")
        os.rename(path + ".new", path + ".profile")
    else:
        counting.append(True)
        profiler.enable()
signal.signal(signal.SIGUSR1, switch)
"""
"""Begins to count at the first SIGUSR1, and ends with a file at the second, in every process of the server."""


def profile(server: ServerProcess, folder: Path, drive: Callable[[], Closed], rows: int) -> None:
    """Print the modules of both processes that take the most time."""
    names = dict(zip(server.pids(), ("gateway", "worker"), strict=False))
    drive()
    before = {pid: process_cpu_s(pid) for pid in names}
    plain = drive()
    taken_us = {pid: (process_cpu_s(pid) - before[pid]) / plain.requests * 1e6 for pid in names}
    for pid in names:
        os.kill(pid, signal.SIGUSR1)
    counted = drive()
    for pid in names:
        os.kill(pid, signal.SIGUSR1)
    drive()  # a worker handles the signal with its next batch
    for pid, name in names.items():
        file = folder / f"{pid}.profile"
        until = time.monotonic() + DUMP_TIMEOUT_S
        while not file.exists():
            if time.monotonic() > until:
                raise RuntimeError(f"the {name} has written no profile")
            time.sleep(0.05)
        print_profile(name, pstats.Stats(str(file)), counted.requests, taken_us[pid], rows)


def print_profile(name: str, stats: pstats.Stats, requests: int, taken_us: float, rows: int) -> None:
    """Print the modules of one process with the most own time, scaled so that all of them take `taken_us`."""
    functions: Any = stats.stats  # type: ignore[attr-defined]
    own_s: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for (file, _, function), (_, count, spent_s, _, callers) in functions.items():
        if file != BUILT_IN or not callers:
            module = function if file == BUILT_IN else short(file)
            own_s[module] += spent_s
            calls[module] += count
        else:
            for (caller, _, _), (_, _, part_s, _) in callers.items():
                own_s[short(caller)] += part_s
    print(f"{name}: {taken_us:.1f} us of processor time a request, {calls.total() / requests:.0f} calls in Python")
    for module, spent_s in own_s.most_common(rows):
        print(f"  {spent_s / own_s.total() * taken_us:5.1f} us {calls[module] / requests:5.1f} calls  {module}")


def short(file: str) -> str:
    """A path from the package on, or its last two parts."""
    parts = Path(file).parts
    return "/".join(parts[parts.index("sluice") + 1 :] if "sluice" in parts else parts[-2:])


def main(arguments: Sequence[str] | None = None) -> None:
    """Profile a server on core 0 with a client on core 1."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--protocol", choices=("http", "grpc"), default="http", help="the protocol (http)")
    parser.add_argument("--clients", type=int, default=64, metavar="N", help="requests under way at a time (64)")
    parser.add_argument("--rows", type=int, default=10, metavar="N", help="modules to print (10)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        save_mlp(folder / "mlp.onnx", [64, 128, 128, 10])
        (folder / "sitecustomize.py").write_text(PROFILER.format(folder=str(folder)))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        with gateway(folder, CONFIG, SERVER_CORE, str(folder / "mlp.onnx")) as server, pinned(CLIENT_CORE):

            def drive() -> Closed:
                if options.protocol == "http":
                    return drive_http(server.http_port, HTTP_REQUEST, options.clients, SECONDS)
                return drive_grpc(server.grpc_port, GRPC_REQUEST, options.clients, SECONDS)

            profile(server, folder, drive, options.rows)


if __name__ == "__main__":
    main()
