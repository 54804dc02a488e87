"""The inputs of an inference: zeros, or those of a file, checked against the metadata of the model."""

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from sluice.gateway.cli.inference.messages import Inference, ModelInfo, TensorInfo, TypedArray, as_bf16
from sluice.models.errors import ConfigError
from sluice.models.spelling import did_you_mean
from sluice.models.tensors.arrays import Array, numpy_dtype
from sluice.models.tensors.spec import VARIABLE, DataType, element_count

MAX_ELEMENTS = 1 << 28
"""Elements of a tensor of zeros."""
_ZIP, _NPY = b"PK\x03\x04", b"\x93NUMPY"


def zeros(model: ModelInfo, rows: int, shapes: Mapping[str, tuple[int, ...]]) -> Inference:
    """Zeros and empty strings: `rows` where the first dimension is variable, 1 for others that are.

    `shapes` are whole shapes of inputs, by name. Raises ConfigError for an unknown name, and for one that does not fit.
    """
    _check_names("--shape", shapes, model)
    inputs = {}
    for each in model.inputs:
        made = [size if size != VARIABLE else 1 for size in each.shape]
        if each.shape[:1] == (VARIABLE,):
            made[0] = rows
        shape = shapes.get(each.name, tuple(made))
        _check_shape(each, shape)
        if element_count(shape) > MAX_ELEMENTS:
            raise ConfigError(f"input '{each.name}': {list(shape)} has more than {MAX_ELEMENTS} elements")
        blank = b"" if each.datatype is DataType.BYTES else 0
        inputs[each.name] = TypedArray(each.datatype, np.full(shape, blank, numpy_dtype(each.datatype)))
    return Inference(inputs)


def read_inputs(data: bytes, place: str, model: ModelInfo) -> Inference:
    """The inputs in a file of JSON or of numpy, by its contents.

    JSON is a body of the V2 protocol, an object of inputs by name, or the data of the only input. An array without the
    first dimension is one row. Raises ConfigError, whose message starts with `place`.
    """
    try:
        if data.startswith(_NPY):
            return from_arrays({_only(model): _load(io.BytesIO(data))}, model)
        if data.startswith(_ZIP):
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                return from_arrays({name: arrays[name] for name in arrays.files}, model)
        document = json.loads(data)
    except (ConfigError, ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
        expected = "" if isinstance(error, ConfigError) else "cannot be read as JSON, .npz or .npy: "
        raise ConfigError(f"{place}: {expected}{error}") from error
    try:
        if isinstance(document, dict) and isinstance(document.get("inputs"), list):
            return _body(document, data, model)
        given = document if isinstance(document, dict) else {_only(model): document}
        _check_names("", given, model)
        known = {each.name: each for each in model.inputs}
        return Inference({name: _tensor(known[name], _from_lists(known[name], each)) for name, each in given.items()})
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error


def _load(file: io.BytesIO) -> Array:
    array: Array = np.load(file, allow_pickle=False)
    return array


def _only(model: ModelInfo) -> str:
    """The name of the only input of a model."""
    if len(model.inputs) != 1:
        names = ", ".join(f"'{each.name}'" for each in model.inputs)
        raise ConfigError(f"expected an object with the inputs of '{model.name}' by name: {names}")
    return model.inputs[0].name


def from_arrays(given: Mapping[str, Array], model: ModelInfo) -> Inference:
    """The inputs in arrays by name. Raises ConfigError for an unknown name, and for what does not fit."""
    _check_names("", given, model)
    known = {each.name: each for each in model.inputs}
    return Inference({name: _tensor(known[name], array) for name, array in given.items()})


def _body(document: dict[str, Any], data: bytes, model: ModelInfo) -> Inference:
    """The inputs of a body of the protocol, which is sent over HTTP as it is."""
    inputs: dict[str, TypedArray] = {}
    known = {each.name: each for each in model.inputs}
    for each in document["inputs"]:
        name = each.get("name") if isinstance(each, dict) else None
        if not isinstance(name, str) or "data" not in each:
            raise ConfigError("inputs: expected objects with name, shape, datatype and data")
        _check_names("", {name: None}, model)
        shape = each.get("shape")
        values = _from_lists(known[name], each["data"])
        if shape is not None:
            if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
                raise ConfigError(f"input '{name}': expected a shape of whole numbers, got {shape!r:.80}")
            if element_count(tuple(shape)) != values.size:
                raise ConfigError(f"input '{name}': shape {shape} does not fit {values.size} elements of data")
            values = values.reshape(shape)
        inputs[name] = _tensor(known[name], values)
    id, parameters = document.get("id", ""), document.get("parameters", {})
    return Inference(inputs, str(id), parameters if isinstance(parameters, dict) else {}, data)


def _from_lists(info: TensorInfo, data: object) -> Array:
    """An array from nested lists."""
    try:
        if info.datatype is DataType.BYTES:
            return np.array(data, np.object_)
        array: Array = np.array(data)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"input '{info.name}': expected nested lists of equal lengths: {error}") from error
    if array.dtype.kind not in "biuf":
        raise ConfigError(f"input '{info.name}': expected numbers in nested lists of equal lengths for {info.datatype}")
    return array


def _tensor(info: TensorInfo, array: Array) -> TypedArray:
    """An array as the datatype and the shape of an input, where no value can be lost."""
    if array.ndim == len(info.shape) - 1 and info.shape[:1] == (VARIABLE,):
        array = array[np.newaxis]
    _check_shape(info, array.shape)
    if info.datatype is DataType.BYTES:
        if array.dtype.kind not in "SUO" or not all(isinstance(each, str | bytes) for each in array.ravel().tolist()):
            raise ConfigError(f"input '{info.name}': expected texts for BYTES, got {array.dtype}")
        return TypedArray(info.datatype, array.astype(np.object_))
    if info.datatype is DataType.BF16 and array.dtype.kind in "biuf":
        return TypedArray(info.datatype, as_bf16(array))
    wanted = numpy_dtype(info.datatype)
    if array.dtype.kind in "iu" and wanted.kind in "iu":
        limits = np.iinfo(wanted.name)
        if array.size and not (limits.min <= int(array.min()) and int(array.max()) <= limits.max):
            raise ConfigError(f"input '{info.name}': expected numbers from {limits.min} to {limits.max}")
    elif not np.can_cast(array.dtype, wanted, "same_kind"):
        raise ConfigError(f"input '{info.name}': expected {info.datatype}, got numbers of {array.dtype}")
    return TypedArray(info.datatype, array.astype(wanted))


def _check_names(place: str, given: Mapping[str, object], model: ModelInfo) -> None:
    names = [each.name for each in model.inputs]
    start = f"{place}: " if place else ""
    for name in given:
        if name not in names:
            raise ConfigError(
                f"{start}'{model.name}' has no input '{name}'; expected {', '.join(names)}{did_you_mean(name, names)}"
            )


def _check_shape(info: TensorInfo, shape: tuple[int, ...]) -> None:
    fits = len(shape) == len(info.shape) and all(
        want in (VARIABLE, got) for want, got in zip(info.shape, shape, strict=True)
    )
    if not fits:
        raise ConfigError(f"input '{info.name}': expected shape {list(info.shape)}, got {list(shape)}")
