"""The gateway's end of the exporter, against a process that a test plays."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sluice.gateway.config.tracing import OtlpSettings
from sluice.gateway.tracing.export import FLUSH_TRACES, MOST_WAITING, SpanExport
from sluice.gateway.tracing.messages import EndedTraces, FinishExport, SpanCounts, StartExport, ToExporter
from sluice.gateway.tracing.spans import most_spans
from tests.support.played_child import PlayedChild
from tests.unit.gateway.tracing.test_spans import CASCADE, request

SPANS = most_spans(request(*CASCADE))


class PlayedExporter(PlayedChild[ToExporter]):
    """The process of an exporter."""

    def __init__(self) -> None:
        super().__init__(ToExporter)

    def received(self) -> list[ToExporter]:
        try:
            return [message for message, _ in self.channel.receive()]
        except EOFError:
            return []


class Bench:
    """An export, and the exporters that it has started; each further start fails while `fails`."""

    def __init__(self) -> None:
        self.exporters: list[PlayedExporter] = []
        self.fails = False
        self.started = asyncio.Event()
        self.export = SpanExport(OtlpSettings(), "1.0", self._launch)

    def _launch(self) -> PlayedExporter:
        if self.fails:
            raise OSError("no descriptor is left")
        self.exporters.append(PlayedExporter())
        self.started.set()
        return self.exporters[-1]

    def counts(self) -> dict[str, float]:
        return {
            sample.labels.get("reason", "exported"): sample.value
            for family in self.export.collect()
            for sample in family.samples
        }


def run(conversation: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench()
        bench.export.start()
        await conversation(bench)
        stopping = asyncio.create_task(bench.export.stop())
        await settle()
        for exporter in bench.exporters:
            exporter.exit()
        await stopping

    asyncio.run(main())


async def settle() -> None:
    """Let everything happen that is due."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_requests_go_to_the_exporter_a_few_in_a_message() -> None:
    async def conversation(bench: Bench) -> None:
        for _ in range(2 * FLUSH_TRACES + 1):
            bench.export.export(request(*CASCADE))
        await settle()
        start, *messages = bench.exporters[0].received()
        assert isinstance(start, StartExport)
        assert start.version == "1.0"
        sizes = [len(each.traces) for each in messages if isinstance(each, EndedTraces)]
        assert sizes == [FLUSH_TRACES, FLUSH_TRACES, 1]
        assert bench.counts() == {"exported": 0, "queue": 0, "exporter": 0, "collector": 0}

    run(conversation)


def test_what_an_exporter_that_does_not_read_has_no_room_for_is_dropped() -> None:
    async def conversation(bench: Bench) -> None:
        for _ in range(200):
            for _ in range(MOST_WAITING):
                bench.export.export(request(*CASCADE))
            await settle()
        dropped = bench.counts()["exporter"]
        assert dropped > 0
        assert dropped % SPANS == 0
        before = sum(len(each.traces) for each in bench.exporters[0].received() if isinstance(each, EndedTraces))
        assert before < 200 * MOST_WAITING

    run(conversation)


def test_the_counts_of_lost_exporters_stay_and_another_one_is_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sluice.gateway.tracing.export.FIRST_RESTART_S", 0.0)

    async def conversation(bench: Bench) -> None:
        bench.export._restart_s = 0.0
        first = bench.exporters[0]
        first.channel.send(SpanCounts(5, 2, 1, "refused"))
        await settle()
        assert bench.counts() == {"exported": 5, "queue": 2, "exporter": 0, "collector": 1}
        bench.started.clear()
        first.exit()
        await bench.started.wait()
        bench.export.export(request(*CASCADE))
        second = bench.exporters[1]
        second.channel.send(SpanCounts(10, 0, 0, ""))
        await settle()
        assert bench.counts() == {"exported": 15, "queue": 2, "exporter": 0, "collector": 1}

    run(conversation)
    assert [record.getMessage() for record in caplog.records] == ["spans cannot be exported", "span exporter lost"]


def test_the_last_requests_go_before_the_end() -> None:
    async def conversation(bench: Bench) -> None:
        bench.export.export(request(*CASCADE))
        stopping = asyncio.create_task(bench.export.stop())
        await settle()
        kinds: list[type[ToExporter]] = [type(message) for message in bench.exporters[0].received()]
        assert kinds == [StartExport, EndedTraces, FinishExport]
        bench.exporters[0].exit()
        await stopping

    run(conversation)


def test_a_start_that_fails_is_tried_again_later(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        bench = Bench()
        bench.fails = True
        bench.export.start()
        bench.export.export(request(*CASCADE))
        await bench.export.stop()
        assert bench.exporters == []

    asyncio.run(main())
    (record,) = caplog.records
    assert "no descriptor is left" in record.__dict__["fields"]["reason"]
