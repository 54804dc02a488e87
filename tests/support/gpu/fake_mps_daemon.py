"""The fake `nvidia-cuda-mps-control`: the daemon with its sockets and processes, and the client program.

The variable FAKE_MPS holds settings as JSON: `sms`, `memory_mib`, `max_clients`; the `protocols` that it supports;
`without` lists features that older drivers lack (`static`); `start` is `die` or `hang`. The command `_inject` is added
to the real ones: `die`, `hang`, `refuse`, `fault`, `wedge PID`.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.gpu.fake_mps_commands import Answer, Commands
from tests.support.gpu.fake_mps_state import RPC_FAILURE, FakeClient, FakeServer, FakeState

SERVER = "nvidia-cuda-mps-server"
NOT_FOUND = "Cannot find MPS control daemon process"
RUNNING = "An instance of this daemon is already running"


def settings() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(os.environ.get("FAKE_MPS", "{}"))
    return found


def pipes() -> Path:
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))


def connected(directory: Path) -> socket.socket | None:
    """A connection to the daemon of a directory; None when no daemon runs."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(str(directory / "control"))
    except OSError:
        connection.close()
        return None
    return connection


def ask(connection: socket.socket, question: dict[str, Any]) -> dict[str, Any]:
    """Send one line of JSON and read one."""
    connection.sendall(json.dumps(question).encode() + b"\n")
    answer = b""
    while not answer.endswith(b"\n"):
        if not (part := connection.recv(65536)):
            return {"out": "", "rc": 1}
        answer += part
    found: dict[str, Any] = json.loads(answer)
    return found


class Daemon:
    """The daemon process: sockets, server processes, and clients that wait for a server."""

    def __init__(self, *, static: bool, protocol: int) -> None:
        self._state = FakeState(os.environ.get("CUDA_VISIBLE_DEVICES", ""), settings(), static=static)
        self._commands = Commands(self._state, self._start_server, _lose, self._stop)
        self._protocol = protocol
        self._selector = selectors.DefaultSelector()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._clients: dict[socket.socket, FakeClient] = {}
        self._waiting: list[tuple[dict[str, Any], socket.socket]] = []
        self._running = True
        self._mute = False
        self._refusing = False

    def run(self, listener: socket.socket) -> None:
        _log(f"Starting control daemon using socket {pipes() / 'control'}")
        _log(f"To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={pipes()}")
        _log("CUDA MPS Control binary version: 13000")
        signal.signal(signal.SIGTERM, lambda number, frame: self._stop())
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))
        while self._running:
            for key, _ in self._selector.select(0.2):
                key.data()
        for process in self._processes.values():
            process.terminate()
            process.wait()
        for client in self._clients.values():
            _lose(client, RPC_FAILURE)

    def _stop(self) -> None:
        self._running = False

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(connection))

    def _read(self, connection: socket.socket) -> None:
        """Read a request; requests are short and arrive in one piece."""
        try:
            data = connection.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._forget(connection)
        elif not self._mute:
            self._take(json.loads(data), connection)

    def _take(self, question: dict[str, Any], connection: socket.socket) -> None:
        match question["op"]:
            case "command":
                answer = self._answer(question)
                _log("Accepting connection...")
                _log("NEW UI")
                _log(f"Cmd:{question.get('line') or ' '.join(question['argv'])}")
                if answer is not None:
                    for line in answer[0].splitlines():
                        _log(line)
                    _log("UI closed")
                    _reply(connection, {"out": answer[0], "rc": answer[1]})
            case "connect":
                self._waiting.append((question, connection))
                _log("Accepting connection...")
                server = self._state.server_of(question["uid"])
                ready = server is not None and server.status != "INITIALIZING"
                what = "Server already exists" if ready else "Server is not ready, push client to pending list"
                _log(f"NEW CLIENT {question['pid']} from user {question['uid']}: {what}")
                self._start_server(question["uid"])
                self._admit()
            case "allocate":
                _reply(connection, {"granted": self._state.allocate(self._clients[connection], question["bytes"])})

    def _answer(self, question: dict[str, Any]) -> Answer | None:
        arguments: list[str] = question.get("argv", [])
        line = question.get("line") or " ".join(arguments)
        if line.startswith("_inject"):
            self._mute, self._refusing = "hang" in line, "refuse" in line
            if "die" in line:
                os._exit(1)
            if "fault" in line:
                _log("Server is handling a fatal GPU error")
        elif self._refusing:
            return "Insufficient permissions", 1
        elif bool(arguments) != (self._protocol == 3):
            return f"Unknown command {line}", 1
        return self._commands.call(arguments) if arguments else self._commands.say(line)

    def _start_server(self, uid: int) -> None:
        if self._state.server_of(uid) is not None:
            return
        path = str(Path(sys.argv[0]).parent / SERVER)
        process = subprocess.Popen([path], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        server = self._state.new_server(process.pid, uid)
        self._processes[process.pid] = process
        _log(f"Starting new server {process.pid} for user {uid}")
        assert process.stdout is not None
        self._selector.register(process.stdout, selectors.EVENT_READ, lambda: self._heard(server, process))

    def _heard(self, server: FakeServer, process: "subprocess.Popen[bytes]") -> None:
        """Handle output of a server (it is ready) or its end."""
        assert process.stdout is not None
        if os.read(process.stdout.fileno(), 100):
            if server.status == "INITIALIZING":  # its output may arrive in two pieces
                server.status = "ACTIVE"
                _log(f"NEW SERVER {server.pid}: Ready")
                self._admit()
            return
        self._selector.unregister(process.stdout)
        _log(f"Server {server.pid} exited with status {process.wait()}")
        del self._state.servers[server.pid], self._processes[server.pid]
        for client in server.clients:
            _lose(client, RPC_FAILURE)
        for wish, connection in self._waiting:
            if wish["uid"] == server.uid:
                _reply(connection, {"error": RPC_FAILURE})
        self._waiting = [each for each in self._waiting if each[0]["uid"] != server.uid]

    def _admit(self) -> None:
        waiting, self._waiting = self._waiting, []
        for wish, connection in waiting:
            server = self._state.server_of(wish["uid"])
            if server is None or server.status == "INITIALIZING":
                self._waiting.append((wish, connection))
                continue
            client = self._state.admit(server, wish, connection)
            if isinstance(client, int):
                _reply(connection, {"error": client})
                continue
            self._clients[connection] = client
            _log(f"Status of client {{PID: {client.pid}, Context ID: 1}} is ACTIVE")
            _reply(connection, {"error": 0, "sms": client.sms, "limit": client.limit, "server": server.pid})

    def _forget(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self._waiting = [each for each in self._waiting if each[1] is not connection]
        if (client := self._clients.pop(connection, None)) is not None:
            self._state.leave(client)
            _log(f"Client process {client.pid} disconnected")
        connection.close()


def _lose(client: FakeClient, error: int) -> None:
    _reply(client.connection, {"error": error})


def _reply(connection: socket.socket, answer: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the client has ended
        connection.sendall(json.dumps(answer).encode() + b"\n")


def _log(text: str) -> None:
    now = time.time()
    stamp = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))}.{int(now * 1000) % 1000:03d}"
    print(f"[{stamp} Control {os.getpid():>5}] {text}", flush=True)


