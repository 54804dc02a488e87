"""`sluice health`: asks a running server whether it is ready, for the health checks of containers."""

import argparse
import sys
import urllib.error

from sluice.gateway.cli.client.http import ServerAddress, add_server_arguments, request
from sluice.models.errors import ServingError

UNHEALTHY = 1
"""Exit status for a server that is not ready, or cannot be asked. Docker reserves 2 and above."""
TIMEOUT_S = 4.0
"""Time for the answer, below the usual ones of health checks."""

_NO = (400, 503)
"""The statuses of a server that is not ready, and of one that stops."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.set_defaults(command=_health)
    parser.add_argument("--live", action="store_true", help="ask whether it is alive, which it is while models load")
    add_server_arguments(parser)


def _health(options: argparse.Namespace) -> int:
    state = "live" if options.live else "ready"
    try:
        request(ServerAddress.of(options), f"/v2/health/{state}", timeout_s=TIMEOUT_S)
    except ServingError as error:
        answer = error.__cause__
        is_no = isinstance(answer, urllib.error.HTTPError) and answer.code in _NO
        print(f"sluice: {options.url}: not {state}" if is_no else f"sluice: {error}", file=sys.stderr)
        return UNHEALTHY
    print(state)
    return 0
