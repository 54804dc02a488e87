"""Records of the core that a test needs where it drives a part of the core by itself."""

from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.batcher.state import Batch, ModelState, PartitionState, Request
from tests.support.scheduling.builders import arrival, model, spec_of

_SCHEDULER = Scheduler(spec_of([model("m:1")]))


def model_state() -> ModelState:
    """The state of a model `m:1`."""
    return _SCHEDULER.dispatcher.models["m:1"]


def request(identity: int = 1) -> Request:
    """A request of one row and one stage for `m:1`, without places."""
    return Request(arrival(identity, 0), _SCHEDULER.pipelines["m:1"])


def batch(partition: PartitionState) -> Batch:
    """A batch of one row of `m:1`."""
    return Batch(1, ("m:1", ""), partition, partition.kind, [], 1, 0, 0, 1)
