import pytest

from sluice.models.units import NS_PER_S
from sluice.mps.packing.best_fit import BestFit
from sluice.mps.packing.cbp import CorrelationBased
from sluice.mps.packing.exclusive import Exclusive
from sluice.mps.packing.first_fit_decreasing import FirstFitDecreasing
from sluice.mps.packing.peak_safe import PeakSafe
from sluice.mps.packing.policy import choose_device
from sluice.mps.packing.pp import PeakPrediction
from sluice.mps.packing.tenant import Device, MemoryPhase, PlacedTenant, Tenant


def device(name: str, memory_mib: int, *promised: int, used: tuple[float, ...] = ()) -> Device:
    tenants = (Tenant(f"{name}-{number}", mib) for number, mib in enumerate(promised))
    return Device(name, memory_mib, tuple(PlacedTenant(tenant, 0) for tenant in tenants), used)


def job(name: str, *phases: tuple[int, int], request_mib: int = 1) -> Tenant:
    """A job of phases, each with its MiB and seconds."""
    return Tenant(name, request_mib, tuple(MemoryPhase(mib, seconds * NS_PER_S) for mib, seconds in phases))


def model(name: str, load_mib: int, serve_mib: int) -> Tenant:
    return Tenant(name, 1, (MemoryPhase(load_mib, 10 * NS_PER_S), MemoryPhase(serve_mib)))


def test_nobody_shares_an_exclusive_device() -> None:
    policy = Exclusive()
    assert policy.refusal(Tenant("a", 8138), device("gpu", 16276)) is None
    assert policy.refusal(Tenant("a", 8138), device("gpu", 16276, 1)) == "gpu-0 has the device to itself"
    assert policy.refusal(Tenant("a", 16277), device("gpu", 16276)) == "requests 16277 MiB of 16276"


def test_the_best_fit_leaves_the_least() -> None:
    # The example of gpushare: of devices with 12207, 8138, 4069 and 16276 MiB left the second takes 8138.
    devices = [device("a", 16276, 4069), device("b", 16276, 8138), device("c", 16276, 12207), device("d", 16276)]
    chosen, refusals = choose_device(BestFit(), Tenant("model", 8138), devices)
    assert chosen is devices[1]
    assert refusals == {"c": "takes 8138 MiB, and 4069 of 16276 are not reserved"}


def test_the_best_fit_books_whole_units() -> None:
    gib = BestFit(unit_mib=1024)
    assert gib.accounted_mib(Tenant("model", 6994)) == 7168
    full = device("gpu", 32510, 6994, 6994, 6994, 6994)
    assert gib.refusal(Tenant("model", 3 * 1024), full) is None
    assert gib.refusal(Tenant("model", 3 * 1024 + 1), full) == "takes 4096 MiB, and 3072 of 32510 are not reserved"


def test_the_largest_request_takes_the_first_device() -> None:
    policy = FirstFitDecreasing()
    small, large, middle = Tenant("s", 100), Tenant("l", 900), Tenant("m", 500)
    assert policy.in_order([small, large, middle]) == [large, middle, small]
    devices = [device("full", 1000, 200), device("empty", 1000)]
    assert choose_device(policy, middle, devices) == (devices[0], {})
    assert choose_device(policy, large, devices) == (
        devices[1],
        {"full": "requests 900 MiB, and 800 of 1000 are not reserved"},
    )


UP = tuple(float(mib) for mib in range(100, 300, 10))
DOWN = UP[::-1]
EVEN = (200.0,) * 20


def test_cbp_fills_what_others_leave_idle() -> None:
    policy = CorrelationBased()
    quiet = device("gpu", 1000, 1000, used=EVEN)
    assert policy.refusal(Tenant("a", 800), quiet) is None
    assert policy.refusal(Tenant("a", 801), quiet) == (
        "requests 801 MiB, and 0 of 1000 are not reserved; 800 MiB are idle at the 80th percentile"
    )
    # A tenant whose use was sampled counts for its own percentile.
    assert policy.refusal(Tenant("a", 900, usage=EVEN), quiet) is None
    assert policy.accounted_mib(Tenant("a", 900, usage=UP)) == 260


def test_cbp_wants_enough_samples_of_steady_memory() -> None:
    policy = CorrelationBased()
    new = device("gpu", 1000, 1000, used=EVEN[1:])
    reason = policy.refusal(Tenant("a", 10), new)
    assert reason is not None
    assert reason.endswith("19 samples of its memory are too few, expected 20")
    unsteady = device("gpu", 1000, 1000, used=(0.0, 1000.0) * 10)
    reason = policy.refusal(Tenant("a", 10), unsteady)
    assert reason is not None
    assert reason.endswith("the free memory is unsteady (coefficient of variation 1.00)")


def test_cbp_keeps_those_apart_that_go_up_together() -> None:
    there = PlacedTenant(Tenant("b", 1000, usage=UP), 0)
    shared = Device("gpu", 1000, (there,), UP)
    assert CorrelationBased().refusal(Tenant("a", 100, usage=DOWN), shared) is None
    reason = CorrelationBased().refusal(Tenant("a", 100, usage=UP), shared)
    assert reason is not None
    assert reason.endswith("it goes up with b (rank correlation 1.00)")
    assert CorrelationBased(corr_max=1.1).refusal(Tenant("a", 100, usage=UP), shared) is None


