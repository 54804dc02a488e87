"""Calibration against a simulated server, whose true parameters are known."""

import random
from copy import deepcopy
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sluice.batcher.drivers.journal import JournalStep, JournalWriter
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PartitionConfig, PipelineConfig, ScheduledModel, SchedulerSpec, StageConfig
from sluice.batcher.interface.decisions import AnyDecision, DispatchBatch, Member, ReleaseReason
from sluice.batcher.interface.events import AnyEvent, BatchCompleted, BatchRevoked, PartitionReady, RequestArrived
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.loadgen.records.record import Record, Status
from sluice.loadgen.records.statistics import query_statistics
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.scenarios.base import Score
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.simulation.simulation_file import HostSettings
from sluice.loadgen.traffic.schedule import Schedule
from sluice.loadgen.validation.host_times import (
    LoadTimings,
    cpu_costs_ns,
    host_settings,
    transit_jitter_us,
    transport_jitter_us,
)
from sluice.loadgen.validation.server_activity import GatewayActivity, ObservedBatch, read_journal, summarise_steps
from sluice.models.errors import ConfigError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_S
from tests.support.scheduling.services import WithoutConfidences

TABLE = LatencyTable.from_ms({1: 1.0, 4: 1.4, 16: 2.6})
SPEC = SchedulerSpec(
    (ScheduledModel("wide:1", 16, DeadlineSettings()),),
    (PipelineConfig("wide:1", (StageConfig("wide", "wide:1"),)),),
    (PartitionConfig("cpu0", "cpu1"),),
)
TRUTH = HostSettings(  # the processor is busy for half of each part of a lone request's way
    send_us=65,
    receive_us=30,
    handle_us=10,
    dispatch_us=60,
    dispatch_row_us=5,
    hand_off_us=60,
    between_us=25,
    return_us=50,
    complete_us=50,
    answers_us=45,
    answer_us=30,
    deliver_us=65,
)


class TableService(WithoutConfidences):
    def batch_ns(self, batch: DispatchBatch) -> int:
        return TABLE.latency_ns(batch.rows)


class Machine:
    """A server with the costs of `TRUTH`, under Poisson arrivals of a rate for ten seconds."""

    def __init__(self, rate: float) -> None:
        self.steps: list[JournalStep] = []
        gaps = random.Random(int(rate))
        due_ns = list(accumulate(int(gaps.expovariate(rate) * NS_PER_S) + 1 for _ in range(int(rate * 10))))
        record = Record.of(Schedule(np.array(due_ns, np.int64), np.zeros(len(due_ns), np.int64)))
        record.status[:] = Status.OK
        simulator = Simulator(
            Scheduler(SPEC), TableService(), self._observe, TRUTH.config(), record.done_ns.__setitem__
        )
        simulator.at(0, PartitionReady("cpu0", {"wide:1": TABLE}))
        simulator.run(
            (time_ns, RequestArrived(request, "wide:1", 1, time_ns + NS_PER_S))
            for request, time_ns in enumerate(due_ns)
        )
        config = RunConfig(target="http://machine", model="wide", rate=rate)
        self.result = RunResult(config, "", record, query_statistics(record, 99, 0), Score((), 0, 0), [])

    def _observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        self.steps.append(JournalStep(now_ns, event, tuple(decisions)))

    def load(self) -> LoadTimings:
        """The measured load; its CPU time is the time of everything that keeps the event loop busy."""
        (activity,) = summarise_steps(self.steps, [(1, 11 * NS_PER_S)]).activities
        request_us = TRUTH.receive_us + TRUTH.answer_us + 2 * TRUTH.handle_us + TRUTH.dispatch_row_us
        used_us = len(activity.arrived_ns) * request_us
        used_us += len(activity.batches) * (TRUTH.dispatch_us + TRUTH.complete_us + TRUTH.answers_us) + 30_000
        return LoadTimings(self.result, activity, round(used_us * 1e3))


@pytest.fixture(scope="module")
def loads() -> list[LoadTimings]:
    return [Machine(rate).load() for rate in (20, 500, 1500, 4000)]


def test_processor_time_is_split_between_requests_and_batches(loads: list[LoadTimings]) -> None:
    assert cpu_costs_ns(loads) == pytest.approx((85_000, 155_000), rel=0.02)


def test_the_parameters_of_a_server_are_found_from_outside(loads: list[LoadTimings]) -> None:
    found = msgspec.structs.asdict(host_settings(loads[:1], loads))
    assert found == pytest.approx(msgspec.structs.asdict(TRUTH), abs=2)


def test_ways_that_are_always_the_same_do_not_stray(loads: list[LoadTimings]) -> None:
    assert transit_jitter_us(loads[:1])[1:90] == (0.0,) * 89


