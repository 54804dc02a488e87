"""In which order the clients of an MPS daemon are ended when one of them had a fatal error."""

import asyncio
import threading
from typing import Any, cast

from sluice.models.errors import ControlFailed
from sluice.mps.daemon.control import MpsClient, MpsControl
from sluice.mps.supervisor.fault_domain import end_clients, wait_until_answering

REASON = "CUDA failure 700: an illegal memory access was encountered"


class Worker:
    """Ends when it is closed (`drains`), or when it is killed."""

    def __init__(self, name: str, commands: list[str], *, drains: bool, mortal: bool = True) -> None:
        self.name = name
        self.exited = asyncio.Event()
        self._commands = commands
        self._drains = drains
        self._mortal = mortal

    def close(self, reason: str = "") -> None:
        assert reason == REASON
        self._commands.append(f"drain {self.name}")
        if self._drains:
            self.exited.set()

    def kill(self, reason: str) -> None:
        assert reason == REASON
        self._commands.append(f"kill {self.name}")
        if self._mortal:
            self.exited.set()


class Daemon:
    """The part of a daemon's control that is used; it refuses to terminate the clients of `refusing`."""

    def __init__(self, commands: list[str], pids: tuple[int, ...], refusing: tuple[int, ...] = ()) -> None:
        self._commands = commands
        self._pids = pids
        self._refusing = refusing
        self.dead = False

    def clients(self) -> tuple[MpsClient, ...]:
        if self.dead:
            raise ControlFailed("Cannot find MPS control daemon process")
        return tuple(MpsClient(pid, 7) for pid in self._pids)

    def terminate_client(self, client: MpsClient) -> None:
        self._commands.append(f"terminate_client {client.server} {client.pid}")
        if client.pid in self._refusing:
            raise ControlFailed("there is no such client")


def end(workers: list[Worker], daemon: Daemon, terminate_s: float = 30) -> bool:
    return asyncio.run(end_clients(workers, cast(MpsControl, daemon), REASON, 0.01, terminate_s, kill_s=0.01))


def test_those_that_end_by_themselves_need_no_more() -> None:
    commands: list[str] = []
    assert end([Worker("a", commands, drains=True), Worker("b", commands, drains=True)], Daemon(commands, (1, 2)))
    assert commands == ["drain a", "drain b"]


def test_contexts_are_destroyed_before_the_first_is_killed() -> None:
    commands: list[str] = []
    workers = [Worker(name, commands, drains=name == "b") for name in "abc"]
    assert end(workers, Daemon(commands, (11, 13), refusing=(11,)))
    assert commands[:3] == ["drain a", "drain b", "drain c"]
    assert set(commands[3:5]) == {"terminate_client 7 11", "terminate_client 7 13"}
    assert commands[5:] == ["kill a", "kill c"]


def test_contexts_are_destroyed_at_the_same_time() -> None:
    together = threading.Barrier(3)

    class Slow(Daemon):
        def terminate_client(self, client: MpsClient) -> None:
            together.wait(timeout=60)
            super().terminate_client(client)

    commands: list[str] = []
    assert end([Worker("a", commands, drains=False)], Slow(commands, (11, 12, 13)), terminate_s=60)
    assert set(commands[1:4]) == {f"terminate_client 7 {pid}" for pid in (11, 12, 13)}
    assert commands[4:] == ["kill a"]


def test_a_daemon_that_hangs_is_waited_for_no_longer_than_its_limit() -> None:
    class Hanging(Daemon):
        def __init__(self, commands: list[str]) -> None:
            super().__init__(commands, (11, 12))
            self.killed = threading.Event()

        def terminate_client(self, client: MpsClient) -> None:
            assert self.killed.wait(60), "nobody waits for this"

    class Killed(Worker):
        def kill(self, reason: str) -> None:
            super().kill(reason)
            daemon.killed.set()

    commands: list[str] = []
    daemon = Hanging(commands)
    assert end([Killed("a", commands, drains=False)], daemon, terminate_s=0.01)
    assert commands == ["drain a", "kill a"]


def test_without_the_daemon_they_are_killed_all_the_same() -> None:
    commands: list[str] = []
    daemon = Daemon(commands, (11,))
    daemon.dead = True
    assert end([Worker("a", commands, drains=False)], daemon)
    assert commands == ["drain a", "kill a"]


def test_what_cannot_be_killed_is_reported() -> None:
    commands: list[Any] = []
    assert not end([Worker("a", commands, drains=False, mortal=False)], Daemon(commands, ()))
    assert commands == ["drain a", "kill a"]


def test_a_daemon_that_is_started_again_is_waited_for_but_not_for_ever() -> None:
    class Restarting:
        def __init__(self, refusals: int) -> None:
            self.refusals = refusals

        def ping(self) -> None:
            self.refusals -= 1
            if self.refusals >= 0:
                raise ControlFailed("Cannot find MPS control daemon process")

    assert asyncio.run(wait_until_answering(cast(MpsControl, Restarting(1)), 60))
    assert not asyncio.run(wait_until_answering(cast(MpsControl, Restarting(100)), 0.01))