def test_pp_comes_when_the_forecast_says_so() -> None:
    # From 900 MiB in use down to 610, ten a second: 400 are free now, and 490 in ten seconds.
    falling = device("gpu", 1000, 1000, used=tuple(float(mib) for mib in range(900, 600, -10)))
    assert CorrelationBased().refusal(Tenant("a", 450), falling) is not None
    assert PeakPrediction().refusal(Tenant("a", 450), falling) is not None  # autocorrelation 0.28
    eager = PeakPrediction(autocorr_min=0)
    assert eager.refusal(Tenant("a", 490), falling) is None
    reason = eager.refusal(Tenant("a", 491), falling)
    assert reason is not None
    assert reason.endswith("490 MiB are forecast to be free")


def test_pp_makes_no_forecast_of_fewer_samples_than_it_looks_back() -> None:
    few = device("gpu", 1000, 1000, used=(900.0,) * 11)
    reason = PeakPrediction(samples_min=2).refusal(Tenant("a", 450), few)
    assert reason is not None
    assert reason.endswith("100 MiB are idle at the 80th percentile")


def test_no_forecast_is_above_the_device() -> None:
    emptying = device("gpu", 1000, 1000, used=tuple(float(mib) for mib in range(295, 0, -10)))
    assert PeakPrediction(autocorr_min=0).refusal(Tenant("a", 1000), emptying) is None
    reason = PeakPrediction(autocorr_min=0).refusal(Tenant("a", 1001), emptying)
    assert reason is not None
    assert reason.endswith("1000 MiB are forecast to be free")


def test_pp_makes_no_forecast_of_noise() -> None:
    reason = PeakPrediction().refusal(Tenant("a", 900), device("gpu", 1000, 1000, used=EVEN))
    assert reason is not None
    assert reason.endswith("no forecast (autocorrelation 0.00)")


@pytest.mark.parametrize("policy", [CorrelationBased(), PeakPrediction()])
def test_the_emptiest_device_is_taken_by_those_that_watch(policy: CorrelationBased | PeakPrediction) -> None:
    devices = [device("a", 1000, used=(300.0,)), device("b", 1000, used=(200.0,)), device("c", 1000, used=(400.0,))]
    assert choose_device(policy, Tenant("a", 100), devices)[0] is devices[1]


def test_a_measured_peak_counts_and_not_the_request() -> None:
    policy = PeakSafe(headroom_mib=512)
    there = tuple(PlacedTenant(model(f"m{number}", 3000, 3000), 10 * NS_PER_S) for number in range(2))
    shared = Device("gpu", 10_000, there)
    assert policy.refusal(model("new", 3488, 3488), shared) is None
    assert (
        policy.refusal(model("new", 3489, 3489), shared) == "all would come to 9489 MiB, of 10000 less 512 of headroom"
    )
    assert policy.refusal(Tenant("never measured", 3489), shared) is not None


def test_one_load_peak_at_a_time_is_enough() -> None:
    policy = PeakSafe(headroom_mib=0)
    loading = Device("gpu", 10_000, (PlacedTenant(model("first", 6000, 3000), 9 * NS_PER_S),))
    assert policy.refusal(model("second", 6000, 3000), loading) == "first is loading, and loads go one at a time"
    loaded = Device("gpu", 10_000, (PlacedTenant(model("first", 6000, 3000), 10 * NS_PER_S),))
    assert policy.refusal(model("second", 6000, 3000), loaded) is None


def test_a_tenant_that_is_loaded_again_still_has_its_peak() -> None:
    loaded = Device("gpu", 10_000, (PlacedTenant(model("first", 8000, 3000), 10 * NS_PER_S),))
    policy = PeakSafe(headroom_mib=0)
    assert policy.refusal(model("second", 2000, 2000), loaded) is None
    assert policy.refusal(model("second", 2001, 2001), loaded) is not None


def test_a_job_counts_while_a_model_is_loaded_again() -> None:
    there = (PlacedTenant(model("first", 8000, 3000), 10 * NS_PER_S), PlacedTenant(job("job", (1000, 100)), 0))
    policy = PeakSafe(headroom_mib=0)
    assert policy.refusal(model("second", 1000, 1000), Device("gpu", 10_000, there)) is None
    assert policy.refusal(model("second", 1001, 1001), Device("gpu", 10_000, there)) is not None


def test_a_job_makes_room_for_one_that_grows_after_its_end() -> None:
    policy = PeakSafe(headroom_mib=0)
    new = job("new", (500, 20), (6000, 100))

    def with_old(age_s: int) -> Device:
        return Device("gpu", 8000, (PlacedTenant(job("old", (500, 20), (6000, 100)), age_s * NS_PER_S),))

    assert policy.refusal(new, with_old(99)) == "all would come to 12000 MiB, of 8000 less 0 of headroom"
    assert policy.refusal(new, with_old(100)) is None


def test_memory_that_nobody_should_use_counts_for_good() -> None:
    policy = PeakSafe(headroom_mib=0)
    late = Device("gpu", 8000, (PlacedTenant(job("late", (6000, 100)), 101 * NS_PER_S),), used=(6000.0,))
    assert policy.refusal(job("new", (2000, 10)), late) is None
    assert policy.refusal(job("new", (2001, 10)), late) is not None


def test_the_highest_peak_comes_first_to_the_tightest_place() -> None:
    policy = PeakSafe(headroom_mib=0)
    small, large = model("small", 900, 100), model("large", 1000, 1000)
    assert policy.in_order([small, large]) == [large, small]
    assert choose_device(policy, small, [Device("a", 2000), Device("b", 900), Device("c", 800)]) == (
        Device("b", 900),
        {"c": "all would come to 900 MiB, of 800 less 0 of headroom"},
    )
