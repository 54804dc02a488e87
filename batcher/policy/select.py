"""From a policy's configuration to the policy."""

from batcher.config import Limits, Objective, PolicyConfig, PolicyName
from batcher.policy.base import BatchPolicy
from batcher.policy.deadline import DeadlinePolicy, DeferringPolicy
from batcher.policy.fixed import NoBatching
from batcher.policy.timeout import TimeoutPolicy


def select_policy(config: PolicyConfig, limits: Limits) -> BatchPolicy:
    """The batch policy that `config` names."""
    match config.name:
        case PolicyName.NONE:
            return NoBatching()
        case PolicyName.TIMEOUT:
            return TimeoutPolicy(config)
        case PolicyName.DEADLINE:
            return DeferringPolicy(limits) if config.objective is Objective.COST else DeadlinePolicy(limits)
