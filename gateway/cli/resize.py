"""`sluice partitions resize`: gives a partition of a running server another share of the machine."""

import argparse
from urllib.parse import quote

import msgspec

from sluice.gateway.cli.http_client import add_server_arguments
from sluice.gateway.cli.model import call
from sluice.models.errors import ServingError
from sluice.mps.partitions.partition import CpuPartition, Partition


def add_resize_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command is told."""
    parser.add_argument("name", metavar="NAME")
    share = parser.add_mutually_exclusive_group(required=True)
    share.add_argument("--cores", type=_cores, metavar="N,N", help="of a set of cores: all that it is to have")
    share.add_argument("--share", type=int, metavar="PERCENT", help="of a share of a GPU: its part of it")
    add_server_arguments(parser)


def resize(options: argparse.Namespace) -> int:
    """Have the server do it; returns when the partition serves on its new share."""
    body = {"share_percent": options.share} if options.cores is None else {"cores": options.cores}
    answer = call(options.url, f"/v2/sluice/partitions/{quote(options.name, safe='')}/resize", body, options.header)
    try:
        partition: Partition = msgspec.json.decode(answer, type=Partition)
    except msgspec.MsgspecError as error:
        raise ServingError(f"{options.url}: not an answer of Sluice") from error
    what = f"cores {','.join(map(str, partition.cores))}" if isinstance(partition, CpuPartition) else ""
    print(f"{partition.name}: serves on {what or partition.profile_kind}")
    return 0


def _cores(text: str) -> list[int]:
    try:
        return [int(core) for core in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers of cores, such as 0,1; got '{text}'") from None
