"""TLS for both protocols, with certificates from PEM files that may change while the server runs."""

import logging
import os
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import grpc
import msgspec

from sluice.models.errors import ConfigError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """PEM files: the server's certificate with its chain, and its key.

    With `client_ca`, clients need a certificate signed by it.
    """

    certificate: str
    key: str
    client_ca: str | None = None

    def ssl_context(self, protocols: Sequence[str] = ()) -> ssl.SSLContext:
        """The TLS context of a server, which offers these protocols (ALPN). Raises ConfigError, which names the file.

        Files that have changed are read at the next handshake; open connections stay.
        """
        files = _ReadFiles(self._files, partial(self._ssl_context, protocols))
        context = files.value

        def choose(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
            connection.context = files.latest() or files.value

        context.sni_callback = choose
        return context

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """The credentials of the gRPC server. Raises ConfigError, which names the file. Otherwise as `ssl_context`."""
        files = _ReadFiles(self._files, self._grpc_configuration)
        return grpc.dynamic_ssl_server_credentials(
            files.value,
            files.latest,  # type: ignore[arg-type]  # None is for files that have not changed
            require_client_authentication=self.client_ca is not None,
        )

    def _ssl_context(self, protocols: Sequence[str] = ()) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if protocols:
            context.set_alpn_protocols(protocols)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        for file in self._files:
            _read(file)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            raise ConfigError(
                f"tls: {self.certificate} and {self.key} must be a certificate and its key in PEM: {error}"
            ) from error
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as error:
                raise ConfigError(f"tls: {self.client_ca} must hold certificates in PEM: {error}") from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _grpc_configuration(self) -> grpc.ServerCertificateConfiguration:
        self._ssl_context()  # which checks the files; gRPC would report no reason
        authority = None if self.client_ca is None else _read(self.client_ca)
        return grpc.ssl_server_certificate_configuration([(_read(self.key), _read(self.certificate))], authority)

    @property
    def _files(self) -> tuple[str, ...]:
        return self.certificate, self.key, *(() if self.client_ca is None else (self.client_ca,))


class _ReadFiles(Generic[T]):
    """A value that is read from files, and read again when they have changed. Raises ConfigError the first time."""

    def __init__(self, files: tuple[str, ...], read: Callable[[], T]) -> None:
        self._files = files
        self._read = read
        self._stamps = self._now()
        self.value = read()

    def latest(self) -> T | None:
        """The new value if the files have changed and are right; None otherwise. Wrong files are logged once."""
        stamps = self._now()
        if stamps == self._stamps:
            return None
        self._stamps = stamps
        try:
            self.value = self._read()
        except ConfigError as error:
            logger.error("the old certificate stays", extra={"fields": {"reason": error}})
            return None
        logger.info("certificate read again", extra={"fields": {"files": ",".join(self._files)}})
        return self.value

    def _now(self) -> list[tuple[int, int, int] | None]:
        """The marks by which a change of a file is noticed; None for a file that is not there."""
        return [_stamp(file) for file in self._files]


def _stamp(file: str) -> tuple[int, int, int] | None:
    try:
        about = os.stat(file)
    except OSError:
        return None
    return about.st_ctime_ns, about.st_size, about.st_ino


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"tls: {file} cannot be read: {error.strerror}") from error
