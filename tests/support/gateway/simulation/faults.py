"""The faults that a simulated machine may have, and the draw of when they happen."""

import enum
from random import Random

ENABLED = 0.25
"""The part of all seeds in which a fault may happen: few at a time, so that each meets an otherwise healthy gateway."""
RATES = (0.02, 0.1, 0.4)
"""The part of its opportunities that an enabled fault takes."""


class Fault(enum.Enum):
    """A fault, by its opportunity."""

    # The gateway asks its kernel for something.
    NO_PROCESS = "a worker's process or its socket cannot be made"
    NO_SHARED_MEMORY = "a memory file cannot be made or mapped in the gateway"
    NO_DESCRIPTOR = "a descriptor cannot be duplicated"
    LOST_DESCRIPTOR = "a message arrives without its descriptors, since the gateway has too many"
    FULL_CHANNEL = "a message cannot be sent now"
    SMALL_BUFFER = "a worker's channel has room for a few messages only"
    BROKEN_SEND = "a message cannot be sent, since the kernel lacks memory"

    # A worker starts, loads a model or runs a batch.
    DIES_STARTING = "it dies before it is ready"
    SILENT_STARTING = "it never gets ready"
    EARLY_ANSWER = "it answers a batch before it is ready"
    DIES_LOADING = "it dies while it loads a model"
    LOAD_FAILS = "a model does not load"
    SLOW = "a load or a batch takes many times as long"
    DIES_RUNNING = "it dies while it runs a batch"
    DIES_ANSWERED = "it dies right after an answer"
    BATCH_FAILS = "the model refuses a batch"
    BATCH_MEMORY = "a batch has no memory"
    WORKER_NO_SHARED_MEMORY = "a memory file cannot be made in the worker"

    # A worker answers a batch.
    LATE_ANSWER = "the answer comes late"
    LOST_ANSWER = "the answer never comes"
    DOUBLED_ANSWER = "the answer comes twice"
    REORDERED_ANSWER = "the answer comes after the next one"
    GARBAGE = "it sends bytes that are no message"
    WRONG_BATCH = "the answer names another batch"
    WRONG_ROWS = "the answer has another number of rows"
    WRONG_REGION = "the answer names a region that is not there"
    WRONG_PLACE = "the answer names a place beyond the end of its region"
    WRONG_OUTPUTS = "an output of the answer is missing or has another name or datatype"
    WRONG_CONFIDENCES = "the answer has a wrong number of confidences"
    WRONG_TIMES = "the answer says that it ended before it began"
    UNASKED = "it reports something that it was not asked for"

    # At any time.
    KILLED = "a worker is killed"
    STOPPED = "a worker is stopped, for a while or for good"
    PAUSED = "everything stands still for a while, and then the clock jumps"
    COARSE_CLOCK = "the clock moves in steps, and stands still between them"


class Faults:
    """Draws from a seed which faults may happen, and whether one does at each opportunity.

    Each fault has its own source, so that a new fault does not change when the others happen. Nothing happens while
    they are not `active`.
    """

    def __init__(self, seed: int) -> None:
        self.active = False
        self.source = {fault: Random(f"{seed} {fault.name}") for fault in Fault}
        self._rates = {
            fault: source.choice(RATES) for fault, source in self.source.items() if source.random() < ENABLED
        }

    @property
    def enabled(self) -> list[str]:
        """The names of the faults that may happen."""
        return [fault.name for fault in self._rates]

    def happens(self, fault: Fault) -> bool:
        """Take an opportunity of a fault; true if it happens."""
        return self.active and fault in self._rates and self.source[fault].random() < self._rates[fault]

    def one_of(self, *faults: Fault) -> Fault | None:
        """The first of these faults that happens."""
        return next(filter(self.happens, faults), None)
