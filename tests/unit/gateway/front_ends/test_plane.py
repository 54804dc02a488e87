"""The data plane of a front end, without the gateway's process."""

import asyncio
from typing import Any, cast

import numpy as np

from sluice.gateway.config.server_config import convert_config
from sluice.gateway.front_ends.inputs import InputMemory
from sluice.gateway.front_ends.link import Arrival, Link
from sluice.gateway.front_ends.plane import FrontEndDataPlane
from sluice.gateway.front_ends.snapshot import ServedTable, changes
from sluice.gateway.protocol.request_options import RequestOptions
from tests.unit.gateway.front_ends.test_snapshot import pipeline, serving


class FakeLink:
    """Keeps arrivals until a test takes them. `waiting` is the number of packets that the gateway has not read."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.waiting = 0

    def flush_soon(self) -> None:
        """Nothing is sent."""


class Bench:
    """A plane that serves one pipeline, and the time."""

    def __init__(self) -> None:
        table = ServedTable()
        for change in changes({}, serving(pipeline("a")), draining=False):
            table.apply(change)
        self.now_ns = 0
        self.link = FakeLink()
        memory = InputMemory(1 << 16, 1 << 20, lambda number, region: region.close(), lambda number: None)
        config = convert_config({}, "test")
        self.plane = FrontEndDataPlane(config, table, cast(Link, self.link), memory, lambda: self.now_ns)

    def submit(self, now_ns: int) -> None:
        self.now_ns = now_ns
        signature = self.plane.signature("a", "")
        inputs: Any = {"x": np.zeros((1, 4), np.float32)}
        self.plane.submit(signature, inputs, RequestOptions(signature.output_names, 1, "", 16, 10**9))

    @property
    def received(self) -> list[int]:
        return [each.received_ns for each in self.link.arrivals]


def test_the_time_of_a_request_counts_from_the_turn_in_which_it_came() -> None:
    async def run() -> None:
        bench = Bench()
        bench.submit(5)
        bench.submit(6)
        assert bench.received == [5, 5]
        bench.link.arrivals.clear()
        bench.submit(7)
        assert bench.received == [7]
        bench.link.waiting = 1  # the gateway does not read
        bench.submit(1000)
        assert bench.received == [7, 1000]

    asyncio.run(run())
