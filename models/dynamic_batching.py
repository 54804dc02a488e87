"""A model configuration's settings of dynamic batching, in Triton's terms."""

import enum

import msgspec


class TimeoutAction(enum.StrEnum):
    """The fate of a request that has waited too long: it is rejected, or waits behind those that have not."""

    REJECT = "REJECT"
    DELAY = "DELAY"


class QueuePolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of a queue; 0 is no timeout, and no limit of the number of waiting requests."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_us: int = msgspec.field(default=0, name="default_timeout_microseconds")
    allow_timeout_override: bool = False
    max_queue_size: int = 0


class DynamicBatching(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Batches are sent at a `preferred` size, or when the first request has waited for `max_queue_delay_us`.

    `priority_levels` are numbered from 1, the most urgent; 0 is a single queue. `priority_queue_policy` has the levels
    whose policy is not `default_queue_policy`.
    """

    preferred: tuple[int, ...] = msgspec.field(default=(), name="preferred_batch_size")
    max_queue_delay_us: int = msgspec.field(default=0, name="max_queue_delay_microseconds")
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = QueuePolicy()
    priority_queue_policy: dict[int, QueuePolicy] = {}
