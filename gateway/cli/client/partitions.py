"""The partitions of a running server, for the commands that report them."""

import msgspec

from sluice.gateway.cli.client.http import ServerAddress, decode, request
from sluice.gateway.partitions.inventory import PartitionStatus


class _Partitions(msgspec.Struct):
    partitions: tuple[PartitionStatus, ...]


def server_partitions(server: ServerAddress) -> tuple[PartitionStatus, ...]:
    """The partitions of a running server; raises as `client.http.request`."""
    return decode(server.url, request(server, "/v2/sluice/partitions"), _Partitions).partitions
