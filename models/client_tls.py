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

_SIGNS = {
    ("is not valid for '", "Hostname Verification Check failed"): "; use a name that its certificate has",
    ("certificate has expired", "not yet valid"): "",
    ("CERTIFICATE_VERIFY_FAILED",): "; give the certificate of its authority with --cacert FILE",
    ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"): "; the server seems not to use TLS",
    ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE"): "; it wants a certificate of the client: --cert FILE --key FILE",
}
"""Hints by what the texts of errors of TLS contain; the first one that fits counts."""
_CLOSED = ("Socket closed", "Connection reset")
_MAY_EXPECT_TLS = "; it may expect TLS: https:// or grpcs://"


def connection_hint(reason: BaseException | str, is_secure: bool) -> str:
    """The end of a message about a failed connection: what to do about its cause, if that may be TLS.

    `reason` is an error, or the text of one of gRPC. `is_secure` is True if the client used TLS.
    """
    text = str(reason)
    for signs, hint in _SIGNS.items():
        if any(sign in text for sign in signs):
            return hint
    # Servers end a handshake, or the first request, with no more than this.
    closed = isinstance(reason, ssl.SSLEOFError | ConnectionResetError | BrokenPipeError)
    if closed or any(sign in text for sign in _CLOSED):
        return "; it may want a certificate of the client that it trusts (--cert)" if is_secure else _MAY_EXPECT_TLS
    return ""


def _system_authorities() -> bytes | None:
    """The file of authorities that Python trusts, which gRPC need not know; None without one."""
    file = ssl.get_default_verify_paths().cafile
    return None if file is None else Path(file).read_bytes()


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
