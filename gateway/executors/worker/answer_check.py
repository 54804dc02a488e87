"""Checks that the answer of a worker fits the batch: a faulty worker harms no other requests than those it has."""

from collections.abc import Collection

from sluice.batcher.interface.decisions import DispatchBatch
from sluice.models.errors import PartitionError
from sluice.models.spec import ModelSpec
from sluice.mps.ipc.messages import BatchFinished, ResponseSent


def missing_output(spec: ModelSpec, answer: BatchFinished) -> str:
    """The name of an output that an answer lacks, "" for none: the file of the model may be another one by now."""
    return min({output.name for output in spec.outputs} - {output.name for output in answer.outputs}, default="")


def check_response(batch: DispatchBatch, spec: ModelSpec, response: ResponseSent) -> None:
    """Raise PartitionError unless a response may be one of the batch; checked before is the place of its outputs."""
    if not spec.decoupled:
        raise PartitionError(f"batch {batch.batch} of {batch.model}: a response came, but the model is not decoupled")
    known = {output.name for output in spec.outputs}
    for output in response.outputs:
        if output.name not in known:
            raise PartitionError(f"batch {batch.batch} of {batch.model}: the model has no output {output.name}")


def check_answer(batch: DispatchBatch, spec: ModelSpec, confidences: Collection[object], answer: BatchFinished) -> None:
    """Raise PartitionError unless an answer has a value of each output and of each confidence for every row.

    `confidences` are the confidences that the model was asked for. That each output lies in memory of the worker was
    checked before (`Supervisor`).
    """
    if answer.slot < 0 and not answer.outputs and not spec.decoupled:
        raise PartitionError(f"batch {batch.batch} of {batch.model}: it has neither a slot nor outputs")
    for output in answer.outputs:
        if spec.batchable and (not output.shape or output.shape[0] != batch.run_rows):
            raise PartitionError(
                f"batch {batch.batch} of {batch.model}: output {output.name} has the shape {list(output.shape)}, "
                f"expected {batch.run_rows} rows"
            )
        if output.row_offsets is not None and len(output.row_offsets) != 1 + (batch.run_rows if spec.batchable else 1):
            raise PartitionError(
                f"batch {batch.batch} of {batch.model}: output {output.name} has {len(output.row_offsets)} offsets of "
                f"rows, expected those of {batch.run_rows} rows and the end"
            )
    counts = [len(rows) for rows in answer.confidences]
    if counts != [batch.run_rows] * len(confidences):
        raise PartitionError(
            f"batch {batch.batch} of {batch.model}: it has {counts} values of its confidences, expected "
            f"{[batch.run_rows] * len(confidences)}"
        )
    if answer.ended_ns < answer.started_ns:
        raise PartitionError(
            f"batch {batch.batch} of {batch.model}: it ended {answer.started_ns - answer.ended_ns} ns before it began"
        )