def test_strays_are_how_batches_differ_on_their_ways_to_a_worker_and_back() -> None:
    def ways(out_us: int, back_us: int) -> ObservedBatch:
        sent_ns = 2 * NS_PER_S
        times_ns = (sent_ns, sent_ns + out_us * 1000, sent_ns + 10**6, sent_ns + 10**6 + back_us * 1000)
        return ObservedBatch("wide:1", 1, *times_ns, None, False, 0)

    batches = [ways(50, 300)] * 60 + [ways(90, 300)] * 40
    strays = transport_jitter_us([LoadTimings(Machine(20).result, GatewayActivity(batches=batches), 1)])
    assert (strays[79], strays[81]) == (0.0, 40.0)


def test_ways_stray_as_far_as_latencies_beyond_the_time_inside(loads: list[LoadTimings]) -> None:
    record, activity = loads[0].result.record, loads[0].activity
    late = deepcopy(record)
    late.done_ns[::4] += 200_000
    result = RunResult(loads[0].result.config, "", late, loads[0].result.metrics, Score((), 0, 0), [])
    assert transit_jitter_us([LoadTimings(result, activity, 1)])[76:90] == (200.0,) * 14


def test_batches_count_from_the_end_of_the_warm_up() -> None:
    load = Machine(50).load()
    settled_ns = [batch.dispatched_ns for batch in load.batches]
    assert settled_ns == [batch.dispatched_ns for batch in load.activity.batches if batch.dispatched_ns >= NS_PER_S]
    assert len(settled_ns) == pytest.approx(450, abs=60)


def test_a_run_begins_when_its_schedule_does() -> None:
    machine = Machine(50)
    later = LoadTimings(replace(machine.result, start_ns=5 * NS_PER_S), machine.load().activity, 1)
    assert min(batch.dispatched_ns for batch in later.batches) == pytest.approx(6 * NS_PER_S, abs=NS_PER_S // 5)


def test_a_refused_request_is_no_measure_of_the_ways_and_spoils_none() -> None:
    machine = Machine(20)
    activity, record = machine.load().activity, machine.result.record
    record.status[60] = Status.SHED
    refused = LoadTimings(
        machine.result, replace(activity, completed_ns=np.delete(activity.completed_ns, 60).tolist()), 1
    )
    assert len(refused.request_transit_ns) == len(refused.answer_transit_ns) == (record.due_ns >= NS_PER_S).sum() - 1
    assert np.median(refused.request_transit_ns) == pytest.approx(95_000, abs=1000)
    assert np.median(refused.answer_transit_ns) == pytest.approx(150_000, abs=1000)


def test_without_an_answer_there_is_nothing_to_measure() -> None:
    machine = Machine(20)
    machine.result.record.status[:] = Status.SHED
    refused = LoadTimings(machine.result, replace(machine.load().activity, completed_ns=[]), 1)
    with pytest.raises(ConfigError, match="calibration: no request of the unloaded runs was answered"):
        host_settings([refused], [refused])


def test_windows_of_a_journal_are_distinguished(tmp_path: Path) -> None:
    machine = Machine(50)
    path = tmp_path / "journal.jsonl"
    with path.open("wb") as file:
        writer = JournalWriter(file.write, SPEC)
        for step in machine.steps:
            writer.record(step.now_ns, step.event, list(step.decisions))
    journal = read_journal(path, [(NS_PER_S, 2 * NS_PER_S), (3 * NS_PER_S, 20 * NS_PER_S)])
    first, second = journal.activities
    due_ns = machine.result.record.due_ns
    assert journal.tables == {"wide:1": TABLE}
    assert len(first.arrived_ns) == pytest.approx(((due_ns > NS_PER_S) & (due_ns < 2 * NS_PER_S)).sum(), abs=1)
    assert len(second.arrived_ns) == pytest.approx((due_ns > 3 * NS_PER_S).sum(), abs=1)
    assert len(second.completed_ns) == pytest.approx(len(second.arrived_ns), abs=5)
    assert sum(run.rows for run in second.batches) == pytest.approx(len(second.arrived_ns), abs=5)


def test_a_partition_whose_batch_was_taken_back_is_idle_again() -> None:
    first, second = (
        DispatchBatch(batch, "cpu0", "wide:1", 1, (Member(batch, 0, 1),), ReleaseReason.IDLE) for batch in (1, 2)
    )
    steps = [
        JournalStep(1, None, (first,)),
        JournalStep(2, BatchRevoked(1), ()),
        JournalStep(3, None, (second,)),
        JournalStep(6, BatchCompleted(2, 4, 5), ()),
    ]
    ((run,),) = [activity.batches for activity in summarise_steps(steps, [(0, 10)]).activities]
    assert run == ObservedBatch("wide:1", 1, 3, 4, 5, 6, None, False, 0)
