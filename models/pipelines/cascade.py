"""Drafts the `pipeline.yaml` of a cascade from the tensors of a small and a large model."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sluice.models.errors import ConfigError
from sluice.models.pipelines.combiners import FLOATS
from sluice.models.spec import ModelSpec
from sluice.models.spelling import did_you_mean
from sluice.models.tensors.spec import TensorSpec, describe, merged_shape

SMALL, LARGE = "small", "large"
"""The names of the two stages."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_WORDS = frozenset({"true", "false", "null"})
"""Texts that YAML takes for something else."""


class Cascade(NamedTuple):
    """A drafted cascade.

    `request` are the inputs of the small model, which are those of the cascade. `inputs` leads from the inputs of the
    large model to those of the small one, `outputs` from the outputs of the small model to those of the large one; the
    cascade has the names of the small model. `judged` is the output of the small model whose confidence decides. `left`
    are outputs that only one of the models has, in words.
    """

    request: tuple[str, ...]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    judged: str
    left: tuple[str, ...]


def draft_cascade(
    small: ModelSpec, large: ModelSpec, places: tuple[str, str], probabilities: Mapping[str, str], output: str | None
) -> Cascade:
    """Match the tensors of two models, by name where they fit, else by datatype and shape where only one fits.

    `places` are the names of the two files for errors. `probabilities` are the outputs of the small model that
    are vectors: empty for those that hold probabilities, else with the reason why not. `output` is the one whose
    confidence decides; without it, the only one that holds probabilities. Raises ConfigError, whose message starts
    with the file.
    """
    for spec, place in zip((small, large), places, strict=True):
        if not spec.batchable:
            note = f": {spec.batching_note}" if spec.batching_note else ""
            raise ConfigError(
                f"{place}: expected a model with a batch dimension, since a cascade decides row by row; "
                f"it has none{note}"
            )
    inputs = _match(large.inputs, small.inputs, exact=False)
    for tensor in large.inputs:
        if tensor.name not in inputs:
            raise ConfigError(
                f"{places[1]}: input '{tensor.name}' is {describe(tensor)}; expected one that fits an input of "
                f"{places[0]}, which has {_listed(small.inputs)}"
            )
    outputs = _match(small.outputs, large.outputs, exact=True)
    if not outputs:
        raise ConfigError(
            f"{places[1]}: its outputs are {_listed(large.outputs)}; expected one with the datatype and shape of an "
            f"output of {places[0]}, which has {_listed(small.outputs)}"
        )
    taken = {*outputs.values()}
    left = [f"{places[0]}: {each.name}" for each in small.outputs if each.name not in outputs]
    left += [f"{places[1]}: {each.name}" for each in large.outputs if each.name not in taken]
    request = tuple(each.name for each in small.inputs)
    return Cascade(request, inputs, outputs, _judged(small, places[0], probabilities, output), tuple(left))


def vectors(outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The outputs that may hold a vector of probabilities a row."""
    return [each for each in outputs if each.datatype in FLOATS and len(each.shape) == 1 and each.shape[0] != 1]


def cascade_text(cascade: Cascade, models: tuple[str, str], below: float, slo_ms: float | None) -> str:
    """The `pipeline.yaml` of a cascade of two models, by name."""
    when = f"{{stage: {SMALL}, output: {_scalar(cascade.judged)}, confidence: max, below: {below:g}}}"
    outputs = "".join(
        f"  {_scalar(name)}: {{from: [{_scalar(f'{LARGE}.{larger}')}, {_scalar(f'{SMALL}.{name}')}]}}\n"
        for name, larger in cascade.outputs.items()
    )
    objective = "" if slo_ms is None else f"slo_ms: {slo_ms:g}\n"
    return (
        f"# '{models[1]}' runs only for the rows that '{models[0]}' is less than {below * 100:g} % sure of.\n"
        f"{objective}stages:\n"
        f"  {SMALL}: {{model: {_scalar(models[0])}, inputs: {_inputs({name: name for name in cascade.request})}}}\n"
        f"  {LARGE}: {{model: {_scalar(models[1])}, inputs: {_inputs(cascade.inputs)}, when: {when}}}\n"
        f"outputs:  # a row comes from the first that ran it\n{outputs}"
    )


def _match(wanted: Sequence[TensorSpec], given: Sequence[TensorSpec], *, exact: bool) -> dict[str, str]:
    """The tensors of `given` for those of `wanted`, by name: each at most once."""

    def fits(one: TensorSpec, other: TensorSpec) -> bool:
        if one.datatype != other.datatype:
            return False
        return one.shape == other.shape if exact else merged_shape(one.shape, other.shape) is not None

    named = {each.name: each for each in given}
    found = {each.name: each.name for each in wanted if each.name in named and fits(each, named[each.name])}
    left = [each for each in given if each.name not in found]
    waiting = [each for each in wanted if each.name not in found]
    for each in waiting:
        others = [other for other in left if fits(each, other)]
        rivals = [other for other in waiting if any(fits(other, candidate) for candidate in others)]
        if len(others) == len(rivals) == 1:
            found[each.name] = others[0].name
    return {each.name: found[each.name] for each in wanted if each.name in found}


def _judged(small: ModelSpec, place: str, probabilities: Mapping[str, str], output: str | None) -> str:
    """The output of the small model whose confidence decides."""
    if output is not None:
        if output in probabilities:
            return output
        names = [each.name for each in small.outputs]
        if output not in names:
            hint = did_you_mean(output, names)
            raise ConfigError(f"--output: {place} has no output '{output}'; expected one of {', '.join(names)}{hint}")
        (tensor,) = (each for each in small.outputs if each.name == output)
        raise ConfigError(
            f"--output: '{output}' of {place} is {describe(tensor)}; expected a vector of probabilities a row, "
            f"{', '.join(FLOATS)}"
        )
    clear = [name for name, reason in probabilities.items() if not reason]
    if len(clear) == 1:
        return clear[0]
    if clear:
        raise ConfigError(
            f"{place}: {_quoted(clear)} hold probabilities; expected --output with the one whose confidence decides"
        )
    reasons = "; ".join(f"'{name}' {reason}" for name, reason in probabilities.items())
    found = reasons or f"its outputs are {_listed(small.outputs)}"
    raise ConfigError(
        f"{place}: no output holds probabilities, as the confidence of a cascade needs: {found}; expected an output "
        "that ends in a softmax, or --output to take one all the same"
    )


def _inputs(sources: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{_scalar(name)}: {_scalar(f'request.{source}')}" for name, source in sources.items()) + "}"


def _scalar(text: str) -> str:
    """A text as YAML reads it, in quotes where it needs them."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else json.dumps(text)


def _listed(tensors: Sequence[TensorSpec]) -> str:
    return ", ".join(f"'{each.name}' {describe(each)}" for each in tensors)


def _quoted(names: Sequence[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)
