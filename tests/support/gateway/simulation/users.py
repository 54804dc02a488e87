"""The clients of a simulated gateway, who check their answers, and its operators."""

import asyncio
import os
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from sluice.gateway.inference.dataplane import build_response
from sluice.gateway.protocol.answer import Answer
from sluice.gateway.protocol.request import InferRequest, WireTensor
from sluice.gateway.server.wiring import Gateway
from sluice.models.errors import ServingError
from sluice.models.pipelines.pipeline import Pipeline
from tests.support.gateway.simulation.machine import CORES, Machine
from tests.support.gateway.simulation.models import NAMES, Rows, expected_output, request_rows

BURSTS_S = 4.0
"""Half of the requests come at multiples of this time."""
WIDTHS = (2, 3, 700, 30_000)
"""With the largest, some batches do not fit into the arenas."""


class Users:
    """Requests and orders at random times within `for_s` seconds; each has a random source of its own.

    `outcomes` are those of the requests, each with its time.
    """

    def __init__(self, gateway: Gateway, machine: Machine, repository: Path, for_s: float) -> None:
        self.outcomes: dict[str, str] = {}
        self._gateway = gateway
        self._machine = machine
        self._repository = repository
        self._for_s = for_s

    async def request(self, number: int) -> None:
        """Send a request at some time, alone or with others; some are cancelled, and some answers are held."""
        source = Random(f"{self._machine.seed} request {number}")
        at_s = source.uniform(0, self._for_s)
        await asyncio.sleep(at_s if source.random() < 0.5 else at_s - at_s % BURSTS_S)
        name, rows, width = source.choice(NAMES), source.randint(1, 4), source.choice(WIDTHS)
        parameters: dict[str, Any] = {}
        if source.random() < 0.3:
            parameters["slo_ms"] = source.choice((20, 100, 60_000))
        if source.random() < 0.1:
            parameters["timeout"] = 500_000
        cancelled_s = source.choice((0.0, 0.01, 0.2, 5.0)) if source.random() < 0.2 else None
        content = number if source.random() < 0.8 else 1 + number // 2  # as another request, for the cache
        held_s = source.choice((0.0, 0.0, 0.02, 3.0))
        self.outcomes[f"{number}"] = await self.ask(content, name, rows, width, parameters, cancelled_s, held_s)

    async def ask(
        self,
        content: int,
        name: str,
        rows: int,
        width: int,
        parameters: dict[str, Any],
        cancelled_s: float | None = None,
        held_s: float = 0.0,
    ) -> str:
        """Send a request, check its answer when it comes and `held_s` later, and return its outcome with the time."""
        dataplane, loop = self._gateway.dataplane, self._machine.loop
        x = request_rows(content, rows, width)
        try:
            signature = dataplane.signature(name, "")
            request = InferRequest([WireTensor("x", "FP32", x.shape, memoryview(x.tobytes()))], parameters=parameters)
            inputs, options = dataplane.check(signature, request)
            submission = dataplane.submit(signature, inputs, options)
        except ServingError as error:
            return f"{loop.now_ns} {type(error).__name__}: {error}"
        if cancelled_s is not None:
            cancellation = loop.call_later(cancelled_s, dataplane.cancel, submission)
            submission.then(lambda _: cancellation.cancel())
        answer = await dataplane.answer(submission)
        outcome, ended_ns = answer.outcome, loop.now_ns
        if submission.trace.outcome is not outcome:
            self._wrong(f"a request to {name} ended as {outcome}, its trace says {submission.trace.outcome}")
        if outcome.answered:
            self._check(answer, signature.pipeline, x)
            await asyncio.sleep(held_s)
            self._check(answer, signature.pipeline, x)
            build_response(answer, options).release()
        return f"{ended_ns} {outcome} {answer.reason}"

    def _check(self, answer: Answer, pipeline: Pipeline, x: Rows) -> None:
        (y,) = answer.outputs.values()
        expected = expected_output(pipeline, x)
        if y.shape != expected.shape or not np.array_equal(np.asarray(y), expected):
            self._wrong(
                f"a request to {pipeline.key} got {np.asarray(y)[:, :2].tolist()} of shape {y.shape}, "
                f"expected {expected[:, :2].tolist()} of shape {expected.shape}"
            )

    def _wrong(self, problem: str) -> None:
        self._machine.problems.append(problem)

    async def order(self, number: int) -> None:
        """Load, reload, unload, resize or recycle something at some time."""
        source = Random(f"{self._machine.seed} order {number}")
        await asyncio.sleep(source.uniform(0, self._for_s))
        gateway, name = self._gateway, source.choice(NAMES)
        partition = source.choice([each.name for each in gateway.inventory.partitions])
        order: Awaitable[object]
        match source.randrange(5):
            case 0:
                order = gateway.deployer.load(name)
            case 1:
                self._touch(name, source.randrange(1000))
                order = gateway.deployer.load(name)
            case 2:
                order = gateway.deployer.unload(name, recycle=source.random() < 0.5)
            case 3:
                order = gateway.resizing.resize(partition, cores=[source.randrange(CORES)])
            case _:
                gateway.executor.recycle(partition)
                return
        with suppress(ServingError):  # then all is as it was
            await order

    def _touch(self, name: str, time_ns: int) -> None:
        """Make the files of a name look changed."""
        for file in sorted((self._repository / name).rglob("*")):
            os.utime(file, ns=(time_ns, time_ns))
