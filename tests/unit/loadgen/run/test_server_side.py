import asyncio
import json

import numpy as np
import pytest

from sluice.loadgen.records.record import Record
from sluice.loadgen.records.samples import TargetModel
from sluice.loadgen.run.server_side import read_server, report_since
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.target.base import TargetUnreachable
from sluice.loadgen.traffic.schedule import Schedule
from tests.unit.loadgen.run.test_issuer import Brittle

CONFIG = RunConfig(target="http://host:1", model="c", rate=1)


def statistics(**executions: int) -> bytes:
    models = [{"name": name, "inference_count": n, "execution_count": n} for name, n in executions.items()]
    return json.dumps({"model_stats": models}).encode()


class Telling(Brittle):
    """Has one body of statistics after the other, and a pipeline `c`."""

    def __init__(self, *bodies: bytes | None) -> None:
        super().__init__(set())
        self._bodies = list(bodies)

    async def metadata(self, model: str) -> TargetModel:
        if model == "gone":
            raise TargetUnreachable("gone")
        return TargetModel((), (), "sluice_pipeline" if model == "c" else "onnxruntime_onnx")

    async def statistics(self) -> bytes | None:  # type: ignore[override]
        return self._bodies.pop(0)


def report_of(target: Telling, config: RunConfig = CONFIG) -> tuple[list[tuple[str, int, bool]] | None, Record]:
    record = Record.of(Schedule(np.zeros(0, np.int64), np.zeros(0, np.int64)))

    async def read() -> list[tuple[str, int, bool]] | None:
        before = await read_server(config, target)
        report = await report_since(before, config, target, record)
        return None if report is None else [(each.model, each.batches, each.is_pipeline) for each in report.models]

    return asyncio.run(read()), record


def test_a_report_has_the_models_that_did_something_and_says_which_are_pipelines() -> None:
    target = Telling(statistics(c=1, m=5, idle=7, gone=1), statistics(c=3, m=9, idle=7, gone=2))
    assert report_of(target)[0] == [("c", 2, True), ("gone", 1, False), ("m", 4, False)]


@pytest.mark.parametrize(
    "bodies",
    [
        (None, None),
        (b"<html>", b"<html>"),
        (statistics(m=1), None),
        (None, statistics(m=1)),
        (statistics(m=1), statistics(m=1)),
    ],
)
def test_a_server_without_statistics_or_activity_has_no_report(bodies: tuple[bytes | None, ...]) -> None:
    assert report_of(Telling(*bodies))[0] is None


def test_a_server_that_dies_under_load_leaves_the_figures_of_the_run() -> None:
    class Dying(Telling):
        async def statistics(self) -> bytes | None:  # type: ignore[override]
            if len(self._bodies) == 1:
                raise TargetUnreachable("--target host: connection refused")
            return await super().statistics()

    report, record = report_of(Dying(statistics(m=1), statistics(m=2)))
    assert report is None
    assert record.reasons == {"--target host: connection refused": 1}
