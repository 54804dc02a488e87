"""Under a constant load cores never move back and forth, for random models, objectives and partitions."""

import itertools

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batcher.interface.config import PartitionConfig, SchedulerSpec
from sluice.batcher.interface.plan_data import Observed
from sluice.batcher.interface.resize_data import Ask, Cores, Split
from sluice.batcher.planner.splits import best_step
from sluice.batcher.scheduler.core_steps import StepChoice, steps
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.partitions.balance import SAMPLES_IN_A_ROW, BalanceSettings
from tests.support.scheduling.builders import MS, model, single, spec_of

CORES = 5
KINDS = [f"cpu{size}" for size in range(1, CORES + 1)]
BATCHES = (1, 4)

tables = st.dictionaries(
    st.sampled_from(("m", "n")),
    st.fixed_dictionaries(
        {
            kind: st.lists(st.integers(1, 60), min_size=2, max_size=2).map(
                lambda ms: LatencyTable.from_ms(dict(zip(BATCHES, sorted(ms), strict=True)))
            )
            for kind in KINDS
        }
    ),
    min_size=2,
)
rates = st.fixed_dictionaries({name: st.sampled_from((0.0, 1.0, 10.0, 40.0, 90.0, 300.0)) for name in "mn"})
objectives = st.fixed_dictionaries({name: st.sampled_from((0, 10, 30, 100)) for name in "mn"})


@settings(max_examples=80, deadline=None)
@given(tables, rates, objectives, st.integers(1, 3), st.integers(0, 2))
def test_no_split_recurs_under_a_constant_load(
    tables: dict[str, dict[str, LatencyTable]],
    rates: dict[str, float],
    objectives: dict[str, int],
    partitions: int,
    lent: int,
) -> None:
    own: dict[str, Cores] = {f"p{number}": (number,) for number in range(partitions)}
    held = {**own, "p0": (0, *range(partitions, partitions + lent))}
    pipelines = [msgspec.structs.replace(single(name), slo_ns=slo_ms * MS) for name, slo_ms in objectives.items()]
    choice, looks = StepChoice(BalanceSettings(pause_s=0)), itertools.count()
    seen = []
    while True:
        sizes = {name: len(cores) for name, cores in held.items()}
        assert sizes not in seen
        seen.append(sizes)
        models = [model("m", 4), model("n", 4)]
        present = spec_of(models, pipelines, partitions=tuple(map(config, held, held.values())))
        asked = ask(present, tables, rates, held, own)
        done = [choice.look(5.0 * next(looks), asked) for _ in range(SAMPLES_IN_A_ROW)]
        if asked is None:
            break
        assert done == [None, None, asked]
        held = held | {change.partition: change.held for change in asked.step.changes}


def config(name: str, cores: Cores) -> PartitionConfig:
    return PartitionConfig(name, f"cpu{len(cores)}", float(len(cores)))


def ask(
    spec: SchedulerSpec,
    tables: dict[str, dict[str, LatencyTable]],
    rates: dict[str, float],
    held: dict[str, Cores],
    own: dict[str, Cores],
) -> Ask | None:
    spare = tuple(sorted({*range(CORES)} - {core for cores in held.values() for core in cores}))
    splits = [
        Split(step, tuple(config(name, cores) for name, cores in step.changes)) for step in steps(held, own, spare)
    ]
    later = {name: 1.25 * rate for name, rate in rates.items()}
    return best_step(spec, Observed(tables, rates, {}), later, splits)
