"""A front end's end of the socket to the gateway's process."""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sluice.gateway.front_ends.messages import (
    ARRIVAL,
    ARRIVALS_A_MESSAGE,
    FromFrontEnd,
    Particulars,
    Template,
    ToFrontEnd,
    Turn,
)
from sluice.gateway.front_ends.numbers import Numbers
from sluice.gateway.front_ends.templates import SentTemplate
from sluice.models.errors import PartitionError
from sluice.mps.ipc.channel import Channel


class Arrival(NamedTuple):
    """A checked request like a template, which the front end has given a number, and the place of its inputs.

    `budget_ns` is the time that was left at `received_ns`. Most requests have no `particulars`.
    """

    request: int
    template: SentTemplate
    region: int
    offset: int
    budget_ns: int
    received_ns: int
    particulars: Particulars | None


class Link:
    """Sends what a turn of the loop has brought when the turn ends, as soon as the socket has room.

    `arrivals`, `cancelled` and `released` are those of the turn. While the gateway's process does not read, they become
    more, up to the number of open requests. `on_too_long` gets a request that fits into no message.
    """

    def __init__(self, channel: Channel[ToFrontEnd]) -> None:
        self.arrivals: list[Arrival] = []
        self.cancelled: list[int] = []
        self.released: list[int] = []
        self._channel = channel
        self._numbers: Numbers[SentTemplate] = Numbers()
        self._loop = asyncio.get_running_loop()
        self._outgoing: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._due = False
        self.on_too_long: Callable[[int], None]
        self._on_message: Callable[[ToFrontEnd, tuple[int, ...]], None]
        self._on_closed: Callable[[], None]

    @property
    def waiting(self) -> int:
        """Packets that wait until the gateway's process reads."""
        return len(self._outgoing)

    def start(self, on_message: Callable[[ToFrontEnd, tuple[int, ...]], None], on_closed: Callable[[], None]) -> None:
        """Begin to receive: `on_message` gets messages with descriptors, which it then owns.

        `on_closed` is called when the gateway's process has gone.
        """
        self._on_message, self._on_closed = on_message, on_closed
        self._loop.add_reader(self._channel.fileno(), self._receive)

    def send(self, message: FromFrontEnd, fds: Sequence[int] = ()) -> None:
        """Send a message, with copies of `fds`, after those that wait, and before what the turn has brought."""
        *before, last = self._channel.packets(message)
        for packet in before:
            self._outgoing.append((packet, ()))
        self._outgoing.append((last, tuple(os.dup(fd) for fd in fds)))
        self._write()

    def flush_soon(self) -> None:
        """Send what the turn has brought at its end."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Close the socket."""
        if not self._channel.closed:
            self._loop.remove_reader(self._channel.fileno())
            self._loop.remove_writer(self._channel.fileno())
            self._channel.close()

    def _flush(self) -> None:
        self._due = False
        most = ARRIVALS_A_MESSAGE
        while not self._outgoing and (self.arrivals or self.cancelled or self.released):
            arrivals, rest = self.arrivals[:most], self.arrivals[most:]
            # A cancellation follows its arrival.
            done = ((), ()) if rest else (tuple(self.cancelled), tuple(self.released))
            try:
                packets = self._packets(arrivals, *done)
            except PartitionError:  # it is too long
                most = len(arrivals) // 2
                if not most:
                    most = 1
                    self.arrivals = rest
                    self.on_too_long(arrivals[0].request)
                continue
            self.arrivals = rest
            if not rest:
                self.cancelled, self.released = [], []
            self._outgoing += [(each, ()) for each in packets]
            self._write()

    def _packets(
        self, arrivals: Sequence[Arrival], cancelled: tuple[int, ...], released: tuple[int, ...]
    ) -> Sequence[bytes]:
        """The packets of a turn's message. Raises PartitionError if it is too long."""
        numbers, pack = self._numbers, ARRIVAL.pack
        new: list[SentTemplate] = []
        templates: list[Template] = []
        all_particulars: list[Particulars] = []
        records: list[bytes] = []
        for request, template, region, offset, budget_ns, received_ns, particulars in arrivals:
            if numbers.refers(template):
                new.append(template)
                templates.append(template.message())
            position = 0
            if particulars is not None:
                all_particulars.append(particulars)
                position = len(all_particulars)
            records.append(pack(request, template.number, region, offset, budget_ns, received_ns, position))
        turn = Turn(tuple(templates), b"".join(records), tuple(all_particulars), cancelled, released)
        try:
            return self._channel.packets(turn)
        except PartitionError:
            numbers.withdraw(new)
            raise

    def _write(self) -> None:
        if self._channel.closed:
            return
        try:
            while self._outgoing:
                packet, fds = self._outgoing[0]
                if not self._channel.try_send(packet, fds):
                    self._loop.add_writer(self._channel.fileno(), self._writable)
                    return
                self._outgoing.popleft()
                for fd in fds:
                    os.close(fd)
        except OSError:  # the gateway's process has gone, or the system has run out of something
            self._end()

    def _writable(self) -> None:
        self._write()
        if not self._outgoing and not self._channel.closed:
            self._loop.remove_writer(self._channel.fileno())
            self._flush()

    def _receive(self) -> None:
        try:
            for message, fds in self._channel.receive():
                self._on_message(message, fds)
        except (EOFError, PartitionError):
            self._end()

    def _end(self) -> None:
        self.close()
        self._on_closed()
