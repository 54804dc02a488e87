"""Paths in arguments of commands that read this machine's files only."""

import argparse
from pathlib import Path


def local_path(text: str) -> Path:
    """A path; a URL, in which a path would lose a `/`, is refused. Raises ArgumentTypeError."""
    from sluice.models.sources.source import is_url

    if is_url(text):
        raise argparse.ArgumentTypeError(
            f"expected a path on this machine, got '{text:.200}'; URLs are for sluice serve, which copies what they "
            "name and checks it"
        )
    return Path(text)
