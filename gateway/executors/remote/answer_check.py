"""Checks that the answer of a worker server fits its batch, and reads the outputs."""

from collections.abc import Collection, Mapping, Sequence

from sluice.batcher.interface.decisions import DispatchBatch
from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.worker_protocol.framing import read_tensor
from sluice.gateway.worker_protocol.messages import Finished
from sluice.models.errors import PartitionError
from sluice.models.pipelines.pipeline import batch_key
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import VARIABLE
from sluice.mps.ipc.messages import LoadResult

LONGEST_NS = 24 * 3600 * 1_000_000_000
"""The longest time of a batch that is believed."""
MOST_BYTES = 1 << 50
"""The most memory of a model that is believed."""


def read_outputs(
    batch: DispatchBatch,
    spec: ModelSpec,
    confidences: Collection[object],
    answer: Finished,
    views: Sequence[memoryview],
) -> dict[str, Tensor]:
    """The outputs of a batch over the bytes that came, without copying them.

    `confidences` are those that the model was asked for. Raises PartitionError for an answer that has not all rows, and
    BadTensor for BYTES that are not in wire form. An output that is missing is missing in the result, too.
    """
    expected = {output.name: output for output in spec.outputs}
    tensors: dict[str, Tensor] = {}
    for output, view in zip(answer.outputs, views, strict=True):
        where = f"batch {batch.batch} of {batch.model}: output {output.name:.80}"
        declared = expected.get(output.name)
        if declared is None:
            raise PartitionError(f"{where} is none of the model's, which are {', '.join(expected)}")
        if output.datatype != declared.datatype:
            raise PartitionError(f"{where} is {output.datatype}, expected {declared.datatype}")
        wanted = (batch.run_rows, *declared.shape) if spec.batchable else declared.shape
        if len(output.shape) != len(wanted) or any(
            size not in (given, VARIABLE) for size, given in zip(wanted, output.shape, strict=True)
        ):
            raise PartitionError(f"{where} has the shape {list(output.shape)}, expected {list(wanted)}")
        tensors[output.name] = read_tensor(output, view, batch.run_rows if spec.batchable else 1)
    counts = [len(rows) for rows in answer.confidences]
    if counts != [batch.run_rows] * len(confidences):
        raise PartitionError(
            f"batch {batch.batch} of {batch.model}: it has {counts} values of its confidences, expected "
            f"{[batch.run_rows] * len(confidences)}"
        )
    if min(answer.waited_ns, answer.ran_ns) < 0:
        raise PartitionError(
            f"batch {batch.batch} of {batch.model}: expected times of at least 0 ns, got {answer.waited_ns} and "
            f"{answer.ran_ns}"
        )
    return tensors


def check_loaded(result: LoadResult) -> None:
    """Raise PartitionError for a latency or an amount of memory that no model has."""
    longest_ns = 0 if result.table is None else max(latency_ns for _, latency_ns in result.table.cells)
    if longest_ns > LONGEST_NS:
        raise PartitionError(f"model {result.key}: expected batches of at most {LONGEST_NS} ns, got {longest_ns}")
    memory = result.memory
    if memory is not None and not (0 <= memory.rest_bytes <= MOST_BYTES and 0 <= memory.row_bytes <= MOST_BYTES):
        raise PartitionError(
            f"model {result.key}: expected memory of 0 to {MOST_BYTES} bytes, got {memory.rest_bytes} and "
            f"{memory.row_bytes} a row"
        )


def output_key(spec: ModelSpec, tensors: Mapping[str, Tensor]) -> str:
    """Distinguishes outputs whose variable dimensions differ; "" when all are fixed."""
    variable = [output.name for output in spec.outputs if not output.fixed]
    if not variable:
        return ""
    first = int(spec.batchable)
    return batch_key((name, tensors[name].shape[first:]) for name in tensors if name in variable)
