"""Instance policies under random faults: every request has one outcome, memory is kept, and journals replay."""

import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batcher.interface.config import ScheduledModel
from sluice.batcher.interface.decisions import AnyDecision, DispatchBatch
from sluice.batcher.interface.events import AnyEvent, RequestArrived
from sluice.batcher.interface.instance_config import InstanceConfig, InstanceRule
from sluice.batcher.interface.residency_config import ResidencyConfig
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.loadgen.papers.engines.model_pool import PooledModel, play_pool
from tests.properties.test_cold_starts import DAY_MS, RESIDENCIES, Trial
from tests.support.scheduling.builders import MS

RULES = [rule for rule in InstanceRule if rule is not InstanceRule.LOCALITY]
POLICIES = st.builds(InstanceConfig, st.sampled_from(RULES), st.booleans())


class PooledTrial(Trial):
    """A trial in which some models have an instance policy, `c` and the new ones another, and the rest none."""

    def __init__(
        self,
        seed: int,
        residency: ResidencyConfig,
        memory: list[int],
        policies: tuple[InstanceConfig, InstanceConfig],
    ) -> None:
        first, second = policies
        self._ahead = random.Random(seed)
        self.not_before: dict[int, int] = {}
        self.instances = dict.fromkeys("abefg", first) | dict.fromkeys("cstu", second)
        super().__init__(seed, residency, memory, known=bool(seed % 2))

    def _model(self, key: str, known: bool) -> ScheduledModel:
        policy = TimeoutConfig() if key in "be" else DeadlineSettings()
        return msgspec.structs.replace(super()._model(key, known), instances=self.instances.get(key), policy=policy)

    def _sent(self, event: RequestArrived, now_ns: int) -> RequestArrived:
        """A third of the requests is sent ahead of its time."""
        ahead_ns = self._ahead.choice((0, 0, self._ahead.randint(1, 40 * MS)))
        if not ahead_ns:
            return event
        self.not_before[event.request] = now_ns + ahead_ns
        return msgspec.structs.replace(
            event, not_before_ns=now_ns + ahead_ns, deadline_ns=min(event.deadline_ns + ahead_ns, DAY_MS * MS)
        )

    def _observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        super()._observe(now_ns, event, decisions)
        for decision in decisions:
            if isinstance(decision, DispatchBatch) and self.instances.get(decision.model):
                assert all(self.not_before.get(each.request, 0) <= now_ns for each in decision.members)


@settings(deadline=None, max_examples=12)
@given(
    st.integers(0, 10**6),
    RESIDENCIES,
    st.lists(st.integers(2, 8), min_size=3, max_size=3),
    st.tuples(POLICIES, POLICIES),
)
def test_every_request_has_one_outcome_whatever_the_policies_and_the_faults_are(
    seed: int, residency: ResidencyConfig, memory: list[int], policies: tuple[InstanceConfig, InstanceConfig]
) -> None:
    trial = PooledTrial(seed, residency, memory, policies)
    trial.run(120)
    assert trial.outcomes == dict.fromkeys(range(120), 1)
    assert trial.scheduler.requests == {}
    assert not trial.scheduler.dispatcher.instances.chosen
    assert not trial.scheduler.dispatcher.instances.waiting()


@settings(deadline=None, max_examples=30)
@given(
    POLICIES,
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abc")), min_size=1, max_size=25).map(sorted),
)
def test_a_gpu_runs_one_request_at_a_time_and_none_before_its_time(
    policy: InstanceConfig, gpus: int, arrivals: list[tuple[float, str]]
) -> None:
    models = [PooledModel("a", 4, 2), PooledModel("b", 10, 8), PooledModel("c", 0, 3)]
    run = play_pool(policy, models, gpus, arrivals)
    assert sorted((each.came, each.model) for each in run.starts) == arrivals
    assert all(each.wait >= 0 for each in run.starts)
    takes = {model.name: (model.run, model.load) for model in models}
    for gpu in range(1, gpus + 1):
        free, held = 0.0, set[str]()
        for each in run.starts:
            if each.gpu == gpu:
                assert each.started >= free
                assert each.is_cold == (each.model not in held)
                free = each.started + takes[each.model][0] + each.is_cold * takes[each.model][1]
                held.add(each.model)
