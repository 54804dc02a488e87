"""The parts of the check that need MPS; each fills in its findings, and raises when it cannot continue."""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from card import used_mib
from client import Client, together
from daemon import Daemon, find_program
from record import Skipped, run

SHARES = (10, 20, 25, 40, 50, 60, 80, 100)
COUNTED = (1, 2, 3, 5, 7, 9, 11, 13, 15, 17, 19, 30, 33, 35, 45, 55, 65, 67, 70, 75, 90, 95, 97, 99)
"""More shares of which only the multiprocessors are counted."""
AT_A_TIME = 4
BATCHES = (1, 4, 16, 64)
PAIRS: tuple[tuple[int, ...], ...] = ((50, 50), (30, 70), (100, 100))
PAIR_BATCHES = (4, 32)
LIMIT_MIB = 2048
QUESTIONS = (
    "get_server_list",
    "get_default_active_thread_percentage",
    "get_default_device_pinned_mem_limit 0",
    "get_default_client_priority",
    "ps",
    "get_device_client_list",
    "device_query --csv",
    "lspart",
    "get_server_status 4194304",
    "no_such_command",
    "help",
)
SERVER_QUESTIONS = (
    "get_server_status {}",
    "get_client_list {}",
    "get_device_client_list {}",
    "ps -p {}",
    "get_active_thread_percentage {}",
    "get_device_pinned_mem_limit {} 0",
)

SETTINGS = (
    "set_default_active_thread_percentage 50",
    "get_default_active_thread_percentage",
    "set_default_active_thread_percentage 100",
    "set_default_device_pinned_mem_limit 0 8G",
    "get_default_device_pinned_mem_limit 0",
)
"""For a daemon that is stopped afterwards."""
REFUSED = (
    "get_client_list 4194304",
    "get_active_thread_percentage 4194304",
    "set_active_thread_percentage {server} 0",
    "terminate_client {server} 4194304",
    "terminate_client 4194304 4194304",
    "sm_partition add {device} 4",
)
"""Commands that a daemon with a server cannot carry out."""

Findings = dict[str, Any]


