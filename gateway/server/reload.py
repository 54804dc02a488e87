"""The files that a running server reads again when it is asked to: configuration, certificate, repository."""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

from sluice.gateway.config.configured_partitions import configured_partitions
from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.config.tls import TlsSettings
from sluice.gateway.deployment.poll import Poll
from sluice.gateway.observability.logs import log
from sluice.models.errors import ConfigError, ServingError
from sluice.mps.partitions.cpu import check_partitions

logger = logging.getLogger(__name__)

CHANGEABLE = ("drain_delay_s", "drain_timeout_s", "poll_s")
"""The keys of the configuration that take effect without a restart."""


class Reload:
    """The configuration in force. `read` reads the configuration as the server did when it started.

    Files are read in a thread of its own, one time after another: those of a file system that hangs cost the requests
    nothing, and do not keep the server from its end.
    """

    def __init__(self, config: ServerConfig, read: Callable[[], ServerConfig], poll: Poll | None) -> None:
        self.config = config
        self._read = read
        self._poll = poll
        self.idle = asyncio.Event()
        """Set while nothing is being read."""
        self.idle.set()
        self._again = False

    def __call__(self) -> None:
        """Read everything again; what is wrong is logged, and what was before stays. To be called on the event loop."""
        if self._poll is not None:
            self._poll.look_soon(self.config.poll_s)
        if not self.idle.is_set():
            self._again = True
            log(logger, logging.INFO, "the configuration is still being read; it is read once more then")
            return
        self.idle.clear()
        self._start()

    def _start(self) -> None:
        loop, tls = asyncio.get_running_loop(), self.config.tls
        threading.Thread(target=self._read_files, args=(loop, tls), name="reload", daemon=True).start()

    def _read_files(self, loop: asyncio.AbstractEventLoop, tls: TlsSettings | None) -> None:
        read = self._read_config(tls)
        if tls is not None:
            _check_certificate(tls)
        with suppress(RuntimeError):  # the loop is closed: the server has ended
            loop.call_soon_threadsafe(self._end, read)

    def _read_config(self, tls: TlsSettings | None) -> ServerConfig | None:
        """The configuration of now, with which a server could start; None if it is wrong."""
        try:
            read = self._read()
            check_partitions(configured_partitions(read))
            if read.tls is not None and read.tls != tls:
                read.tls.ssl_context()
        except (ServingError, OSError) as error:
            log(logger, logging.ERROR, "the old configuration stays", reason=error)
        except Exception as error:
            log(logger, logging.ERROR, "the old configuration stays", reason=f"{type(error).__name__}: {error}")
        else:
            return read
        return None

    def _end(self, read: ServerConfig | None) -> None:
        if read is not None:
            self._take(read)
        if self._again:
            self._again = False
            self._start()
        else:
            self.idle.set()

    def _take(self, read: ServerConfig) -> None:
        changed = [name for name in read.__struct_fields__ if getattr(read, name) != getattr(self.config, name)]
        taken = [name for name in changed if name in CHANGEABLE]
        self.config = msgspec.structs.replace(self.config, **{name: getattr(read, name) for name in taken})
        log(logger, logging.INFO, "configuration read again", changed=",".join(taken) or "nothing")
        if later := [name for name in changed if name not in CHANGEABLE]:
            log(logger, logging.WARNING, "changed keys take effect after a restart", keys=",".join(later))
        if self._poll is not None and "poll_s" in taken:
            self._poll.look_soon(self.config.poll_s)


def _check_certificate(tls: TlsSettings) -> None:
    """The next handshake reads changed files; whether it can is said now."""
    try:
        tls.ssl_context()
    except ConfigError as error:
        log(logger, logging.ERROR, "the old certificate stays", reason=error)
    else:
        log(logger, logging.INFO, "certificate checked; the next handshakes use it")
