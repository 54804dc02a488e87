"""The inputs and the output of each combiner, for the checks of pipelines and for the memory that they need."""

from collections.abc import Sequence

import msgspec

from sluice.models.pipelines.pipeline import Combiner
from sluice.models.tensors.spec import VARIABLE, DataType, TensorSpec, describe

FLOATS = (DataType.FP16, DataType.FP32, DataType.FP64)
_VECTORS = (Combiner.MOST_CONFIDENT, Combiner.VOTE)


def combined(combiner: Combiner, tensors: Sequence[TensorSpec], sources: Sequence[str]) -> TensorSpec:
    """The output of a combiner, named like the first tensor; `sources` are the names of the tensors in messages.

    Raises ValueError, with a sentence, for tensors that it cannot combine.
    """
    first = tensors[0]
    if first.datatype not in FLOATS and combiner not in {Combiner.VOTE, Combiner.CONCAT}:
        raise ValueError(f"expected tensors of {', '.join(FLOATS)}, got {first.datatype}")
    if first.datatype in {DataType.BYTES, DataType.BF16}:
        raise ValueError(f"{combiner} expected anything but BYTES and BF16, but {sources[0]} is {describe(first)}")
    if combiner is Combiner.CONCAT:
        return _concatenated(tensors, sources)
    for tensor, source in zip(tensors, sources, strict=True):
        if (tensor.datatype, tensor.shape) != (first.datatype, first.shape):
            raise ValueError(f"{source} is {describe(tensor)}, but {sources[0]} is {describe(first)}")
    if combiner in _VECTORS and first.datatype in FLOATS and len(first.shape) != 1:
        raise ValueError(f"{combiner} expected a vector of probabilities a row, got {describe(first)}")
    return first


def check_weights(combiner: Combiner, weights: Sequence[float], members: int) -> None:
    """Raise ValueError, with a sentence, unless a combiner of that many members may have these weights."""
    if combiner is not Combiner.WEIGHTED_MEAN:
        if weights:
            raise ValueError(f"expected weights with weighted_mean only, got them with {combiner}")
        return
    if len(weights) != members:
        raise ValueError(f"expected one weight for each of the {members} tensors, got {len(weights)}")
    # Also false for NaN.
    if not (all(0 <= weight < float("inf") for weight in weights) and sum(weights) > 0):
        raise ValueError(f"expected finite weights of at least 0, one of them above, got {list(weights)}")


def _concatenated(tensors: Sequence[TensorSpec], sources: Sequence[str]) -> TensorSpec:
    first = tensors[0]
    for tensor, source in zip(tensors, sources, strict=True):
        if not tensor.shape:
            raise ValueError(f"concat expected tensors of at least one dimension, but {source} is {describe(tensor)}")
        if tensor.datatype != first.datatype or tensor.shape[:-1] != first.shape[:-1]:
            raise ValueError(
                f"{source} is {describe(tensor)}, but {sources[0]} is {describe(first)}; expected them to differ in "
                "the last dimension only"
            )
    sizes = [tensor.shape[-1] for tensor in tensors]
    size = VARIABLE if VARIABLE in sizes else sum(sizes)
    return msgspec.structs.replace(first, shape=(*first.shape[:-1], size), labels=())
