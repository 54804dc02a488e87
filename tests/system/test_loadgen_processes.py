"""`loadgen run --procs`: one schedule, several client processes."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sluice.loadgen.records.interim import EarlyVerdict
from sluice.loadgen.records.progress import QueryCounts
from sluice.loadgen.records.record import Status
from sluice.loadgen.records.samples import SampleSource, TargetModel
from sluice.loadgen.run.plan import RunPlan, make_plan
from sluice.loadgen.run.result import RunResult, Verdict
from sluice.loadgen.run.runner import run
from sluice.loadgen.scenarios.config import RunConfig, ScenarioName
from sluice.models.errors import ConfigError
from sluice.models.processes import process_tree
from tests.support.gateway.processes import until
from tests.support.loadgen.v2_server import ANSWER, answer, server


def drive(url: str, procs: int, *, rate: float = 400.0, queries: int = 200) -> RunResult:
    return run(
        RunConfig(target=url, model="m", rate=rate, queries=queries, warmup_s=0, drain_timeout_s=30, procs=procs)
    )


def client_processes() -> list[int]:
    own = os.getpid()
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in process_tree(own) if pid != own}
    return [pid for pid, command in commands.items() if b"sluice.loadgen.run.shard" in command]


def test_two_processes_send_the_queries_of_one() -> None:
    with server(answer) as url:
        one, two = drive(url, 1), drive(url, 2)
    assert two.schedule_digest == one.schedule_digest
    for column in ("due_ns", "sample", "stream", "slo_ns", "status"):
        assert getattr(two.record, column).tolist() == getattr(one.record, column).tolist()
    assert (two.record.sent_ns >= two.record.due_ns).all()
    assert (two.record.done_ns > two.record.sent_ns).all()
    assert two.client_cpu_us_per_query is not None


def test_the_progress_of_all_processes_is_seen_while_they_send() -> None:
    seen: list[QueryCounts] = []
    counts: list[Callable[[], QueryCounts]] = []

    def watch(read: Callable[[], QueryCounts]) -> None:
        counts.append(read)
        seen.append(read())

    async def note(number: int, writer: asyncio.StreamWriter) -> None:
        if number == 249:  # they send until it has its answer; each tells of its queries once a second
            await asyncio.to_thread(until, lambda: counts[0]().ended > 0)
            seen.append(counts[0]())
        writer.write(ANSWER)

    with server(note) as url:
        run(RunConfig(target=url, model="m", rate=100, queries=250, warmup_s=0, procs=2, drain_timeout_s=60), watch)
    first, last = seen
    assert first == QueryCounts(0, 0)
    assert 0 < last.ended <= last.issued <= 250


def test_processes_end_a_run_early_when_they_have_too_many_misses_together() -> None:
    async def refuse(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n")

    with server(refuse) as url:
        config = RunConfig(target=url, model="m", rate=200, queries=6000, warmup_s=0, slo_ms=50, procs=2)
        result = run(msgspec.structs.replace(config, percentile=90, decide_from_s=0.0))
    assert result.decision is EarlyVerdict.EXCLUDED
    assert 600 < len(result.record) < 6000
    assert result.record.status.tolist() == [Status.ERROR] * len(result.record)
    assert (np.diff(result.record.due_ns) >= 0).all()
    assert not result.interrupted


def test_a_killed_process_makes_the_run_invalid_and_the_others_measure_on() -> None:
    killed: list[int] = []

    async def kill_one(number: int, writer: asyncio.StreamWriter) -> None:
        if number == 20:
            killed.append(client_processes()[-1])
            os.kill(killed[0], signal.SIGKILL)
        writer.write(ANSWER)

    with server(kill_one) as url:
        result = drive(url, 2)
    assert len(killed) == 1
    assert client_processes() == []
    assert result.verdict is Verdict.INVALID
    (reason,) = (reason for reason in result.invalid if "SIGKILL" in reason)
    both = ["client process 1 of 2 ended with signal SIGKILL", "client process 2 of 2 ended with signal SIGKILL"]
    lost = both.index(reason)
    assert (result.record.status[lost::2] == Status.ERROR).all()
    assert (result.record.status[1 - lost :: 2] == Status.OK).all()
    assert result.record.reasons == {reason: 100}


def test_processes_share_the_queries_that_a_closed_loop_keeps_open() -> None:
    config = RunConfig(
        target="", model="m", scenario=ScenarioName.CONCURRENCY, concurrency=3, queries=60, warmup_s=0, procs=2
    )
    all_open = asyncio.Event()

    async def answer_once_all_are_open(number: int, writer: asyncio.StreamWriter) -> None:
        if number >= 2:
            all_open.set()
        await all_open.wait()
        writer.write(ANSWER)

    with server(answer_once_all_are_open) as url:
        result = run(msgspec.structs.replace(config, target=url))
        with pytest.raises(ConfigError, match="--procs 4: each process needs a query to keep open; the scenario has 3"):
            run(msgspec.structs.replace(config, target=url, procs=4))
    record = result.record
    assert (record.status == Status.OK).all()
    assert len(record) == 60
    assert (np.diff(record.due_ns) >= 0).all()
    starts = np.searchsorted(np.sort(record.done_ns), record.due_ns, side="right")
    assert (np.arange(1, 61) - starts).max() == 3


def test_a_silent_process_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.loadgen.run.child.SILENCE_S", 3.0)

    async def stop_one(number: int, writer: asyncio.StreamWriter) -> None:
        if number == 20:
            os.kill(client_processes()[-1], signal.SIGSTOP)
        writer.write(ANSWER)

    with server(stop_one) as url:
        result = drive(url, 2)
    assert any("of 2 said nothing for 3 s" in reason for reason in result.invalid)
    assert client_processes() == []


def test_an_interrupt_ends_all_processes_early() -> None:
    async def interrupt(number: int, writer: asyncio.StreamWriter) -> None:
        if number == 20:
            os.kill(os.getpid(), signal.SIGINT)
        writer.write(ANSWER)

    assert threading.current_thread() is threading.main_thread()
    with server(interrupt) as url:
        result = drive(url, 2, rate=100.0, queries=3000)
    assert result.interrupted
    assert 20 <= len(result.record) < 3000
    assert (np.diff(result.record.due_ns) >= 0).all()
    assert (result.record.status == Status.OK).all()


def test_a_file_that_changes_between_the_processes_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = tmp_path / "samples.npz"
    np.savez(samples, x=np.zeros((4, 2), np.float32))

    def plan_then_change(config: RunConfig, metadata: Sequence[TargetModel]) -> RunPlan:
        plan = make_plan(config, metadata)
        np.savez(samples, x=np.zeros((9, 2), np.float32))
        return plan

    monkeypatch.setattr("sluice.loadgen.run.runner.make_plan", plan_then_change)
    source = SampleSource(str(samples))
    with server(answer) as url, pytest.raises(ConfigError, match="--procs: the processes made different schedules"):
        run(RunConfig(target=url, model="m", rate=400.0, queries=20, warmup_s=0, procs=2, samples=source))


def test_each_process_needs_a_connection() -> None:
    with (
        server(answer) as url,
        pytest.raises(ConfigError, match="--procs 3: each process needs a connection; expected at least as many"),
    ):
        run(RunConfig(target=url, model="m", rate=100.0, queries=10, warmup_s=0, procs=3, connections=2))


def test_a_simulation_has_no_client_processes() -> None:
    with pytest.raises(ConfigError, match="--procs: a simulated target has no client processes"):
        run(RunConfig(target="sim:none.yaml", model="m", rate=100.0, queries=10, procs=2))
