"""From a policy's configuration to the policy."""

from sluice.batcher.interface.config import Limits, Objective, PolicyConfig, PolicyName
from sluice.batcher.policies.base import BatchPolicy
from sluice.batcher.policies.deadline import DeadlinePolicy, DeferringPolicy
from sluice.batcher.policies.no_batching import NoBatching
from sluice.batcher.policies.timeout import TimeoutPolicy


def select_policy(config: PolicyConfig, limits: Limits) -> BatchPolicy:
    """The batch policy that `config` names."""
    match config.name:
        case PolicyName.NONE:
            return NoBatching()
        case PolicyName.TIMEOUT:
            return TimeoutPolicy(config)
        case PolicyName.DEADLINE:
            return DeferringPolicy(limits) if config.objective is Objective.COST else DeadlinePolicy(limits)
