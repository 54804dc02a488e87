"""How commands ask a running server over HTTP, and what they say when it cannot be asked."""

import argparse
import http.client
import urllib.error
import urllib.request
from collections.abc import Iterable

from sluice.models.errors import ServingError

open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
"""Without a proxy, which could not reach what listens on this machine."""

_SETTINGS = "\x04"
"""The type of the first frame of HTTP/2, which follows three bytes of its length; a server of gRPC sends it at once."""


Headers = Iterable[tuple[str, str]]
"""Names and values."""


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says where the server is, and what it demands of those who ask."""
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server (default %(default)s)")
    parser.add_argument(
        "--header",
        type=_header,
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="sent along, as to a server where a key is needed for this",
    )


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not (colon and len(name.split()) == 1 and text.isprintable() and text.isascii()):
        raise argparse.ArgumentTypeError(f"expected 'NAME: VALUE', got '{text}'")
    return name.strip(), value.strip()


def check_url(url: str) -> None:
    """Raise ServingError for what is not the URL of a server."""
    if not url.startswith(("http://", "https://")):
        raise ServingError(f"{url}: expected the URL of a server, such as http://127.0.0.1:8000")


def unreachable(url: str, error: OSError | http.client.HTTPException | ValueError, timeout_s: float) -> ServingError:
    """What it means that asking `url` failed; `timeout_s` is what the server had for its answer."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return ServingError(f"{url}: it did not answer within {timeout_s:g} s")
    if isinstance(reason, http.client.BadStatusLine) and str(reason)[3:4] == _SETTINGS:
        return ServingError(
            f"{url}: this is a port of gRPC; expected the server's port of HTTP, "
            "which is 8000 unless it was told otherwise"
        )
    if isinstance(reason, OSError | str):
        return ServingError(f"{url}: cannot be reached: {reason}")
    said = "".join(each if each.isprintable() else "?" for each in str(reason).strip()) or type(reason).__name__
    return ServingError(f"{url}: expected an answer in HTTP: {said:.200}")
