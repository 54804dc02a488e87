"""TLS of clients: whom they trust, and the certificate by which a server knows them."""

import ssl
from pathlib import Path
from typing import NamedTuple

from sluice.models.errors import ConfigError


class ClientTls(NamedTuple):
    """PEM files of a client: authorities that it trusts ("": those of the system), its certificate and its key.

    The key may be in the file of the certificate.
    """

    cacert: str = ""
    cert: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        """The TLS context. Raises ConfigError, which names the option of the wrong file."""
        self._check()
        try:
            context = ssl.create_default_context(cafile=self.cacert or None)
        except (OSError, ValueError) as error:
            raise ConfigError(f"--cacert {self.cacert}: expected certificates in PEM: {_reason(error)}") from error
        if self.cert:
            try:
                # Without a password; else OpenSSL would ask for it on the terminal.
                context.load_cert_chain(self.cert, self.key or None, password="")
            except (OSError, ValueError) as error:
                files = f"--cert {self.cert} --key {self.key}" if self.key else f"--cert {self.cert}"
                raise ConfigError(f"{files}: expected a certificate and its key in PEM: {_reason(error)}") from error
        return context

    def pem(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """The authorities, the key and the certificate as gRPC takes them. Raises ConfigError as `context`."""
        self.context()  # which checks the files; gRPC would report no reason
        authorities = Path(self.cacert).read_bytes() if self.cacert else _system_authorities()
        if not self.cert:
            return authorities, None, None
        return authorities, Path(self.key or self.cert).read_bytes(), Path(self.cert).read_bytes()

    def _check(self) -> None:
        if self.key and not self.cert:
            raise ConfigError("--key: requires --cert, the certificate of the key")


NO_TLS = ClientTls()
"""The authorities of the system, and no certificate of the client."""


def tls_hint(error: BaseException) -> str:
    """The end of a message about a failed connection: what to do about its cause, if that is TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "; give the certificate of its authority with --cacert FILE"
    text = str(error)
    if isinstance(error, ssl.SSLError) and ("WRONG_VERSION_NUMBER" in text or "RECORD_LAYER_FAILURE" in text):
        return "; the server seems not to use TLS"
    if isinstance(error, ssl.SSLError) and ("CERTIFICATE_REQUIRED" in text or "HANDSHAKE_FAILURE" in text):
        return "; the server wants a certificate of the client: --cert FILE --key FILE"
    return ""


def _system_authorities() -> bytes | None:
    """The file of authorities that Python trusts, which gRPC need not know; None without one."""
    file = ssl.get_default_verify_paths().cafile
    return None if file is None else Path(file).read_bytes()


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
