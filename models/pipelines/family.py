"""Families: `family.yaml` lists models that answer the same question, and the accuracy of each."""

from collections.abc import Mapping
from typing import Any

import msgspec

from sluice.models.conversion import convert
from sluice.models.errors import ConfigError
from sluice.models.pipelines.model_reference import find_model
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import TensorSpec
from sluice.models.yaml_file import load_yaml


class Variant(msgspec.Struct, frozen=True):
    """A model of a family, by key; `accuracy` is in [0, 1]."""

    model: str
    accuracy: float


class Family(msgspec.Struct, frozen=True):
    """A checked family: its variants, at least one, the most accurate first.

    Their inputs and outputs have the same names, datatypes and item shapes (not necessarily in the same order), and all
    or none of them can be batched.
    """

    name: str
    variants: tuple[Variant, ...]


def read_family(text: str, models: Mapping[str, ModelSpec], *, name: str, path: str) -> Family:
    """Read the family `name` from the text of a `family.yaml`, checked against `models` (by key).

    Raises ConfigError, whose message starts with `path` and the place.
    """
    value, lines = load_yaml(text, path)

    def error(at: str, what: str) -> ConfigError:
        return lines.error(path, at, what)

    written = convert(value, FamilyKeys, path, lines=lines).variants
    if not written:
        raise error("variants", "expected at least one")
    specs: list[ModelSpec] = []
    variants: list[Variant] = []
    for index, each in enumerate(written):
        at = f"variants.{index}"
        variant = convert(each, VariantKeys, path, at, lines=lines)
        spec = find_model(models, variant.model, variant.version, path, at, lines)
        if spec in specs:
            raise error(f"{at}.model", f"'{spec.key}' is given twice")
        if not 0 <= variant.accuracy <= 1:
            raise error(f"{at}.accuracy", f"expected a number from 0 to 1, got {variant.accuracy}")
        specs.append(spec)
        if difference := _difference(spec, specs[0]):
            raise error(f"{at}.model", f"{difference}; expected variants with the same inputs and outputs")
        variants.append(Variant(spec.key, variant.accuracy))
    return Family(name, tuple(sorted(variants, key=lambda variant: -variant.accuracy)))


class FamilyKeys(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of a `family.yaml`."""

    variants: list[Any]


class VariantKeys(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of a model of a family."""

    model: str
    accuracy: float
    version: int | None = None


def _difference(spec: ModelSpec, first: ModelSpec) -> str:
    """The difference between a model and the first of its family; "" if clients cannot tell them apart."""
    if spec.batchable != first.batchable:
        which = (spec, first) if spec.batchable else (first, spec)
        return f"'{which[0].key}' has a batch dimension, but '{which[1].key}' has none"
    for side, tensors, expected in (
        ("inputs", spec.inputs, first.inputs),
        ("outputs", spec.outputs, first.outputs),
    ):
        if set(tensors) != set(expected):
            return f"'{spec.key}' has {side} {_listed(tensors)}, but '{first.key}' has {_listed(expected)}"
    return ""


def _listed(tensors: tuple[TensorSpec, ...]) -> str:
    return ", ".join(f"{tensor.name} {tensor.datatype} {list(tensor.shape)}" for tensor in tensors)
