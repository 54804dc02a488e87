"""The files that a running server reads again when it is asked to: configuration, certificate, repository."""

import logging
from collections.abc import Callable

import msgspec

from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.deployment.poll import Poll
from sluice.gateway.observability.logs import log
from sluice.models.errors import ConfigError

logger = logging.getLogger(__name__)

CHANGEABLE = ("drain_timeout_s", "poll_s")
"""The keys of the configuration that take effect without a restart."""


class Reload:
    """The configuration in force. `read` reads the configuration as the server did when it started."""

    def __init__(self, config: ServerConfig, read: Callable[[], ServerConfig], poll: Poll | None) -> None:
        self.config = config
        self._read = read
        self._poll = poll

    def __call__(self) -> None:
        """Read everything again; what is wrong is logged, and what was before stays."""
        try:
            read = self._read()
        except (ConfigError, OSError) as error:
            log(logger, logging.ERROR, "the old configuration stays", reason=error)
        else:
            self._take(read)
        self._check_certificate()
        if self._poll is not None:
            self._poll.look_soon(self.config.poll_s)

    def _take(self, read: ServerConfig) -> None:
        changed = [name for name in read.__struct_fields__ if getattr(read, name) != getattr(self.config, name)]
        taken = [name for name in changed if name in CHANGEABLE]
        self.config = msgspec.structs.replace(self.config, **{name: getattr(read, name) for name in taken})
        log(logger, logging.INFO, "configuration read again", changed=",".join(taken) or "nothing")
        if later := [name for name in changed if name not in CHANGEABLE]:
            log(logger, logging.WARNING, "changed keys take effect after a restart", keys=",".join(later))

    def _check_certificate(self) -> None:
        """The next handshake reads changed files; whether it can is said now."""
        if self.config.tls is None:
            return
        try:
            self.config.tls.ssl_context()
        except ConfigError as error:
            log(logger, logging.ERROR, "the old certificate stays", reason=error)
        else:
            log(logger, logging.INFO, "certificate checked; the next handshakes use it")
