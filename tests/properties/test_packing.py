from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.loadgen.papers.engines.packing_replay import PackingJob, SchedulerTiming, replay
from sluice.models.units import NS_PER_S
from sluice.mps.packing.layout import pack_tenants
from sluice.mps.packing.peak_safe import PeakSafe
from sluice.mps.packing.policies import POLICIES
from sluice.mps.packing.tenant import Device, MemoryPhase, Tenant

MEMORY_MIB = 1000
HEADROOM_MIB = 50

lives = st.lists(st.tuples(st.integers(0, MEMORY_MIB - HEADROOM_MIB), st.integers(1, 60)), min_size=1, max_size=4).map(
    lambda phases: tuple(MemoryPhase(mib, seconds * NS_PER_S) for mib, seconds in phases)
)


@st.composite
def jobs(draw: st.DrawFn) -> list[PackingJob]:
    """Jobs with arbitrary durations whose memory never exceeds the measured memory."""
    found = []
    for number in range(draw(st.integers(1, 8))):
        measured = draw(lives)
        life = tuple(MemoryPhase(phase.memory_mib, draw(st.integers(1, 90)) * NS_PER_S) for phase in measured)
        known = draw(st.sampled_from([measured, ()]))
        request_mib = draw(st.integers(max(phase.memory_mib for phase in measured), MEMORY_MIB - HEADROOM_MIB))
        tenant = Tenant(f"job-{number}", request_mib, known)
        found.append(PackingJob(tenant, draw(st.integers(0, 100)) * NS_PER_S, life))
    return found


@settings(max_examples=40, deadline=None)
@given(jobs(), st.integers(1, 2))
def test_measured_peaks_never_run_out_of_memory(work: list[PackingJob], devices: int) -> None:
    policy = PeakSafe(headroom_mib=HEADROOM_MIB)
    played = replay(policy, work, {f"gpu{n}": MEMORY_MIB for n in range(devices)}, SchedulerTiming(look_ns=NS_PER_S))
    assert len(played.jobs) == len(work)
    assert played.restarts == 0
    assert played.peak_mib <= MEMORY_MIB - HEADROOM_MIB


models = st.builds(
    lambda request, load, serve: (request, (MemoryPhase(load, NS_PER_S), MemoryPhase(serve))),
    st.integers(1, 1200),
    st.integers(1, 1200),
    st.integers(1, 1200),
)


@settings(deadline=None)
@given(st.lists(models, min_size=1, max_size=8), st.sampled_from(sorted(POLICIES)))
def test_every_model_is_placed_once_or_refused_by_every_device(
    given_models: list[tuple[int, tuple[MemoryPhase, ...]]], name: str
) -> None:
    tenants = [Tenant(f"m{n}", request, phases) for n, (request, phases) in enumerate(given_models)]
    devices = [Device("a", MEMORY_MIB), Device("b", MEMORY_MIB)]
    packed = pack_tenants(POLICIES[name], tenants, devices)
    placed = [each.tenant.name for device in packed.devices for each in device.residents]
    assert sorted([*placed, *packed.refused]) == sorted(tenant.name for tenant in tenants)
    assert all(set(reasons) == {"a", "b"} for reasons in packed.refused.values())
    if name == "peak_safe":
        assert all(device.forecast.peak_mib <= MEMORY_MIB - 512 for device in packed.devices)
