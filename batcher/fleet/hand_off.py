"""Hand-off times: the time to a worker and back, learned for each partition."""

from sluice.batcher.state import PartitionState
from sluice.models.units import NS_PER_MS

HAND_OFF_WEIGHT = 0.05
"""Weight of one batch in the smoothed hand-off time."""
MAX_HAND_OFF_NS = 10 * NS_PER_MS
"""Upper bound of a learned hand-off time."""


def observe_hand_off(
    partition: PartitionState, dispatched_ns: int, started_ns: int, ended_ns: int, now_ns: int
) -> int | None:
    """Learn the hand-off time of a batch, and return it; None if the batch waited for another batch."""
    took_ns = None
    if dispatched_ns >= partition.last_end_ns:
        took_ns = (started_ns - dispatched_ns) + (now_ns - ended_ns)
        learned_ns = partition.hand_off_ns + int(HAND_OFF_WEIGHT * (took_ns - partition.hand_off_ns))
        partition.hand_off_ns = min(max(learned_ns, partition.least_hand_off_ns), MAX_HAND_OFF_NS)
    partition.last_end_ns = ended_ns
    return took_ns
