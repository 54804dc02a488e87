"""Prints the nodes of a Ray cluster as JSON: `python -m sluice.gateway.cluster.ray.found ADDRESS`."""

import os
import sys

import msgspec
import ray

from sluice.gateway.cluster.ray.placement import alive_nodes


def main() -> int:
    """Print the nodes, or why there are none; returns the exit status."""
    try:
        ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
        print(str(error).splitlines()[0], file=sys.stderr)
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(alive_nodes(ray.nodes())))
    sys.stdout.flush()
    os._exit(0)  # Ray would take its time to disconnect


if __name__ == "__main__":
    sys.exit(main())