def start(arguments: list[str]) -> int:
    """Run the daemon, in the foreground with -f."""
    known = settings()
    static = any(flag in arguments for flag in ("-S", "--static-partitioning"))
    protocol = int(arguments[arguments.index("-p") + 1]) if "-p" in arguments else 2
    protocol = int(os.environ.get("CUDA_MPS_PROTOCOL_VERSION", protocol))
    if (static and "static" in known.get("without", ())) or protocol not in known.get("protocols", (2, 3)):
        print("Unrecognized option \0\nCUDA MPS Control for Linux/Unix/QNX.")
        return 0
    directory = pipes()
    directory.mkdir(parents=True, exist_ok=True)
    if (other := connected(directory)) is not None:
        other.close()
        print(RUNNING)
        return 1
    if known.get("start") == "die":
        print("Failed to start : invalid argument")
        return 1
    if known.get("start") == "hang":
        signal.pause()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (directory / "control").unlink(missing_ok=True)
    try:
        listener.bind(str(directory / "control"))
    except OSError:  # the path is too long: the real daemon also ends silently
        return 1
    listener.listen(64)
    if "-f" not in arguments and os.fork():
        return 0
    (directory / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")
    if "-f" not in arguments:
        os.setsid()
        log = os.open(f"{os.environ.get('CUDA_MPS_LOG_DIRECTORY', directory)}/control.log", os.O_CREAT | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
    Daemon(static=static, protocol=protocol).run(listener)
    for name in ("control", "nvidia-cuda-mps-control.pid"):
        (directory / name).unlink(missing_ok=True)
    return 0


def control(arguments: list[str]) -> int:
    """Run the program: a daemon with -d or -f, else a client of one."""
    if any(flag in arguments for flag in ("-d", "-f")):
        return start(arguments)
    if arguments == ["-v"]:
        print("CUDA MPS Control for Linux/Unix/QNX. Binary version: 13000")
        print("Copyright (C) 2003 - 2025 NVIDIA Corporation.\n")
        return 0
    status = 0
    lines = [""] if arguments else sys.stdin.read().splitlines()
    for line in lines:
        connection = connected(pipes())
        if connection is None:
            print(NOT_FOUND, file=sys.stderr)
            return 1
        with connection:
            question = {"op": "command", "argv": arguments} if arguments else {"op": "command", "line": line}
            answer = ask(connection, question)
        if answer["out"]:
            print(answer["out"])
        status = status or answer["rc"]
    return int(status)
