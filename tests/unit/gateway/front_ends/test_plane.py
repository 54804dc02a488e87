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
from sluice.gateway.tensors.body_memory import LARGE_BYTES
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
        memory = InputMemory(4 << 20, 1 << 20, lambda number, region: region.close(), lambda number: None)
        config = convert_config({}, "test")
        self.plane = FrontEndDataPlane(config, table, cast(Link, self.link), memory, lambda: self.now_ns)

    def submit(self, now_ns: int) -> None:
        self.now_ns = now_ns
        signature = self.plane.signature("a", "")
        inputs: Any = {"x": np.zeros((1, 4), np.float32)}
        self.plane.submit(signature, inputs, RequestOptions(signature.output_names, 1, "", 16, 10**9))

    def submit_body(self, nbytes: int, **inputs: tuple[type[np.generic], int]) -> Arrival:
        """Submit inputs that lie one after the other in a body, each of a type and a number of elements."""
        memory = self.plane.memory(nbytes)
        assert memory is not None
        start = 0
        tensors: dict[str, Any] = {}
        for name, (dtype, size) in inputs.items():
            tensors[name] = np.ndarray((1, size), dtype, memory, start)
            start += tensors[name].nbytes
        signature = self.plane.signature("a", "")
        self.plane.submit(signature, tensors, RequestOptions(signature.output_names, 1, "", nbytes, 10**9))
        return self.link.arrivals[-1]

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


def test_an_arrival_says_where_the_inputs_of_a_large_body_lie() -> None:
    async def run() -> None:
        bench = Bench()
        whole = bench.submit_body(LARGE_BYTES, x=(np.float32, LARGE_BYTES // 4))
        assert whole.particulars is None
        parts = bench.submit_body(LARGE_BYTES + 4, x=(np.float32, LARGE_BYTES // 4), z=(np.uint8, 4))
        assert parts.particulars is None, "they lie as they would be written"
        parts = bench.submit_body(LARGE_BYTES + 4, z=(np.uint8, 4), x=(np.float32, LARGE_BYTES // 4))
        assert parts.particulars is not None
        assert parts.particulars.starts == (0, 4)
        assert whole.region == parts.region

    asyncio.run(run())
