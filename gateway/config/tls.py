"""TLS for both protocols, with certificates from PEM files."""

import ssl
from pathlib import Path

import grpc
import msgspec

from sluice.models.errors import ConfigError


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """PEM files: the server's certificate with its chain, and its key.

    With `client_ca`, clients need a certificate signed by it.
    """

    certificate: str
    key: str
    client_ca: str | None = None

    def ssl_context(self) -> ssl.SSLContext:
        """The TLS context of the HTTP server. Raises ConfigError, which names the file."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
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

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """The credentials of the gRPC server. Raises ConfigError, which names the file."""
        authority = None if self.client_ca is None else _read(self.client_ca)
        return grpc.ssl_server_credentials(
            [(_read(self.key), _read(self.certificate))], authority, require_client_auth=authority is not None
        )

    @property
    def _files(self) -> tuple[str, ...]:
        return self.certificate, self.key, *(() if self.client_ca is None else (self.client_ca,))


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"tls: {file} cannot be read: {error.strerror}") from error
