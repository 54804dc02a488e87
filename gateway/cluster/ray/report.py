"""Prints what a namespace of a Ray cluster has, as JSON.

`python -m sluice.gateway.cluster.ray.report ADDRESS NAMESPACE [replace SLOT | end]` has the worker of a slot replaced
first, or all workers end that no gateway has.
"""

import os
import sys
import time

import msgspec
import ray

from sluice.gateway.cluster.ray.guardian import END_TIMEOUT_S
from sluice.gateway.cluster.ray.placement import alive_nodes
from sluice.gateway.cluster.ray.worker_actor import CALL_TIMEOUT_S, KEEPER
from sluice.gateway.cluster.ray.worker_child import START_TIMEOUT_S

PAUSE_S = 0.2


def main() -> int:
    """Print the nodes and the keeper's document, or why there are none; returns the exit status."""
    address, namespace, *action = sys.argv[1:]
    try:
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="ERROR")
        match action:
            case ["replace", slot]:
                _replace(slot, namespace)
            case ["end"]:
                _end(namespace)
        nodes = alive_nodes(ray.nodes())
        try:
            keeper = ray.get_actor(KEEPER)
            document = ray.get(keeper.document.remote(), timeout=CALL_TIMEOUT_S)
        except ValueError:  # no gateway has come yet, or all have gone
            document = {"gateways": {}, "partitions": []}
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
        print(str(error).splitlines()[0], file=sys.stderr)
        return 1
    listed = [{"node": node.name, "address": node.address, "resources": node.resources} for node in nodes]
    sys.stdout.buffer.write(msgspec.json.encode({"nodes": listed, **document}))
    sys.stdout.flush()
    os._exit(0)  # Ray would take its time to disconnect


def _replace(slot: str, namespace: str) -> None:
    """Have the worker of a slot finish and end, and wait for the new one. Raises ValueError and RuntimeError."""
    actor = ray.get_actor(slot, namespace=namespace)
    before = ray.get(actor.ping.remote(), timeout=CALL_TIMEOUT_S)
    ray.get(actor.replace.remote(), timeout=2 * END_TIMEOUT_S)
    give_up_s = time.monotonic() + START_TIMEOUT_S
    keeper = ray.get_actor(KEEPER, namespace=namespace)
    while time.monotonic() < give_up_s:
        document = ray.get(keeper.document.remote(), timeout=CALL_TIMEOUT_S)
        now = next((each for each in document["partitions"] if each["partition"] == slot), None)
        if now is not None and now["url"] and ray.get(actor.ping.remote(), timeout=CALL_TIMEOUT_S) > before:
            return
        time.sleep(PAUSE_S)
    raise RuntimeError(f"{slot}: the new worker did not listen within {START_TIMEOUT_S:g} s")


def _end(namespace: str) -> None:
    """Have all workers end that no gateway has, and wait for it."""
    give_up_s = time.monotonic() + END_TIMEOUT_S
    try:
        keeper = ray.get_actor(KEEPER, namespace=namespace)
    except ValueError:  # all have ended
        return
    ray.get(keeper.end_unused.remote(), timeout=CALL_TIMEOUT_S)
    while time.monotonic() < give_up_s:
        if not ray.get(keeper.workers.remote(), timeout=CALL_TIMEOUT_S):
            if not ray.get(keeper.document.remote(), timeout=CALL_TIMEOUT_S)["gateways"]:
                ray.kill(keeper, no_restart=True)  # Ray waits for it when the node is to end
            return
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    sys.exit(main())
