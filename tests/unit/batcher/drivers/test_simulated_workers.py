"""Which slots get workers in a simulation, and which lose them."""

import msgspec

from sluice.batcher.drivers.simulated_workers import SimulatedWorkers
from sluice.batcher.interface.decisions import SetPartitions
from sluice.batcher.interface.scaling_config import ScaledClass, ScalingConfig
from tests.support.scheduling.builders import S, spec_of

SLOTS = ("edge-0", "edge-1", "edge-2")


def workers() -> SimulatedWorkers:
    scaling = ScalingConfig((ScaledClass("edge", SLOTS, 1, 3),))
    return SimulatedWorkers(msgspec.structs.replace(spec_of([], []), scaling=scaling), lambda slot: 5 * S)


def test_the_first_free_slots_get_workers_after_their_start() -> None:
    made = workers()
    assert made.follow(SetPartitions("edge", 2), S) == ([], [(6 * S, "edge-0"), (6 * S, "edge-1")])
    assert not made.is_due("edge-0", 5 * S)
    assert made.is_due("edge-0", 6 * S)


def test_slots_that_are_to_leave_lose_their_workers_at_once() -> None:
    made = workers()
    made.follow(SetPartitions("edge", 3), 0)
    assert made.follow(SetPartitions("edge", 2, ("edge-0",)), 6 * S) == (["edge-0"], [])
    assert made.restart_ns("edge-0", 7 * S) is None


def test_of_those_that_start_the_last_ones_go() -> None:
    made = workers()
    made.follow(SetPartitions("edge", 1), 0)
    made.follow(SetPartitions("edge", 3), 6 * S)
    assert made.follow(SetPartitions("edge", 2), 7 * S) == ([], [])
    assert not made.is_due("edge-2", 60 * S)
    assert made.is_due("edge-1", 11 * S)


def test_a_lost_worker_is_replaced_after_a_start() -> None:
    made = workers()
    made.follow(SetPartitions("edge", 1), 0)
    assert made.restart_ns("edge-0", 10 * S) == 15 * S
    assert not made.is_due("edge-0", 10 * S)
