"""Which partitions are left alone, for how long, and when they are let back."""

import pytest

from sluice.mps.supervisor.quarantine import Quarantine, Quarantined, QuarantineSettings

SETTINGS = QuarantineSettings(faults=3, within_s=10, first_s=60, last_s=200)


def faults(quarantine: Quarantine, *seconds: float, partition: str = "a") -> list[float | None]:
    return [quarantine.worker_lost(partition, "it was killed", second) for second in seconds]


def test_a_partition_that_faults_often_enough_in_a_short_time_is_left_alone() -> None:
    quarantine = Quarantine("ab", SETTINGS)
    assert faults(quarantine, 0, 5, 9) == [None, None, 60]
    reason = "its worker was lost 3 times within 10 s: it was killed"
    assert quarantine.partitions == {"a": Quarantined(60, reason)}


def test_faults_that_are_far_apart_are_nothing_but_bad_luck() -> None:
    quarantine = Quarantine("ab", SETTINGS)
    assert faults(quarantine, 0, 6, 12, 18, 24) == [None] * 5
    assert quarantine.partitions == {}


def test_one_fault_on_probation_puts_it_back_for_twice_as_long_up_to_the_longest_time() -> None:
    quarantine = Quarantine("ab", SETTINGS)
    faults(quarantine, 0, 1, 2)
    waits = []
    for second in (100, 300, 600):
        quarantine.release("a")
        assert quarantine.partitions == {}
        quarantine.worker_ready("a", second)
        waits += faults(quarantine, second + 5)
    assert waits == [120, 200, 200]


def test_a_worker_that_stays_up_ends_the_probation() -> None:
    quarantine = Quarantine("ab", SETTINGS)
    faults(quarantine, 0, 1, 2)
    quarantine.release("a")
    quarantine.worker_ready("a", 100)
    assert faults(quarantine, 110, 111, 112) == [None, None, 60]


def test_one_that_does_not_come_up_is_put_back_at_once() -> None:
    quarantine = Quarantine("ab", SETTINGS)
    faults(quarantine, 0, 1, 2)
    quarantine.release("a")
    assert faults(quarantine, 500) == [120]


def test_the_last_partition_goes_on_whatever_happens() -> None:
    quarantine = Quarantine("ab", SETTINGS)
    assert faults(quarantine, 0, 1, 2, partition="b") == [None, None, 60]
    assert faults(quarantine, 0, 1, 2, 3) == [None] * 4
    quarantine.release("b")
    assert faults(quarantine, 4) == [60]


def test_the_only_partition_that_holds_a_model_goes_on_and_its_faults_count_all_the_same() -> None:
    quarantine = Quarantine("ab", SETTINGS)
    assert [quarantine.worker_lost("a", "it was killed", second, is_last=True) for second in range(5)] == [None] * 5
    assert faults(quarantine, 6) == [60]


def test_a_lost_device_is_left_alone_even_if_it_is_the_last() -> None:
    quarantine = Quarantine("a", SETTINGS)
    assert quarantine.device_lost("a", "GPU-5d1f is lost: XID 79") == 60
    assert quarantine.partitions == {"a": Quarantined(60, "GPU-5d1f is lost: XID 79")}


def test_with_no_number_of_faults_nothing_is_left_alone() -> None:
    quarantine = Quarantine("ab", QuarantineSettings(faults=0))
    assert faults(quarantine, *range(20)) == [None] * 20


@pytest.mark.parametrize(
    "fields",
    [{"faults": -1}, {"within_s": 0}, {"first_s": 0}, {"first_s": 100, "last_s": 50}, {"last_s": float("inf")}],
)
def test_settings_that_make_no_sense_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        QuarantineSettings(**fields)  # type: ignore[arg-type]
