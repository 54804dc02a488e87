"""What a running server says of its partitions."""

import http.client
from collections.abc import Iterator

import msgspec

from sluice.gateway.cli.checks import Finding, Severity
from sluice.gateway.cli.http_client import check_url, open_url, unreachable
from sluice.gateway.partitions.inventory import Enforcement, PartitionStatus
from sluice.models.errors import ServingError

TIMEOUT_S = 10
MAX_BODY_BYTES = 16 << 20

_VERDICTS = {
    Enforcement.ENFORCED: Severity.OK,
    Enforcement.UNENFORCED: Severity.WRONG,
    Enforcement.UNKNOWN: Severity.NOTE,
}


class _Partitions(msgspec.Struct):
    partitions: tuple[PartitionStatus, ...]


def served(url: str) -> Iterator[Finding]:
    """How the partitions of the server at `url` are; raises ServingError when it cannot be asked."""
    check_url(url)
    try:
        with open_url(f"{url.rstrip('/')}/v2/sluice/partitions", timeout=TIMEOUT_S) as response:
            body = response.read(MAX_BODY_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise unreachable(url, error, TIMEOUT_S) from error
    try:
        states = msgspec.json.decode(body, type=_Partitions).partitions
    except msgspec.DecodeError as error:
        raise ServingError(f"{url}: it answered, but not as a server of ours: {error}") from error
    for state in states:
        worker = "no worker is up" if state.worker is None else f"worker {state.worker}"
        why = [*state.reasons, state.lost] if state.lost else state.reasons
        text = f"{state.partition.name}: {'; '.join([state.enforcement.value, *why])} ({worker})"
        yield Finding("server", Severity.WRONG if state.lost else _VERDICTS[state.enforcement], text)
