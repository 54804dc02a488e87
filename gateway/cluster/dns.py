"""Workers that a name of DNS lists, such as the pods of a headless Service of Kubernetes."""

import asyncio
import ipaddress
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from sluice.gateway.cluster.address_source import AddressSource
from sluice.gateway.cluster.source import Placed
from sluice.gateway.observability.logs import log

logger = logging.getLogger(__name__)

INTERVAL_S = 2.0
"""The time between the end of a look-up and the next one."""
MOST_ADDRESSES = 4096
"""The most addresses of an answer that are used."""

LookUp = Callable[[str, int], Sequence[str]]

_NO_ADDRESS = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


def look_up(name: str, port: int) -> list[str]:
    """The addresses of a name as `host:port`, in numerical order; none if the name has none.

    Blocks, as long as the resolver of the system lets it. Raises OSError if no server of DNS answers.
    """
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in _NO_ADDRESS:
            return []
        raise
    hosts = {str(address[0]) for _, _, _, _, address in found}
    return [_with_port(host, port) for host in sorted(hosts, key=_order)]


def _order(host: str) -> tuple[int, int]:
    address = ipaddress.ip_address(host)
    return address.version, int(address)


def _with_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class DnsSource(AddressSource):
    """Places the workers whose addresses a name has. A worker that moves has another address.

    The name is looked up again and again, by a thread: one look-up at a time. An answer without addresses counts, but
    without an answer the known addresses stay.
    """

    def __init__(self, name: str, slots: Sequence[str], host: str, port: int, look_up: LookUp = look_up) -> None:
        super().__init__(name, slots, host)
        self._host = host
        self._port = port
        self._look_up = look_up
        self._task: asyncio.Task[None] | None = None
        self._known: Sequence[str] | None = None
        self._failure = ""

    def start(self, placed: Placed) -> None:
        """Begin to look up the name."""
        super().start(placed)
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """Look up nothing any more; a look-up that is under way is left to end by itself."""
        await super().close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            try:
                found = await _in_thread(lambda: self._look_up(self._host, self._port))
            except (OSError, UnicodeError) as error:
                self._failed(str(error))
            else:
                self._found(found)
            await asyncio.sleep(INTERVAL_S)

    def _failed(self, reason: str) -> None:
        if reason != self._failure:
            self._failure = reason
            log(
                logger,
                logging.WARNING,
                "workers cannot be looked up; the known ones stay",
                host=self._host,
                reason=reason,
            )

    def _found(self, found: Sequence[str]) -> None:
        if self._failure:
            self._failure = ""
            log(logger, logging.INFO, "workers can be looked up again", host=self._host)
        if len(found) > MOST_ADDRESSES:
            found = found[:MOST_ADDRESSES]
        if found == self._known:
            return
        level = logging.INFO if found else logging.WARNING
        log(logger, level, "workers looked up", host=self._host, addresses=len(found))
        self._known = found
        self.offer(found)


async def _in_thread(call: Callable[[], Sequence[str]]) -> Sequence[str]:
    """Run a blocking call in a thread of its own, for which the end of the process does not wait."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Sequence[str]] = loop.create_future()

    def settle(result: Sequence[str] | None, error: Exception | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            assert result is not None
            done.set_result(result)

    def run() -> None:
        result, failure = None, None
        try:
            result = call()
        except Exception as error:
            failure = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="sluice-dns", daemon=True).start()
    return await done
