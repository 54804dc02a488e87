"""The sentences for worker servers that do not answer a question."""

import grpc
import pytest

from sluice.gateway.worker_protocol import about
from sluice.gateway.worker_protocol.about import survey
from sluice.models.errors import PartitionError


class Unreachable(grpc.RpcError):
    """An error of gRPC before there is a connection."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._text = text

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return self._text


class Channel:
    """A channel all of whose calls fail for one reason."""

    def __init__(self, details: str) -> None:
        self._details = details

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def unary_unary(self, *args: object) -> "Channel":
        return self

    def __call__(self, *args: object, **options: object) -> None:
        raise Unreachable(self._details)


LAST = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.5:9001: "


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        (f"{LAST}Failed to connect to remote host: Connection refused", "Connection refused"),
        (
            f"{LAST}Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:100000f7:SSL "
            "routines:OPENSSL_internal:WRONG_VERSION_NUMBER: Invalid certificate verification context: OK",
            "the TLS handshake failed: WRONG_VERSION_NUMBER",
        ),
        (
            f"{LAST}Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification Check failed.",
            "Hostname Verification Check failed.",
        ),
        (
            "errors resolving box:9001: [field:hostname lookup error:address lookup failed for box:9001: Domain name "
            "not found]",
            "its host cannot be looked up: Domain name not found",
        ),
        ("words of another version of gRPC", "words of another version of gRPC"),
    ],
)
def test_the_reason_is_said_without_the_words_of_grpc(
    details: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(about, "_channel", lambda *args: Channel(details))
    with pytest.raises(PartitionError) as failed:
        survey("10.0.0.5:9001", "", None)
    assert str(failed.value) == f"it cannot be reached: {reason}"
