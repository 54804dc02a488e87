"""A network between this machine and nodes that are network namespaces of it, which can be slow, lossy or cut.

Each end has a TUN device, and packets go from one to the other through this process. So nothing is needed of the kernel
but namespaces and TUN devices.
"""

import fcntl
import heapq
import itertools
import os
import random
import selectors
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from tests.support.tools import require_tool

GATEWAY = "10.219.0.1"
"""The address of this machine."""
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_MOST_PACKET = 1 << 16
_LOOK_S = 0.02


class Way(NamedTuple):
    """The fate of packets in one direction: they come `delay_s` later, and a part of them, `loss`, not at all."""

    delay_s: float = 0.0
    loss: float = 0.0


CUT = Way(loss=1.0)
"""No packet arrives."""


class Network:
    """Nodes 1, 2 and so on, with the addresses `10.219.N.1` to `10.219.N.9`; all packets go by `to` and `back`.

    `to` and `back` are the ways from this machine to a node and back, by the number of the node.
    """

    def __init__(self, nodes: int) -> None:
        self._ip = require_tool("ip")
        if os.geteuid():
            raise PermissionError("network namespaces need root")
        self.to: dict[int, Way] = {}
        self.back: dict[int, Way] = {}
        self._names = {node: f"sluice-{os.getpid()}-{node}" for node in range(1, nodes + 1)}
        self._tuns: dict[int, int] = {}
        self._late: list[tuple[float, int, int, bytes]] = []
        self._numbers = itertools.count()
        self._random = random.Random(7)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._forward)

    def within(self, node: int) -> Sequence[str]:
        """A command that runs another one on a node."""
        return [self._ip, "netns", "exec", self._names[node]]

    @staticmethod
    def address(node: int, number: int = 1) -> str:
        """An address of a node."""
        return f"10.219.{node}.{number}"

    def cut(self, node: int, *, to: bool = True, back: bool = True) -> None:
        """Drop all packets to a node, from it, or both."""
        if to:
            self.to[node] = CUT
        if back:
            self.back[node] = CUT

    def mend(self) -> None:
        """Let all packets arrive at once again."""
        self.to.clear()
        self.back.clear()

    def open(self) -> None:
        """Make the devices and the namespaces."""
        self._tuns[0] = self._device(f"slt{os.getpid() % 100_000}", None, [f"{GATEWAY}/16"])
        for node, name in self._names.items():
            self._run("netns", "add", name)
            addresses = [f"{self.address(node, number)}/16" for number in range(1, 10)]
            self._tuns[node] = self._device(f"slt{os.getpid() % 100_000}n{node}", name, addresses)
        self._thread.start()

    def close(self) -> None:
        """Remove them again."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        for fd in self._tuns.values():
            os.close(fd)
        for name in self._names.values():
            subprocess.run([self._ip, "netns", "del", name], check=False, capture_output=True)

    def _device(self, name: str, namespace: str | None, addresses: Sequence[str]) -> int:
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
        inside: list[str] = []
        if namespace is not None:
            self._run("link", "set", name, "netns", namespace)
            inside = ["-n", namespace]
            self._run(*inside, "link", "set", "lo", "up")
        for address in addresses:
            self._run(*inside, "address", "add", address, "dev", name)
        self._run(*inside, "link", "set", name, "up")
        return fd

    def _run(self, *arguments: str) -> None:
        subprocess.run([self._ip, *arguments], check=True, capture_output=True)

    def _forward(self) -> None:
        """Carry packets until the network is closed."""
        with selectors.DefaultSelector() as selector:
            for node, fd in self._tuns.items():
                selector.register(fd, selectors.EVENT_READ, node)
            while not self._stopping.is_set():
                next_s = self._late[0][0] - time.monotonic() if self._late else _LOOK_S
                for key, _ in selector.select(min(max(next_s, 0), _LOOK_S)):
                    self._read(key.data, key.fd)
                while self._late and self._late[0][0] <= time.monotonic():
                    _, _, node, packet = heapq.heappop(self._late)
                    self._write(node, packet)

    def _read(self, source: int, fd: int) -> None:
        while True:
            try:
                packet = os.read(fd, _MOST_PACKET)
            except BlockingIOError:
                return
            if len(packet) < 20 or packet[0] >> 4 != 4:
                continue
            address = socket.inet_ntoa(packet[16:20])
            target = 0 if address == GATEWAY else int(address.split(".")[2])
            way = self.to.get(target, Way()) if source == 0 else self.back.get(source, Way())
            if target not in self._tuns or self._random.random() < way.loss:
                continue
            if way.delay_s:
                heapq.heappush(self._late, (time.monotonic() + way.delay_s, next(self._numbers), target, packet))
            else:
                self._write(target, packet)

    def _write(self, node: int, packet: bytes) -> None:
        with suppress(OSError):  # a full queue drops packets, as elsewhere
            os.write(self._tuns[node], packet)


@contextmanager
def network(nodes: int) -> Iterator[Network]:
    """A network until the block ends. Skips the test, or fails it, where it cannot be made."""
    made = Network(nodes)
    try:
        made.open()
        yield made
    finally:
        made.close()
