"""Certificates that change while a server runs: who may connect afterwards, and what is kept when files are wrong."""

import socket
import ssl
import threading
from pathlib import Path

import pytest

from sluice.gateway.config.tls import TlsSettings
from tests.support.certificates import certificate


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for authority in ("first", "second"):
        certificate(tmp_path, authority, None)
        certificate(tmp_path, f"{authority}-client", authority)
    certificate(tmp_path, "server", None)
    (tmp_path / "ca.pem").write_bytes((tmp_path / "first.pem").read_bytes())
    return tmp_path


def greeted(server: ssl.SSLContext, files: Path, name: str) -> bool:
    """True if a client with that certificate gets the byte that the server sends after the handshake."""
    client = ssl.create_default_context(cafile=files / "server.pem")
    client.load_cert_chain(files / f"{name}.pem", files / f"{name}.key")
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    theirs.settimeout(30)

    def serve() -> None:
        try:
            with server.wrap_socket(theirs, server_side=True) as connection:
                connection.sendall(b"!")
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname="localhost") as connection:
            return connection.recv(1) == b"!"
    except OSError:
        return False
    finally:
        ours.close()
        thread.join()


def test_the_authority_of_clients_changes_with_its_file(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = TlsSettings(str(files / "server.pem"), str(files / "server.key"), str(files / "ca.pem"))
    context = settings.ssl_context()

    def welcome() -> list[bool]:
        return [greeted(context, files, name) for name in ("first-client", "second-client")]

    assert welcome() == [True, False]
    (files / "ca.pem").write_text("no certificate")
    assert welcome() == [True, False]
    (files / "ca.pem").unlink()
    assert welcome() == [True, False]
    assert [record.message for record in caplog.records].count("the old certificate stays") == 2
    (files / "ca.pem").write_bytes((files / "second.pem").read_bytes())
    assert welcome() == [False, True]
