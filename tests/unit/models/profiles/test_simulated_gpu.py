from statistics import fmean

import pytest

from sluice.models.errors import ConfigError
from sluice.models.profiles.measurement import Cell
from sluice.models.profiles.simulated_gpu import MPS, GpuFraction, gpu_fraction_of, latency_ms, simulate

# Published medians in ms, by batch size and partition: ResNet-50 on a V100 (TensorRT, MPS), an A100-80 (PyTorch, MIG).
V100 = {
    1: {10: 7.7, 20: 4.3, 40: 3.0, 50: 2.9, 60: 2.9, 80: 2.5, 100: 2.5},
    8: {20: 25.1, 40: 13.5, 50: 11.6, 60: 10.3, 80: 7.6},
    32: {20: 93.8, 40: 49.0, 50: 40.1, 60: 34.5, 80: 27.2},
}
A100 = {
    1: {"1g": 5.1, "2g": 4.7, "3g": 4.7, "4g": 4.7, "7g": 5.1},
    8: {"1g": 22.3, "2g": 11.6, "3g": 7.5, "4g": 6.2, "7g": 5.0},
    32: {"1g": 77.7, "2g": 40.6, "3g": 24.8, "4g": 21.5, "7g": 13.4},
    128: {"3g": 93.4, "4g": 82.7, "7g": 50.2},
}


def test_resnet50_under_mps_is_what_was_published() -> None:
    errors = [
        abs(latency_ms("resnet50", f"mps-{percent}", batch) / measured - 1)
        for batch, row in V100.items()
        for percent, measured in row.items()
    ]
    assert len(errors) == 17
    assert fmean(errors) <= 0.025
    assert max(errors) <= 0.086


def test_resnet50_on_mig_is_what_was_published() -> None:
    errors = [
        abs(latency_ms("resnet50", f"mig-{profile}", batch) / measured - 1)
        for batch, row in A100.items()
        for profile, measured in row.items()
    ]
    assert len(errors) == 18
    assert fmean(errors) <= 0.039
    assert max(errors) <= 0.10


@pytest.mark.parametrize(
    ("model", "kind", "batch", "milliseconds"),
    [
        ("vgg16", "mig-7g", 1, 1.4820),
        ("vgg19", "mig-7g", 1, 1.7559),
        ("vgg19", "mig-1g.10gb", 8, 38.9305),
        ("bert", "mig-7g", 8, 32.52),
        ("bert", "mig-1g", 1, 16.0867),
        ("densenet201", "mig-7g", 1, 20.31),
    ],
)
def test_other_models_on_mig(model: str, kind: str, batch: int, milliseconds: float) -> None:
    assert latency_ms(model, kind, batch) == pytest.approx(milliseconds, abs=1e-4)


@pytest.mark.parametrize(
    ("model", "batch", "percent"),
    [
        ("resnet50", 1, 56),
        ("resnet50", 4, 85),
        ("resnet50", 16, 89),
        ("alexnet", 1, 54),
        ("ssd", 1, 72),
        ("vgg19", 1, 84),
    ],
)
def test_the_smallest_share_nearly_as_quick_as_the_whole(model: str, batch: int, percent: int) -> None:
    whole = MPS[model].latency_ms(batch, GpuFraction(1, 1))
    knee = next(p for p in range(10, 101) if MPS[model].latency_ms(batch, GpuFraction(p / 100, 1)) <= 1.1 * whole)
    assert knee == pytest.approx(percent, abs=1)


def test_small_batches_are_bound_by_launches_and_large_ones_by_the_share() -> None:
    assert latency_ms("resnet50", "mig-7g", 1) == pytest.approx(latency_ms("resnet50", "mig-2g", 1), rel=0.001)
    assert latency_ms("resnet50", "mps-20", 32) / latency_ms("resnet50", "mps-80", 32) == pytest.approx(3.5, abs=0.1)


def test_two_instances_together_do_more_than_the_whole_card() -> None:
    rates = {kind: 128 / latency_ms("resnet50", kind, 128) for kind in ("mig-3g", "mig-4g", "mig-7g")}
    assert rates["mig-3g"] + rates["mig-4g"] > rates["mig-7g"]


def test_shares_are_what_is_granted() -> None:
    assert gpu_fraction_of("mps-50") == GpuFraction(0.5, 1.0)
    assert gpu_fraction_of("mps-33") == GpuFraction(26 / 80, 1.0)
    assert gpu_fraction_of("mig-3g") == gpu_fraction_of("mig-3g.40gb") == GpuFraction(3 / 7, 4 / 8)
    assert gpu_fraction_of("mig-1g.20gb") == GpuFraction(1 / 7, 2 / 8)


@pytest.mark.parametrize(("kind", "batch", "factor"), [("+c1", 4, 1), ("+c1", 8, 2), ("+c2", 16, 2), ("+c4", 16, 1)])
def test_with_few_host_cores_large_batches_take_longer(kind: str, batch: int, factor: int) -> None:
    for device in ("mig-2g", "mps-40"):
        alone = latency_ms("resnet50", device, batch)
        assert latency_ms("resnet50", device + kind, batch) == pytest.approx(factor * alone)


@pytest.mark.parametrize("kind", ["mps-5", "mps-101", "mps-", "mig-5g", "mig-1g.7gb", "cpu1", "mps-50 ", "mig-5g+c2"])
def test_other_kinds_are_refused(kind: str) -> None:
    with pytest.raises(
        ConfigError, match=r"cannot be simulated; expected mps-10 to mps-100 or one of mig-1g, mig-1g\.10gb"
    ):
        gpu_fraction_of(kind)


def test_a_model_without_a_fit_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(
        ConfigError, match="model bert: cannot be simulated on mps-20; expected one of alexnet, resnet50, ssd, vgg19"
    ):
        latency_ms("bert", "mps-20", 1)


def test_a_simulated_measurement_has_no_samples_and_a_lognormal_spread() -> None:
    measurement = simulate("bert", "mig-7g", (1, 8))
    assert measurement.cells == (
        Cell(1, 12_220_000, 12_698_984, 13_103_285, 0),
        Cell(8, 32_520_000, 33_794_676, 34_870_608, 0),
    )
    assert measurement.memory_rest_bytes is None
