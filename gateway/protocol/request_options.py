"""The options of a checked inference request: everything it asks for apart from the contents of its tensors."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from sluice.gateway.protocol.classification import Classification
from sluice.gateway.protocol.shared_memory import SharedMemoryWindow
from sluice.models.sequence_batching import SequenceStep

Deliveries: TypeAlias = Mapping[str, SharedMemoryWindow | Classification]
"""The outputs that the response does not carry as they are, and how each of them is delivered instead."""


NO_PARAMETERS = "{}"
"""The parameters of most requests, as a JSON object."""


class RequestOptions(NamedTuple):
    """A request's outputs, size, deadline and limits.

    `names` are the outputs to answer. `rows` is the number of rows (1 without a batch dimension), `batch_key` tells
    apart inputs whose variable dimensions differ ("" when all are fixed), and `memory_bytes` is the size of the inputs.
    `budget_ns` is the time until the deadline, `max_cost` the highest accepted cost (None: any). `explain` asks for an
    explanation in the response. `priority` 1 is the most urgent; 0, or a level that the model does not have, is the
    model's default. `timeout_ns` bounds the time in queues (0: no bound). `parameters` are those that only the model
    knows, as a JSON object. `is_call` says that a model makes the request. `sequence` is its part in a sequence, None
    outside of sequences. `min_accuracy` is that of the models that may run it (0: any). It begins
    `start_after_ns` after it came at the earliest, and `timeout_ns` counts from then.
    """

    names: Sequence[str]
    rows: int
    batch_key: str
    memory_bytes: int
    budget_ns: int
    id: str = ""
    max_cost: float | None = None
    explain: bool = False
    priority: int = 0
    deliveries: Deliveries | None = None
    timeout_ns: int = 0
    parameters: str = NO_PARAMETERS
    is_call: bool = False
    sequence: SequenceStep | None = None
    min_accuracy: float = 0.0
    start_after_ns: int = 0
