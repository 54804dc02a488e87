"""`sluice partitions resize`: changes the cores or the GPU share of a partition of a running server."""

import argparse
from urllib.parse import quote

from sluice.gateway.cli.client.http import ServerAddress, add_server_arguments, decode, request
from sluice.mps.partitions.partition import CpuPartition, Partition

RESIZE_TIMEOUT_S = 600
"""Time for a server to start a worker on the new share."""


def add_resize_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("name", metavar="NAME", help="name of the partition")
    share = parser.add_mutually_exclusive_group(required=True)
    share.add_argument("--cores", type=_cores, metavar="N,N", help="for a partition of cores: the complete new set")
    share.add_argument(
        "--share", type=int, metavar="PERCENT", help="for a share of a GPU: the new percentage of its multiprocessors"
    )
    add_server_arguments(parser)


def resize(options: argparse.Namespace) -> int:
    """Resize the partition; returns when it serves on its new share."""
    body = {"share_percent": options.share} if options.cores is None else {"cores": options.cores}
    path = f"/v2/sluice/partitions/{quote(options.name, safe='')}/resize"
    answer = request(ServerAddress.of(options), path, body=body, timeout_s=RESIZE_TIMEOUT_S)
    partition: Partition = decode(options.url, answer, Partition)  # type: ignore[arg-type]
    what = f"cores {','.join(map(str, partition.cores))}" if isinstance(partition, CpuPartition) else ""
    print(f"{partition.name}: serves on {what or partition.profile_kind}")
    return 0


def _cores(text: str) -> list[int]:
    try:
        return [int(core) for core in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected core numbers such as 0,1, got '{text}'") from None
