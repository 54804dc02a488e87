import json

import msgspec

from sluice.gateway.partitions.states import Enforcement, PartitionStates
from sluice.mps.ipc.messages import WorkerReady
from sluice.mps.partitions.isolation_report import Evidence, ThreadAffinity
from sluice.mps.partitions.partition import CpuPartition

STRAYED = WorkerReady(7, (1,), 1, (), Evidence((1,), (7,), 1))
HELD = WorkerReady(8, (0,), 1, (), Evidence((0,), (8,), 1))


def states() -> PartitionStates:
    return PartitionStates([CpuPartition("cpu0", (0,))])


def test_a_partition_is_what_its_worker_proves() -> None:
    known = states()
    assert known.enforced() == {}
    state = known.ready("cpu0", STRAYED)
    assert (state.worker, state.enforcement) == (7, Enforcement.UNENFORCED)
    assert state.reasons == ("the worker runs on cores 1, expected 0",)
    assert known.enforced() == {"cpu0": False}
    assert known.ready("cpu0", HELD).reasons == ()
    assert known.enforced() == {"cpu0": True}


def test_of_a_worker_that_is_gone_nothing_is_known() -> None:
    known = states()
    known.ready("cpu0", HELD)
    known.lost("cpu0", "it was killed")
    assert known.enforced() == {}
    state = known.all()["cpu0"]
    assert (state.worker, state.enforcement, state.lost) == (None, Enforcement.UNKNOWN, "it was killed")


def test_a_state_is_told_in_full() -> None:
    told = json.loads(msgspec.json.encode(states().ready("cpu0", STRAYED)))
    assert told["partition"]["kind"] == "cpu"
    assert told["evidence"]["cores"] == [1]
    assert told["reasons"] == ["the worker runs on cores 1, expected 0"]


def test_a_model_that_is_loaded_later_may_cost_a_partition_its_proof() -> None:
    known = states()
    known.ready("cpu0", HELD)
    state = known.proved("cpu0", Evidence((0,), (8,), 2, (ThreadAffinity("omp", 9, (0, 1)),)))
    assert (state.worker, state.enforcement) == (8, Enforcement.UNENFORCED)
    assert state.reasons == ("thread omp (9) of 2 may run on cores 0, 1, expected 0",)


def test_a_report_has_the_models_that_are_held() -> None:
    known = PartitionStates([CpuPartition("cpu0", (0,))], lambda name: {f"of-{name}:1": 4096})
    known.ready("cpu0", HELD)
    (told,) = json.loads(msgspec.json.encode(known.report()))
    assert (told["worker"], told["models"]) == (8, {"of-cpu0:1": 4096})
