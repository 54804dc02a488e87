"""The process that talks to Ray for a gateway: `python -m sluice.gateway.cluster.ray.main PARENT --socket NUMBER`.

Ray's calls block, and Ray ends the process that uses it when its node or its head is gone. So it is never the
gateway's own.
"""

import argparse
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress

from sluice.gateway.cluster.ray.connection import NoRayAnswer, RayConnection
from sluice.gateway.cluster.ray.messages import Begin, Leave, RayState, ToRay, Want
from sluice.models.processes import leave_signals_to_gateway
from sluice.mps.ipc.channel import Channel
from sluice.mps.isolation.launch import end_with_parent

RENEW_S = 0.5
SILENCE_S = 1.5
"""Leases are not renewed if the gateway has been silent for this time: it may be paused."""
CONNECT_PAUSE_S = 2.0


def _run(channel: Channel[ToRay]) -> None:
    begin, _ = next(channel.receive(wait=True))
    assert isinstance(begin, Begin), "it is the first message"
    connection = _connect(channel, begin)
    trouble, heard_s, renewed_s = "", time.monotonic(), 0.0
    while True:
        for message in _messages(channel, max(0.0, renewed_s + RENEW_S - time.monotonic())):
            heard_s = time.monotonic()
            match message:
                case Want(name, count, leaving):
                    connection.wanted[name] = count
                    connection.give_up(name, leaving)
                    renewed_s = 0.0
                case Leave():
                    connection.leave()
                    os._exit(0)  # Ray would take its time to disconnect
        now_s = time.monotonic()
        if now_s - heard_s > SILENCE_S or now_s - renewed_s < RENEW_S:
            continue
        renewed_s = now_s
        try:
            for change in connection.renew():
                channel.send(change)
            state = ""
        except NoRayAnswer as error:
            state = str(error)
        if state != trouble:
            trouble = state
            channel.send(RayState(trouble))


def _connect(channel: Channel[ToRay], begin: Begin) -> RayConnection:
    while True:
        try:
            connection = RayConnection(begin)
        except NoRayAnswer as error:
            channel.send(RayState(str(error)))
            time.sleep(CONNECT_PAUSE_S)
        else:
            channel.send(RayState(""))
            return connection


def _messages(channel: Channel[ToRay], timeout_s: float) -> list[ToRay]:
    """The messages that come within a time; ends this process when there is no gateway any more."""
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    if not poll.poll(timeout_s * 1000):
        return []
    try:
        return [message for message, _ in channel.receive()]
    except EOFError:
        os._exit(0)  # its leases end by themselves


def main() -> int:
    """Talk to Ray; returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parent", type=int)
    parser.add_argument("--socket", type=int, required=True)
    options = parser.parse_args()
    if not end_with_parent(options.parent, signal.SIGKILL):
        return 1
    leave_signals_to_gateway()
    with suppress(EOFError, ConnectionError):
        _run(Channel(socket.socket(fileno=options.socket), ToRay))
    return 0


if __name__ == "__main__":
    sys.exit(main())
