"""The process of the exporter: `python -m sluice.gateway.tracing.main PARENT --socket NUMBER`.

The spans are made and sent here, since code in a thread of the gateway's process would keep requests waiting: only one
thread of a process runs code of Python at a time.
"""

import argparse
import os
import signal
import socket
import sys
import threading
from contextlib import suppress

from sluice.gateway.tracing.exporter import SpanQueue, build_exporter, build_resource
from sluice.gateway.tracing.messages import EndedTraces, FinishExport, SpanCounts, StartExport, ToExporter
from sluice.models.processes import leave_signals_to_gateway
from sluice.mps.ipc.channel import Channel
from sluice.mps.isolation.launch import end_with_parent

NICENESS = 10
"""Spans can wait: workers and the gateway come first."""


def _run(channel: Channel[ToExporter]) -> None:
    sending = threading.Lock()

    def report(counts: SpanCounts) -> None:
        with sending, suppress(ConnectionError):  # the gateway has gone
            channel.send(counts)

    start, _ = next(channel.receive(wait=True))
    assert isinstance(start, StartExport), "it is the first message"
    settings = start.settings
    queue = SpanQueue(build_exporter(settings), build_resource(settings, start.version), settings.queue_spans, report)
    while True:
        for message, _ in channel.receive(wait=True):
            match message:
                case EndedTraces(traces):
                    queue.put(traces)
                case FinishExport(timeout_s):
                    queue.finish(timeout_s)
                    os._exit(0)  # an export that is under way may take as long as it likes


def main() -> int:
    """Be the exporter; returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parent", type=int)
    parser.add_argument("--socket", type=int, required=True)
    options = parser.parse_args()
    if not end_with_parent(options.parent, signal.SIGKILL):
        return 1
    leave_signals_to_gateway()
    os.nice(NICENESS)
    with suppress(EOFError):
        _run(Channel(socket.socket(fileno=options.socket), ToExporter))
    return 0


if __name__ == "__main__":
    sys.exit(main())
