from sluice.models.units import NS_PER_S
from sluice.mps.packing.layout import PackingResult, pack_tenants
from sluice.mps.packing.policies import POLICIES
from sluice.mps.packing.tenant import Device, MemoryPhase, Tenant

UP = tuple(float(mib) for mib in range(1000, 3000, 100))
DOWN = UP[::-1]


def model(name: str, request_mib: int, load_mib: int, serve_mib: int) -> Tenant:
    return Tenant(name, request_mib, (MemoryPhase(load_mib, NS_PER_S), MemoryPhase(serve_mib)))


MODELS = (
    model("resnet50", 8192, 4200, 3100),
    model("bert", 8192, 6900, 5200),
    model("llama", 16384, 15200, 13900),
    model("vgg19", 8192, 2700, 2700),
)
DEVICES = (Device("gpu0", 16384), Device("gpu1", 16384))


def places(packed: PackingResult) -> dict[str, list[str]]:
    return {device.name: [each.tenant.name for each in device.residents] for device in packed.devices}


def test_requests_leave_one_out_that_measured_peaks_place() -> None:
    by_average = pack_tenants(POLICIES["best_fit"], MODELS, DEVICES)
    assert places(by_average) == {"gpu0": ["resnet50", "bert"], "gpu1": ["llama"]}
    assert list(by_average.refused) == ["vgg19"]
    measured = pack_tenants(POLICIES["peak_safe"], MODELS, DEVICES)
    assert places(measured) == {"gpu0": ["llama"], "gpu1": ["bert", "resnet50", "vgg19"]}
    assert measured.refused == {}


def test_who_comes_alone_needs_a_device() -> None:
    packed = pack_tenants(POLICIES["exclusive"], MODELS, DEVICES)
    assert places(packed) == {"gpu0": ["resnet50"], "gpu1": ["bert"]}
    assert packed.refused["llama"] == {
        "gpu0": "resnet50 has the device to itself",
        "gpu1": "bert has the device to itself",
    }


def test_a_model_without_samples_uses_what_was_measured_of_it() -> None:
    models = [
        Tenant("a", 9000, (MemoryPhase(3000),)),
        Tenant("b", 100, (MemoryPhase(100),), usage=(50.0, 60.0)),
        Tenant("c", 7),
    ]
    packed = pack_tenants(POLICIES["first_fit_decreasing"], models, [Device("gpu", 10_000)])
    assert packed.devices[0].used == (3057.0, 3067.0)
    # What "a" asks for in vain is nobody else's memory.
    assert places(
        pack_tenants(POLICIES["peak_safe"], [*models, model("d", 1, 6000, 6000)], [Device("gpu", 10_000)])
    ) == {"gpu": ["d", "a", "b", "c"]}


def test_samples_of_models_are_those_of_their_device() -> None:
    models = [Tenant("a", 3000, usage=UP), Tenant("b", 3000, usage=DOWN), Tenant("c", 3000, usage=UP)]
    packed = pack_tenants(POLICIES["cbp"], models, [Device("gpu", 5800)])
    # a and b together use 3900 MiB all the time, and c goes up with a.
    assert places(packed) == {"gpu": ["a", "b"]}
    assert packed.devices[0].used == (3900.0,) * 20
    assert packed.refused["c"]["gpu"].endswith("it goes up with a (rank correlation 1.00)")