class Bench:
    """Shared state of the parts: the card, the control program, a daemon for most parts, and the time limit."""

    def __init__(self, device: str, program: str | None, nvml: Any, save: Callable[[], Any], *, fake: bool) -> None:
        self.device = device
        self.nvml = nvml
        self.save = save
        self.fake = fake
        self.end = 0.0
        self._given = program
        self._daemon: Daemon | None = None

    @property
    def program(self) -> str:
        """Path of the control program; raises Skipped where there is none."""
        return find_program(self._given)

    @property
    def daemon(self) -> Daemon:
        """The daemon that parts share; the first use starts it."""
        if self._daemon is None:
            daemon = Daemon(self.program, self.device)
            try:
                daemon.start()
                daemon.server()
            except BaseException:
                daemon.stop()
                raise
            self._daemon = daemon
        return self._daemon

    def stop(self) -> Findings | None:
        """Stop the shared daemon, if it runs."""
        daemon, self._daemon = self._daemon, None
        return None if daemon is None else daemon.stop()

    @contextmanager
    def client(
        self, share: int | None = None, daemon: Daemon | None = None, kind: str = "torch", **more: str
    ) -> Iterator[Client]:
        """Run a worker with a share under the daemon, or without MPS when neither is given."""
        if share is not None:
            daemon = daemon or self.daemon
            more["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(share)
        nowhere = {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent", "CUDA_VISIBLE_DEVICES": self.device}
        client = Client((daemon.variables if daemon else nowhere) | more, daemon, "fake" if self.fake else kind)
        try:
            yield client
        finally:
            client.close()

    def has(self, seconds: float) -> bool:
        """True when so much time is left."""
        return time.monotonic() + seconds < self.end


def transcript(bench: Bench, found: Findings) -> None:
    """Answers of every command: without a daemon, without a server, without a client, and with each."""
    daemon = Daemon(bench.program, bench.device)
    try:
        found["flags"] = [run([bench.program, flag], env=daemon.environment) for flag in ("-v", "-h")]
        found["no_daemon"] = daemon.say("get_server_list")
        found["start"] = daemon.start()
        found["no_server"] = [daemon.say(question) for question in QUESTIONS]
        found["start_server"] = daemon.say(f"start_server -uid {os.getuid()}", 20)
        begun = time.monotonic()
        server = daemon.server()
        found["server_active_s"] = round(time.monotonic() - begun, 3)
        asked = [question.format(server) for question in SERVER_QUESTIONS]
        found["no_client"] = [daemon.say(question) for question in asked]
        bench.save()
        with bench.client(100, daemon) as client:
            found["client"] = client.hello
            found["one_client"] = [daemon.say(question) for question in (*QUESTIONS[:8], *asked)]
            found["attached"] = str(client.pid) in daemon.say(f"get_client_list {server}")["out"].split()
        found["client_gone"] = daemon.say(f"get_client_list {server}")
        found["refused"] = [daemon.say(each.format(server=server, device=bench.device)) for each in REFUSED]
        found["settings"] = [daemon.say(each) for each in SETTINGS]
        found["second_daemon"] = run([bench.program, "-d"], env=daemon.environment)
    finally:
        found["stop"] = daemon.stop()


def sweep(bench: Bench, found: Findings) -> None:
    """Multiprocessors, memory and latencies by share, and without MPS."""
    rows = found["rows"] = []
    counts = found["multiprocessors"] = {}
    for at in range(0, len(COUNTED), AT_A_TIME):
        with ExitStack() as stack:
            some = COUNTED[at : at + AT_A_TIME]
            clients = [(share, stack.enter_context(bench.client(share, kind="driver"))) for share in some]
            counts.update({share: client.hello for share, client in clients})
    for share in (None, *SHARES):
        if not bench.has(12):
            found["cut"] = "no time left"
            return
        row: Findings = {"share": share, "used_mib_before": used_mib(bench.nvml)}
        rows.append(row)
        with bench.client(share) as client:
            row["hello"] = client.hello
            row["used_mib"] = used_mib(bench.nvml)
            if client.hello["ok"]:
                row["latency"] = {batch: client.ask("latency", batch=batch, seconds=0.6) for batch in BATCHES}
            row["used_mib_after"] = used_mib(bench.nvml)
        bench.save()
    # Find out if the variable has an effect without a daemon.
    with bench.client(None, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25") as client:
        found["share_25_without_daemon"] = client.hello


def memory(bench: Bench, found: Findings) -> None:
    """The visible memory under a limit, and the error of an allocation beyond it."""
    with bench.client(100, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=f"0={LIMIT_MIB}M") as client:
        found["hello"] = client.hello
        found["within"] = client.ask("allocate", mib=LIMIT_MIB // 4)
        found["beyond"] = client.ask("allocate", mib=2 * LIMIT_MIB)
        found["after"] = client.ask("check")
    daemon = bench.daemon
    server = daemon.server()
    found["set_server_limit"] = [
        daemon.say(command)
        for command in (f"set_device_pinned_mem_limit {server} 0 4G", f"get_device_pinned_mem_limit {server} 0")
    ]
    with bench.client(100) as client:
        found["server_limit"] = client.ask("allocate", mib=3 * LIMIT_MIB)
    found["stop"] = bench.stop()  # the limit would apply to later parts


def pairs(bench: Bench, found: Findings) -> None:
    """Two workers alone and together, with and without MPS."""
    rows = found["rows"] = []
    cases = [(*pair, True) for pair in PAIRS] + [(100, 100, False)]
    for first, second, with_mps in cases:
        if not bench.has(25):
            found["cut"] = "no time left"
            return
        with ExitStack() as stack:
            both = [stack.enter_context(bench.client(share if with_mps else None)) for share in (first, second)]
            for batch in PAIR_BATCHES:
                row: Findings = {"shares": (first, second), "mps": with_mps, "batch": batch}
                rows.append(row)
                if not all(client.hello["ok"] for client in both):
                    row["failed"] = [client.hello for client in both]
                    continue
                row["sms"] = [client.hello["sms"] for client in both]
                row["alone"] = [together([client], batch, 1.0)[0] for client in both]
                row["together"] = together(both, batch, 2.0)
        bench.save()


def live_change(bench: Bench, found: Findings) -> None:
    """Change a server's percentage while it has a client, and measure old and new clients."""
    daemon = bench.daemon
    server = daemon.server()
    with bench.client(100) as old:
        found["old_before"] = old.ask("latency", batch=32, seconds=0.5)
        found["set"] = daemon.say(f"set_active_thread_percentage {server} 25")
        found["get"] = daemon.say(f"get_active_thread_percentage {server}")
        found["old_after"] = old.ask("latency", batch=32, seconds=0.5)
        with bench.client(100) as new:
            found["new"] = {"hello": new.hello, "latency": new.ask("latency", batch=32, seconds=0.5)}
        found["old_hello"] = old.hello
    found["reset"] = daemon.say(f"set_active_thread_percentage {server} 100")


def terminate(bench: Bench, found: Findings) -> None:
    """Destroy a client's contexts: the client sees an error, and its neighbour does not."""
    daemon = bench.daemon
    with bench.client(50) as victim, bench.client(50) as neighbour:
        found["before"] = [client.ask("check") for client in (victim, neighbour)]
        found["terminate"] = daemon.say(f"terminate_client {daemon.server()} {victim.pid}")
        found["victim"] = victim.ask("check")
        found["neighbour"] = neighbour.ask("check")
        found["clients"] = daemon.say(f"get_client_list {daemon.server()}")


def static_sets(bench: Bench, found: Findings) -> None:
    """Static sets of multiprocessors: support by the driver, and the answers of their commands."""
    found["stop"] = bench.stop()
    daemon = Daemon(bench.program, bench.device, ("-S",))
    try:
        try:
            found["start"] = daemon.start()
        except RuntimeError as error:
            raise Skipped(f"the daemon does not start with -S: {str(error)[:300]}") from None
        found["empty"] = daemon.say("lspart")
        found["add"] = daemon.say(f"sm_partition add {bench.device} 4", 30)
        found["add_too_many"] = daemon.say(f"sm_partition add {bench.device} 999", 30)
        found["listed"] = daemon.say("lspart")
        name = re.search(r"(?:GPU|MIG)-[^\s/]+/\S+", found["add"]["out"])
        if name is None:
            raise Skipped("sm_partition add created no set")
        with bench.client(None, daemon, CUDA_MPS_SM_PARTITION=name[0]) as client:
            found["inside"] = client.hello
            found["inside_latency"] = client.ask("latency", batch=16, seconds=0.5) if client.hello["ok"] else None
            found["used"] = daemon.say("lspart")
            found["remove_used"] = daemon.say(f"sm_partition rm {name[0].replace('/', ' ', 1)}")
        with bench.client(None, daemon) as client:
            found["without_variable"] = client.hello
        found["remove"] = daemon.say(f"sm_partition rm {name[0].replace('/', ' ', 1)}")
    finally:
        found["stop_static"] = daemon.stop()
